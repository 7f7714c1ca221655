-- Up Migration

-- The plain path of a grant and of a release, for clients that ask for many leases in one call, or for one after the other: the leases
-- are there, nobody holds them (or the caller does), and nobody stands in line. That is nearly always so, and then one row answers for
-- all. Whatever finds anything else leaves it to acquire() and release(), which can do everything, and gives their answers.
--
-- Locks as in 0001. No order is needed among lease rows: none of them is waited for.
--
-- What holds a batch together is a list of names for the index and an object with a value for each, not a join: for a join with so few
-- leases as there are in the beginning PostgreSQL chooses to compare every lease with every name, and keeps the plan. No bitmap scans
-- either: they come by every dead version of a row that is granted again and again, which an index scan marks as dead and passes over
-- from then on. Each of the two took the server five times as long at 512 leases.

-- What a CHECK looks at is read and prepared anew by every statement that writes a row: of a grant of one lease that was a sixth. A name is
-- written once, so it is looked at once; and no function takes a token from below nought.
alter table fencepost.lease drop constraint lease_name_length;
alter table fencepost.token_sequence drop constraint token_sequence_name_length, drop constraint token_sequence_never_negative;

create function fencepost.refuse_name() returns trigger
language plpgsql
set search_path = fencepost, pg_temp as $$
begin
  raise exception 'a name must have 1 to 512 bytes' using errcode = '23514', table = TG_TABLE_NAME, constraint = TG_NAME;
end $$;

create trigger lease_name_length before insert on fencepost.lease
  for each row when (octet_length(new.name) not between 1 and 512) execute function fencepost.refuse_name();
create trigger token_sequence_name_length before insert on fencepost.token_sequence
  for each row when (octet_length(new.name) not between 1 and 512 or new.last_token < 0) execute function fencepost.refuse_name();

-- Asks for leases, all names different; parameters as those of acquire(). When every one is granted, a single row answers, without a name:
-- token is that of the first, and each of the others has the next number, in the order of the names. Else the rows of acquire().
create function fencepost.acquire_batch(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default',
  p_stand boolean default false, p_barge boolean default false,
  p_min_hold_ms bigint default 0, p_max_hold_ms bigint default null, p_grace_ms bigint default 0
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint,
  ticket bigint, again_ms bigint, deadline_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  v_count integer := cardinality(p_names);
  v_locked integer;
  v_expires_at timestamptz;
  v_voided_attempt bigint;
  v_places jsonb;
  v_now timestamptz;
begin
  -- A look at the lease alone: where the lock has to follow a row that somebody else has just changed, what is compared is what has been
  -- locked. SKIP LOCKED, because an open fenced transaction may hold the row for long and because another taker who holds it is about
  -- to win. KEY SHARE on our own row lets our heartbeat pass, but nobody end us before we commit.
  if v_count = 1 then
    select h.expires_at, h.voided_attempt into v_expires_at, v_voided_attempt
      from lease l join holder h on h.id = p_holder and h.ended_at is null
     where l.name = p_names[1] and l.holder_id is null and l.sequence = p_sequence and l.available_at <= clock_timestamp()
       and (p_barge or not exists (select from waiter w where w.lease = l.name))
       for update of l skip locked
       for key share of h skip locked;
  else
    with seen as materialized (
      select
        from lease l
       where l.name = any (p_names) and l.holder_id is null and l.sequence = p_sequence and l.available_at <= clock_timestamp()
         and (p_barge or not exists (select from waiter) or not exists (select from waiter w where w.lease = l.name))
         for update of l skip locked)
    select count(*) into v_locked from seen;
    if v_locked = v_count then
      select h.expires_at, h.voided_attempt into v_expires_at, v_voided_attempt
        from holder h where h.id = p_holder and h.ended_at is null for key share;
    end if;
  end if;
  if v_expires_at is null or v_expires_at <= clock_timestamp() or v_voided_attempt >= p_attempt then
    -- Also for a holder that is gone: it says so. Rows that are locked already are locked once more at no cost.
    return query
      select * from acquire(p_names, p_holder, p_attempt, p_sequence, p_stand, p_barge, p_min_hold_ms, p_max_hold_ms, p_grace_ms);
    return;
  end if;

  -- A grant that was answered must survive a crash.
  if current_setting('synchronous_commit') in ('off', 'local') or current_setting('client_min_messages') = 'error' then
    perform be_certain();
  end if;
  update token_sequence s set last_token = s.last_token + v_count
   where s.name = p_sequence
  returning s.last_token - v_count + 1 into token;
  if not found then
    token := draw_tokens(p_sequence, v_count) + 1;
  end if;
  v_now := clock_timestamp();
  if v_count = 1 then
    update lease l
       set token = acquire_batch.token, holder_id = p_holder, attempt = p_attempt, ticket = null, granted_at = v_now,
           deadline = case when p_max_hold_ms is null then 'infinity' else v_now + p_max_hold_ms * interval '1 ms' end,
           available_at = case when p_min_hold_ms > 0 then v_now + p_min_hold_ms * interval '1 ms' else '-infinity' end,
           grace = p_grace_ms * interval '1 ms'
     where l.name = p_names[1];
  else
    v_places := jsonb_object(p_names, array(select n::text from generate_series(0, v_count - 1) n));
    update lease l
       set token = acquire_batch.token + (v_places ->> l.name)::bigint, holder_id = p_holder, attempt = p_attempt, ticket = null,
           granted_at = v_now,
           deadline = case when p_max_hold_ms is null then 'infinity' else v_now + p_max_hold_ms * interval '1 ms' end,
           available_at = case when p_min_hold_ms > 0 then v_now + p_min_hold_ms * interval '1 ms' else '-infinity' end,
           grace = p_grace_ms * interval '1 ms'
     where l.name = any (p_names);
  end if;
  since_ms := extract(epoch from v_now) * 1000;
  remaining_ms := extract(epoch from least(v_expires_at, v_now + p_max_hold_ms * interval '1 ms') - v_now) * 1000;
  deadline_ms := p_max_hold_ms;
  return next;
end $$;

-- Gives leases back, all names different. When every one is released and nobody stands in line for any, a single row without a name says
-- so. Else the rows of release().
create function fencepost.release_batch(p_names text[], p_tokens bigint[], p_holder uuid)
returns table (name text, outcome text, wake text)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  v_is_ours boolean := pg_current_xact_id_if_assigned() is null;
  v_count integer := cardinality(p_names);
  v_locked integer;
  v_tokens jsonb;
  v_is_done boolean := false;
begin
  -- A fenced transaction of this term that is still open keeps the lease: it is skipped, and release() says so. Who stands in line is
  -- looked at in a statement of its own after the lock, so that whoever stood there before it is seen.
  if v_count = 1 then
    perform from lease l
      where l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder
        for update skip locked;
    if found then
      update lease l set holder_id = null
       where l.name = p_names[1] and not exists (select from waiter w where w.lease = p_names[1]);
      v_is_done := found;
    end if;
  else
    v_tokens := jsonb_object(p_names, p_tokens::text[]);
    with mine as materialized (
      select
        from lease l
       where l.name = any (p_names) and l.token = (v_tokens ->> l.name)::bigint and l.holder_id = p_holder
         for update of l skip locked)
    select count(*) into v_locked from mine;
    if v_locked = v_count then
      update lease l set holder_id = null
       where l.name = any (p_names)
         and (not exists (select from waiter) or not exists (select from waiter w where w.lease = any (p_names)));
      v_is_done := found;
    end if;
  end if;
  if not v_is_done then
    return query select r.name, r.outcome, r.wake from release(p_names, p_tokens, p_holder) r;
    return;
  end if;
  if v_is_ours then
    -- See release(): a crash can undo it.
    outcome := set_config('synchronous_commit', 'off', true);
  end if;
  outcome := 'released';
  return next;
end $$;

revoke all on function
  fencepost.refuse_name(),
  fencepost.acquire_batch(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint),
  fencepost.release_batch(text[], bigint[], uuid)
from public;

-- Who could use leases before can do so now.
do $$
declare
  v_role text;
begin
  for v_role in
    select distinct coalesce(pg_catalog.quote_ident(r.rolname), 'public')
      from pg_catalog.pg_proc p
     cross join pg_catalog.aclexplode(p.proacl) a
      left join pg_catalog.pg_roles r on r.oid = a.grantee
     where p.oid = 'fencepost.release(text[], bigint[], uuid)'::regprocedure and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
  loop
    execute 'grant execute on function fencepost.acquire_batch(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint), '
      'fencepost.release_batch(text[], bigint[], uuid) to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 8';

-- Down Migration

drop trigger token_sequence_name_length on fencepost.token_sequence;
drop trigger lease_name_length on fencepost.lease;
drop function fencepost.refuse_name();
alter table fencepost.token_sequence
  add constraint token_sequence_name_length check (octet_length(name) between 1 and 512),
  add constraint token_sequence_never_negative check (last_token >= 0);
alter table fencepost.lease add constraint lease_name_length check (octet_length(name) between 1 and 512);
drop function fencepost.release_batch(text[], bigint[], uuid);
drop function fencepost.acquire_batch(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint);

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 7';
