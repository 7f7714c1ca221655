-- Up Migration

-- Two things for what lies outside the database that holds the leases:
--   * announce(): a term tells a database with nothing but data that it has begun. A database that holds the leases knows
--     already, and only verifies the term.
--   * resources: the highest token seen of each resource, for services that stand in front of other stores and check the
--     token of every request (src/http/).

-- Announces a term, as a transaction of its own, so that nothing that goes wrong later takes the announcement back: once it
-- has committed, this database refuses every older term of the lease. It waits for their open fenced transactions.
-- p_wait_ms: bound on that (null: the session's lock_timeout). Doing it twice does no harm. Returns the token; raises FP001
-- when the term is stale, 55P03 when it waited too long, and in a database that holds leases FP002 and FP003 as well.
create function fencepost.announce(
  p_name text, p_token bigint, p_holder uuid, p_wait_ms bigint default null
) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  -- An announcement that was answered must survive a crash, and a commit in doubt must not look like a commit.
  perform be_certain();
  if p_wait_ms is not null then
    perform set_config('lock_timeout', greatest(1, p_wait_ms)::text, true);
  end if;
  -- What is announced here is not to be written under in this transaction, whose snapshot may be older.
  perform set_config('fencepost.announces', p_name, true);
  perform hold_term(p_name, p_token, p_holder, null);
  return p_token;
end $$;

-- One row per resource and token, of which only the one with the highest token counts. Older ones are there for as long as
-- requests that carry them are at work: each locks its own row, and whoever comes with a newer token deletes them, which
-- waits for those locks. So a newer token shuts the older ones out at once, and follows them in order.
-- It outlives this migration's removal, because a token that was refused once must never be accepted again.
create table if not exists fencepost.resource (
  name text collate "C",
  token bigint,
  seen_at timestamptz not null default clock_timestamp(),
  constraint resource_pkey primary key (name, token),
  constraint resource_name_length check (octet_length(name) between 1 and 512),
  constraint resource_token_positive check (token > 0)
);

-- Lets a request in, for as long as the transaction is open. Must be the first statement of it, at read committed. Outcomes:
--   entered   no newer token gets in until the transaction ends
--   stale     a newer token has been seen: "highest"
--   not_yet   the token is newer than all before it, and requests with older ones may be at work: end the transaction, call
--             see_token() and drain_resource(), each in a transaction of its own, and ask again
-- p_wait_ms: bound on the wait for a lock. p_hold_ms: how long the client may be silent afterwards before the server ends
-- the session, so that a paused service does not keep newer tokens out.
create function fencepost.enter_resource(
  p_name text, p_token bigint, p_wait_ms bigint, p_hold_ms bigint, out outcome text, out highest bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_is_locked boolean;
begin
  perform set_config('lock_timeout', greatest(1, p_wait_ms)::text, true);
  -- Without a lock first, so that requests with an older token do not keep renewing the locks that a newer one waits for.
  select max(r.token) into highest from resource r where r.name = p_name;
  if highest > p_token then
    outcome := 'stale';
    return;
  elsif highest is distinct from p_token then
    outcome := 'not_yet';
    return;
  end if;
  -- Whoever deletes this row waits until the transaction ends.
  perform from resource r where r.name = p_name and r.token = p_token for share;
  v_is_locked := found;
  -- Again, after the lock: a newer token that was seen before it may have found nothing to wait for.
  select max(r.token) into highest from resource r where r.name = p_name;
  if highest > p_token then
    outcome := 'stale';
  elsif not v_is_locked or exists (select from resource r where r.name = p_name and r.token < p_token) then
    outcome := 'not_yet';
  else
    outcome := 'entered';
    perform set_config('idle_in_transaction_session_timeout', greatest(1, p_hold_ms)::text, true);
  end if;
end $$;

-- Remembers a token, unless a newer one has been seen. From its commit on, older tokens are refused.
create function fencepost.see_token(p_name text, p_token bigint, p_wait_ms bigint) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
begin
  perform be_certain();
  perform set_config('lock_timeout', greatest(1, p_wait_ms)::text, true);
  insert into resource (name, token)
  select p_name, p_token
   where not exists (select from resource r where r.name = p_name and r.token > p_token)
  on conflict do nothing;
end $$;

-- Waits until no request with an older token is at work any more. Raises 55P03 when that takes longer than p_wait_ms.
create function fencepost.drain_resource(p_name text, p_token bigint, p_wait_ms bigint) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
begin
  perform set_config('lock_timeout', greatest(1, p_wait_ms)::text, true);
  with older as materialized (
    select r.token from resource r
     where r.name = p_name and r.token < p_token
     -- In one order, so that two that wait do not deadlock.
     order by r.token
       for update)
  delete from resource r using older where r.name = p_name and r.token = older.token;
end $$;

revoke all on function fencepost.announce(text, bigint, uuid, bigint),
                       fencepost.enter_resource(text, bigint, bigint, bigint),
                       fencepost.see_token(text, bigint, bigint),
                       fencepost.drain_resource(text, bigint, bigint) from public;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 4';

-- Down Migration

-- resource stays, so that a later installation refuses what this one refused.
drop function fencepost.drain_resource(text, bigint, bigint);
drop function fencepost.see_token(text, bigint, bigint);
drop function fencepost.enter_resource(text, bigint, bigint, bigint);
drop function fencepost.announce(text, bigint, uuid, bigint);

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 3';
