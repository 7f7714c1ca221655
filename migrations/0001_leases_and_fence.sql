-- Up Migration

-- The schema and the protocol of fencepost: leases, holders, fencing tokens and the fence.
--
-- Rules that every function here keeps, and that a change must keep too:
--   * Whoever holds one row lock waits for another only in this order: lease rows, holder rows by id, new lease rows by
--     name, the token sequence. Lease rows that exist are never waited for (skip locked) while anything else is held.
--     Hence two calls cannot deadlock. A client must not call acquire inside a longer transaction of its own: it would
--     hold the sequence's row, and with it every other grant, until it ends.
--   * clock_timestamp() everywhere: a transaction's start time is frozen, a lease is not.
--   * Times are compared after the lock that protects them was taken, never before.
--   * What is called often keeps its plans (force_generic_plan): with array parameters PostgreSQL would plan each call
--     anew, which took as long as the rest of it, and the kept plans cost the same per name from 1 to 10,000 names.
--   * The functions run with their owner's rights and a fixed search path, so that an application role
--     needs EXECUTE on them and no right on the tables.

-- A row, not a PostgreSQL SEQUENCE: it is transactional, and replicated and restored with the data.
-- It outlives this migration's removal, because a token that was given out once must never be given out again.
create table if not exists fencepost.token_sequence (
  name text collate "C" primary key,
  last_token bigint not null default 0,
  constraint token_sequence_name_length check (octet_length(name) between 1 and 512),
  constraint token_sequence_never_negative check (last_token >= 0)
) with (fillfactor = 10);

insert into fencepost.token_sequence (name) values ('default') on conflict do nothing;

-- One row per participant and TTL. A heartbeat touches this row alone, however many leases it holds.
-- The id is the holder's secret: whoever knows it may act as the holder.
create table fencepost.holder (
  id uuid primary key,
  label text not null,
  host text,
  pid integer,
  meta jsonb not null default '{}',
  ttl interval not null,
  joined_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  ended_at timestamptz,
  -- Attempts to acquire up to this number are void: their answer was lost, and they may still be on their way.
  voided_attempt bigint not null default 0,
  constraint holder_ttl_bounds check (ttl between interval '1 ms' and interval '1 day')
) with (fillfactor = 50);

-- Partial, so that a heartbeat (which never touches ended_at) stays a heap-only update.
create index holder_ended on fencepost.holder (ended_at) where ended_at is not null;

-- Changed by grant and release only, so that the fence's row lock never meets a heartbeat.
create table fencepost.lease (
  name text collate "C" primary key,
  token bigint not null,
  holder_id uuid,
  -- Which of its holder's attempts granted this term.
  attempt bigint not null default 0,
  sequence text collate "C" not null default 'default',
  granted_at timestamptz not null default clock_timestamp(),
  deadline timestamptz not null default 'infinity',
  available_at timestamptz not null default '-infinity',
  meta jsonb not null default '{}',
  constraint lease_name_length check (octet_length(name) between 1 and 512)
) with (fillfactor = 70);

-- The version of this schema. The library compares it with the one it needs.
create function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 1';

-- Makes the answer of the calling function trustworthy, whatever the session's settings: its commit waits for the disk,
-- and a cancelled wait for a synchronous standby, which PostgreSQL reports as a warning only, reaches the client.
create function fencepost.be_certain() returns void
language plpgsql
set search_path = fencepost, pg_temp as $$
begin
  if current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  if current_setting('client_min_messages') = 'error' then
    perform set_config('client_min_messages', 'warning', true);
  end if;
end $$;

-- Joins as a holder that lives for p_ttl_ms unless it beats. Sweeps a few holders that ended long ago.
-- Commits without waiting for the disk: a grant's own flush makes the join durable before anything relies on it.
create function fencepost.join_holder(
  p_id uuid, p_label text, p_host text, p_pid integer, p_meta jsonb, p_ttl_ms bigint
) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  -- Only where this call is the transaction: what else the transaction has written is none of our business.
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  insert into holder (id, label, host, pid, meta, ttl, expires_at)
  values (p_id, p_label, p_host, p_pid, coalesce(p_meta, '{}'), p_ttl_ms * interval '1 ms',
          clock_timestamp() + p_ttl_ms * interval '1 ms');
  delete from holder h
   where h.id in (select old.id from holder old
                   where old.ended_at < clock_timestamp() - interval '1 day'
                   limit 20
                     -- A row another sweep works on is not worth waiting for.
                     for update skip locked);
end $$;

-- True: alive for another TTL from now. False: ended, for good. A late beat of a holder nobody has ended succeeds.
-- If the update had to wait for the row, its clock was read before the wait, so the expiry errs on the early side.
create function fencepost.beat(p_id uuid) returns boolean
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
begin
  -- A heartbeat that was answered must survive a crash, or another holder could be granted a lease that is trusted.
  perform be_certain();
  update holder set expires_at = clock_timestamp() + ttl
   where id = p_id and ended_at is null;
  return found;
end $$;

-- Ends the holder: all its leases are free at once.
create function fencepost.end_holder(p_id uuid) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  -- The full lock, because an acquire of this holder that is still in flight holds the row FOR KEY SHARE.
  perform from holder where id = p_id for update;
  update holder set ended_at = clock_timestamp() where id = p_id and ended_at is null;
end $$;

-- The advisory lock key under which an open fenced transaction shows which lease it is under (for people and for
-- "draining"; safety rests on the row lock alone). A collision of hashes only makes a display less exact.
create function fencepost.fence_key(p_name text) returns integer
language sql immutable parallel safe as
$$ select hashtext(p_name) $$;

create function fencepost.is_fenced(p_name text) returns boolean
language sql stable security definer
set search_path = fencepost, pg_temp as $$
  select exists (
    select from pg_locks k
     where k.locktype = 'advisory' and k.classid = 1178947139 and k.objsubid = 2 and k.granted
       and k.objid = (fence_key(p_name)::bigint & 4294967295)::oid
       and k.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;

-- Asks for leases. One row per name: token when granted, else a reason and who stands in the way.
--   held       another holder is alive
--   draining   the term is over, but a fenced transaction of it is still open
--   contended  somebody else is taking or giving back this lease right now: ask again
--   not_yet    it may not be granted before remaining_ms have passed
--   sequence   the lease draws its tokens from another sequence, named in "label"
-- An attempt that finds every lease held reads and writes nothing: no transaction id, no WAL.
-- p_attempt grows with every call of one holder; see void_attempts().
create function fencepost.acquire(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default'
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_holder record;
  v_locked text[];
  v_expired uuid[];
  v_free text[];
  v_fresh text[];
  v_unknown text[];
  v_count integer;
  v_base bigint;
begin
  select h.ended_at, h.expires_at, h.voided_attempt into v_holder from holder h where h.id = p_holder;
  if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
    raise exception 'the holder has expired or ended' using errcode = 'FP002';
  end if;

  -- Rows that look free. SKIP LOCKED, because an open fenced transaction may hold the row for long and because
  -- another taker who holds it is about to win.
  with seen as materialized (
    select l.name, l.holder_id, l.deadline
      from lease l
     where l.name = any (p_names)
       and l.sequence = p_sequence
       and l.available_at <= clock_timestamp()
       and (l.holder_id is null
            or l.deadline <= clock_timestamp()
            or not exists (select from holder h
                            where h.id = l.holder_id and h.ended_at is null and h.expires_at > clock_timestamp()))
     order by l.name
       for update of l skip locked)
  select array_agg(s.name),
         array_agg(distinct s.holder_id) filter (where s.holder_id is not null and s.deadline > clock_timestamp())
    into v_locked, v_expired
    from seen s;

  if coalesce(cardinality(v_locked), 0) < cardinality(p_names) then
    select array_agg(n order by n) into v_unknown
      from unnest(p_names) n
     where not exists (select from lease l where l.name = n);
  end if;

  if v_locked is not null or v_unknown is not null then
    -- From here on this call may grant. The holder rows are locked in the order of their ids: the expired holders
    -- fully, to end them; our own FOR KEY SHARE, which lets our heartbeat pass but nobody end us before we commit.
    if v_expired is not null then
      perform from holder h where h.id = any (v_expired) and h.id < p_holder order by h.id for update;
    end if;
    -- The row is read as it is after the lock, so that a holder ended meanwhile is seen as ended.
    select h.ended_at, h.expires_at, h.voided_attempt into v_holder
      from holder h where h.id = p_holder for key share;
    if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
      raise exception 'the holder has expired or ended' using errcode = 'FP002';
    end if;
    if v_holder.voided_attempt >= p_attempt then
      raise exception 'this attempt was given up by its sender' using errcode = 'FP004';
    end if;
    if v_expired is not null then
      perform from holder h where h.id = any (v_expired) and h.id > p_holder order by h.id for update;
      -- The expiry is compared again under the lock: a beat in flight and a take-over cannot both win.
      update holder h set ended_at = clock_timestamp()
       where h.id = any (v_expired) and h.ended_at is null and h.expires_at <= clock_timestamp();
      select array_agg(l.name) into v_free
        from lease l
       where l.name = any (v_locked)
         and (l.holder_id is null
              or l.deadline <= clock_timestamp()
              or not exists (select from holder h where h.id = l.holder_id and h.ended_at is null));
    else
      v_free := v_locked;
    end if;

    if v_unknown is not null then
      -- The loser of a creation race gets no row, and no row means not granted. The token 0 is replaced below.
      with created as (
        insert into lease (name, token, sequence)
        select u.n, 0, p_sequence from unnest(v_unknown) with ordinality u (n, place) order by u.place
        on conflict do nothing
        returning lease.name)
      select array_agg(c.name) into v_fresh from created c;
      v_free := coalesce(v_free, '{}') || coalesce(v_fresh, '{}');
    end if;
  end if;

  v_count := coalesce(cardinality(v_free), 0);
  if v_count > 0 then
    -- A grant that was answered must survive a crash.
    perform be_certain();
    loop
      update token_sequence s set last_token = s.last_token + v_count
       where s.name = p_sequence
      returning s.last_token - v_count into v_base;
      exit when found;
      insert into token_sequence (name) values (p_sequence) on conflict do nothing;
    end loop;
    v_now := clock_timestamp();
    return query
      update lease l
         set token = v_base + f.place, holder_id = p_holder, attempt = p_attempt, granted_at = v_now,
             deadline = 'infinity'
        from unnest(v_free) with ordinality f (name, place)
       where l.name = f.name
      returning l.name, l.token, null::text, null::text, null::text, null::integer,
                (extract(epoch from v_now) * 1000)::bigint,
                (extract(epoch from v_holder.expires_at - v_now) * 1000)::bigint;
  end if;

  if v_count < cardinality(p_names) then
    return query
      select u.n, null::bigint, r.reason,
             case when r.reason = 'sequence' then l.sequence else h.label end,
             h.host, h.pid,
             (extract(epoch from l.granted_at) * 1000)::bigint,
             greatest(0, extract(epoch from
               case r.reason when 'held' then least(h.expires_at, l.deadline)
                             when 'not_yet' then l.available_at end - clock_timestamp()) * 1000)::bigint
        from unnest(p_names) u (n)
        left join lease l on l.name = u.n
        left join holder h on h.id = l.holder_id
       cross join lateral (
         select case when l.name is null then 'contended'
                     when l.sequence <> p_sequence then 'sequence'
                     when l.deadline > clock_timestamp()
                          and h.ended_at is null and h.expires_at > clock_timestamp() then 'held'
                     when l.available_at > clock_timestamp() then 'not_yet'
                     when is_fenced(u.n) then 'draining'
                     else 'contended' end as reason) r
       where v_free is null or u.n <> all (v_free);
  end if;
end $$;

-- Gives leases back. One row per name: released, not_held (the term is not this holder's any more), or draining
-- (a fenced transaction of the term is still open: ask again). Does not wait for the disk. A crash can undo a release
-- that was answered, so a holder that lives on asks once more after its next heartbeat, whose flush carries the
-- release along: "not_held" then means that it is durable.
create function fencepost.release(p_names text[], p_tokens bigint[], p_holder uuid)
returns table (name text, outcome text)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_released text[];
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  with mine as materialized (
    select l.name
      from lease l
      join unnest(p_names, p_tokens) r (name, token) on l.name = r.name
     where l.token = r.token and l.holder_id = p_holder
     order by l.name
       -- A fenced transaction of this term that is still open keeps the lease: skip it and say so.
       for update of l skip locked),
  freed as (
    update lease l set holder_id = null from mine where l.name = mine.name returning l.name)
  select coalesce(array_agg(f.name), '{}') into v_released from freed f;
  return query select n, 'released'::text from unnest(v_released) n;
  if cardinality(v_released) < cardinality(p_names) then
    return query
      select r.name, case when l.name is null then 'not_held' else 'draining' end
        from unnest(p_names, p_tokens) r (name, token)
        left join lease l on l.name = r.name and l.token = r.token and l.holder_id = p_holder
       where r.name <> all (v_released);
  end if;
end $$;

-- Closes the question of an acquire whose answer was lost, in two calls, so that the second one sees what the first one
-- waited for at every isolation level. This first one: attempts up to p_attempt grant nothing any more, wherever they are.
create function fencepost.void_attempts(p_holder uuid, p_attempt bigint) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  -- The full lock waits for such an attempt if it is just committing (it holds the row FOR KEY SHARE).
  perform be_certain();
  perform from holder where id = p_holder for update;
  update holder set voided_attempt = p_attempt where id = p_holder and voided_attempt < p_attempt;
end $$;

-- The second one: what void attempts did grant is given back. Each name comes with its own last void attempt, so that a
-- call that arrives late, or one for several attempts, cannot free the grant of a later one.
create function fencepost.give_back(p_holder uuid, p_names text[], p_attempts bigint[]) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  -- The client forgets the attempt when this is answered, so the answer must survive a crash.
  perform be_certain();
  update lease l set holder_id = null
    from unnest(p_names, p_attempts) v (name, attempt)
   where l.name = v.name and l.holder_id = p_holder and l.attempt <= v.attempt;
end $$;

-- The fence. Call it first in a transaction, before any other statement and outside any savepoint.
-- It returns the token, or raises: FP001 the term is stale, FP002 the holder has expired or the term's hard end has
-- passed, FP003 this database knows neither the lease nor the holder. From then until the transaction ends no newer term can be granted.
-- p_idle_ms: how long the client may be silent inside the transaction before the server ends the session
-- (null: the holder's TTL; 0: no bound). p_timeout_ms: bound on the whole transaction (PostgreSQL 17 and later) or on
-- each statement (before).
create function fencepost.fence(
  p_name text, p_token bigint, p_holder uuid, p_idle_ms bigint default null, p_timeout_ms bigint default null
) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_deadline timestamptz;
  v_ttl interval;
  v_current bigint;
  v_idle bigint;
  v_timeout bigint;
  v_own bigint;
  v_check bigint;
begin
  -- Shows that a fenced transaction is open. Shared and of the transaction only.
  perform pg_advisory_xact_lock_shared(1178947139, fence_key(p_name));
  -- FOR SHARE first, and every clock after it: until this transaction ends, a taker skips the lease, so a term's
  -- writes are all committed or all gone before the next term exists.
  select l.deadline into v_deadline
    from lease l where l.name = p_name and l.token = p_token and l.holder_id = p_holder
     for share;
  if not found then
    select l.token into v_current from lease l where l.name = p_name;
    -- A lease that was granted here leaves its row, with a token that is not smaller, or at least its holder, until both
    -- are purged.
    if (v_current is null or p_token > v_current)
       and not exists (select from holder h where h.id = p_holder) then
      raise exception 'this database knows no lease "%" with token %', p_name, p_token using errcode = 'FP003';
    end if;
    raise exception 'token % of lease "%" is stale', p_token, p_name
      using errcode = 'FP001',
            detail = json_build_object('by', 'lease', 'lease', p_name, 'current', v_current::text)::text;
  end if;
  select h.ttl into v_ttl
    from holder h where h.id = p_holder and h.ended_at is null and h.expires_at > clock_timestamp();
  if not found or v_deadline <= clock_timestamp() then
    raise exception 'the holder of lease "%" (token %) has expired', p_name, p_token using errcode = 'FP002';
  end if;

  -- A commit in doubt must not look like a commit.
  if current_setting('client_min_messages') = 'error' then
    perform set_config('client_min_messages', 'warning', true);
  end if;
  perform set_config('fencepost.fence', p_token || ':' || p_holder || ':' || p_name, true);

  -- A holder that is paused inside the transaction is cut off, and the lease moves on. The caller's own stricter
  -- setting stays.
  v_idle := coalesce(p_idle_ms, (extract(epoch from v_ttl) * 1000)::bigint);
  if v_idle > 0 then
    v_own := (extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint;
    if v_own = 0 or v_own > v_idle then
      perform set_config('idle_in_transaction_session_timeout', v_idle::text, true);
    end if;
  end if;

  -- A holder that died while a statement of it runs is noticed by the server only if it looks. Where it cannot look
  -- (before version 14, or on a system other than Linux) the statement runs to its end.
  if version() like '%linux%' then
    v_own := (extract(epoch from current_setting('client_connection_check_interval', true)::interval) * 1000)::bigint;
    v_check := greatest(100, (extract(epoch from v_ttl) * 1000)::bigint / 3);
    if v_own = 0 or v_own > v_check then
      perform set_config('client_connection_check_interval', v_check::text, true);
    end if;
  end if;

  v_timeout := p_timeout_ms;
  if v_deadline < 'infinity' then
    v_timeout := least(v_timeout, greatest(1, (extract(epoch from v_deadline - clock_timestamp()) * 1000)::bigint));
  end if;
  if v_timeout is not null then
    perform set_config(
      case when current_setting('server_version_num')::integer >= 170000 then 'transaction_timeout'
           else 'statement_timeout' end,
      v_timeout::text, true);
  end if;
  return p_token;
end $$;

-- Called by a guarded write that met a row stamped by a newer term; always raises FP001. It returns a type so that
-- it can stand in the ELSE of a CASE that is evaluated for such a row only.
create function fencepost.refuse_stale(p_lease text, p_token bigint, p_stamp bigint) returns bigint
language plpgsql volatile parallel unsafe
set search_path = fencepost, pg_temp as $$
begin
  raise exception 'token % of lease "%" is stale: the row is stamped %', p_token, p_lease, p_stamp
    using errcode = 'FP001',
          detail = json_build_object('by', 'row', 'lease', p_lease, 'current', p_stamp::text)::text;
end $$;

-- Lifts a sequence so that the next token is greater than p_floor. Never lowers it. For use after a partial restore,
-- when rows carry stamps above the restored sequence. Returns the last token as it is now.
create function fencepost.raise_token_floor(p_sequence text, p_floor bigint) returns bigint
language sql security definer
set search_path = fencepost, pg_temp as $$
  insert into token_sequence (name, last_token) values (p_sequence, greatest(p_floor, 0))
  on conflict (name) do update set last_token = greatest(token_sequence.last_token, excluded.last_token)
  returning last_token
$$;

-- Forgets leases that nobody holds and that were last granted before p_older_than ago, and holders that ended or expired
-- before then. Tokens go on rising: they live in token_sequence. Returns the number of leases forgotten.
create function fencepost.purge(p_older_than interval) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_before timestamptz := clock_timestamp() - p_older_than;
  v_count bigint;
begin
  if p_older_than is null or p_older_than < interval '0' then
    raise exception 'the age must not be null or negative' using errcode = '22023';
  end if;
  -- An expired holder is ended first, as a taker does it, so that its late heartbeat cannot succeed any more once its
  -- leases are gone. The statements after this one see the end.
  update holder h set ended_at = h.expires_at
   where h.ended_at is null and h.expires_at < v_before
     and h.id in (select old.id from holder old where old.ended_at is null and old.expires_at < v_before
                   order by old.id for update skip locked);
  with idle as materialized (
    select l.name
      from lease l
     where l.granted_at < v_before
       and l.available_at < clock_timestamp()
       and (l.holder_id is null
            or not exists (select from holder h
                            where h.id = l.holder_id and (h.ended_at is null or h.ended_at >= v_before)))
     order by l.name
       -- A row in use by an open fenced transaction or a taker is not idle.
       for update of l skip locked),
  forgotten as (
    delete from lease l using idle where l.name = idle.name returning 1)
  select count(*) into v_count from forgotten;
  delete from holder h where h.ended_at < v_before;
  return v_count;
end $$;

-- What people and tools look at. The holder's id is left out: it is a secret.
create view fencepost.leases as
with fenced as materialized (
  -- One look at the lock table for all leases; see is_fenced().
  select k.objid::bigint as key
    from pg_catalog.pg_locks k
   where k.locktype = 'advisory' and k.classid = 1178947139 and k.objsubid = 2 and k.granted
     and k.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
select l.name,
       l.token,
       case when not s.is_given_back then h.label end as holder,
       case when not s.is_given_back then h.host end as host,
       case when not s.is_given_back then h.pid end as pid,
       case when not s.is_given_back then l.granted_at end as since,
       case when s.is_held then least(h.expires_at, l.deadline) - clock_timestamp() end as remaining,
       case when s.is_held then 'held'
            when fencepost.fence_key(l.name)::bigint & 4294967295 in (select f.key from fenced f) then 'draining'
            when s.is_given_back then 'free'
            else 'expired' end as state,
       l.sequence
  from fencepost.lease l
  left join fencepost.holder h on h.id = l.holder_id
 cross join lateral (
   select h.ended_at is null and h.expires_at > clock_timestamp() and l.deadline > clock_timestamp() as is_held,
          -- Released, or its holder ended before it expired, which only the holder itself does.
          l.holder_id is null or coalesce(h.ended_at < h.expires_at, false) as is_given_back) s;

revoke all on all functions in schema fencepost from public;

-- Down Migration

-- token_sequence stays, so that a later installation goes on counting where this one stopped.
drop view fencepost.leases;
drop function fencepost.purge(interval);
drop function fencepost.raise_token_floor(text, bigint);
drop function fencepost.refuse_stale(text, bigint, bigint);
drop function fencepost.fence(text, bigint, uuid, bigint, bigint);
drop function fencepost.give_back(uuid, text[], bigint[]);
drop function fencepost.void_attempts(uuid, bigint);
drop function fencepost.release(text[], bigint[], uuid);
drop function fencepost.acquire(text[], uuid, bigint, text);
drop function fencepost.is_fenced(text);
drop function fencepost.fence_key(text);
drop function fencepost.end_holder(uuid);
drop function fencepost.beat(uuid);
drop function fencepost.join_holder(uuid, text, text, integer, jsonb, bigint);
drop function fencepost.be_certain();
drop function fencepost.schema_version();
drop table fencepost.lease;
drop table fencepost.holder;
