-- Up Migration

-- What people do with leases who hold none: look closely, take one away, forget what is over. None of it is for applications, whose
-- roles may not call these functions; the views are for everybody who may look at the leases.
--
-- How a lease is taken away, and why the old holder's writes stop at that moment:
--   * It goes through the same door as a release: the row is locked FOR UPDATE, so no fenced transaction is open, and let_go() frees it
--     or grants it to the first in line. From the commit on, the fence finds another holder or none, and refuses the old one.
--   * As long as a fenced transaction is open the lease cannot move. New ones of the same holder could begin in the meantime for ever,
--     because a row lock FOR SHARE does not queue behind a FOR UPDATE (eight sessions that each kept one open for 20 ms, again and
--     again: 0 of 25,072 attempts in 5 s got the row). So this waits for the fence's advisory lock, which does queue:
--     what is open may end, what is new waits behind, and is refused when its turn comes.
--   * The token is the nonce: only the term that the operator has seen can be taken away, not the one after it.
--
-- Locks, beside the rules of 0001: the advisory lock is waited for while nothing else is held.

-- Who has taken what away from whom, and why.
create table fencepost.forced_release (
  id bigint generated always as identity primary key,
  lease text collate "C" not null,
  token bigint not null,
  holder text,
  host text,
  pid integer,
  reason text not null,
  released_at timestamptz not null default clock_timestamp(),
  released_by text not null,
  -- The server sessions that were ended for it.
  cancelled integer[] not null,
  constraint forced_release_lease_length check (octet_length(lease) between 1 and 512),
  constraint forced_release_reason_length check (octet_length(reason) between 1 and 4000)
);

create index forced_release_lease on fencepost.forced_release (lease, id);

-- Takes the term away from its holder. outcome:
--   released     it is over; the lease is free or, where next_token is not null, granted to the first in line
--   wrong_token  nothing has changed: the lease has another token, which is told
--   not_held     nothing has changed: nobody holds the lease, or it is unknown (token is null)
--   draining     nothing has changed: a fenced transaction of the term was open for p_wait_ms, or somebody is working on the lease
-- The holder is the one whom the term was taken from, or who has it. "wakes" is for wake(). A minimum hold goes on; a grace after a crash ends,
-- as by a release. Meant to be a transaction of its own: until that ends, fenced transactions of the lease cannot begin.
create function fencepost.force_release(
  p_name text, p_token bigint, p_reason text, p_wait_ms bigint default 0, p_cancelled integer[] default null,
  out outcome text, out token bigint, out holder text, out host text, out pid integer, out since_ms bigint,
  out next_token bigint, out next_holder text, out wakes text[]
)
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
#variable_conflict use_column
declare
  v_holder_id uuid;
  v_lock_timeout text := current_setting('lock_timeout');
begin
  -- Before anybody is held up.
  if p_reason is null or octet_length(p_reason) not between 1 and 4000 then
    raise exception 'a forced release needs a reason of 1 to 4000 bytes' using errcode = '22023';
  end if;
  -- What the operator has been told must survive a crash.
  perform be_certain();
  for v_look in 1..2 loop
    select l.token, l.holder_id, h.label, h.host, h.pid, (extract(epoch from l.granted_at) * 1000)::bigint
      into token, v_holder_id, holder, host, pid, since_ms
      from lease l left join holder h on h.id = l.holder_id
     where l.name = p_name;
    outcome := case when token is null or token = p_token and v_holder_id is null then 'not_held'
                    when token = p_token then 'draining'
                    else 'wrong_token' end;
    if outcome <> 'draining' or v_look = 2 then
      return;
    end if;
    -- Only now, so that a wrong token holds nobody up. Shared by every open fenced transaction of the lease.
    begin
      if p_wait_ms > 0 then
        perform set_config('lock_timeout', p_wait_ms::text, true);
        perform pg_advisory_xact_lock(1178947139, fence_key(p_name));
        perform set_config('lock_timeout', v_lock_timeout, true);
      elsif not pg_try_advisory_xact_lock(1178947139, fence_key(p_name)) then
        return;
      end if;
    exception when lock_not_available then
      return;
    end;
    -- SKIP LOCKED, because somebody may be taking or giving back the lease just now. If so, a second look tells what has come of it.
    perform from lease l
      where l.name = p_name and l.token = p_token and l.holder_id is not null
        for update skip locked;
    exit when found;
  end loop;

  insert into forced_release (lease, token, holder, host, pid, reason, released_by, cancelled)
  values (p_name, p_token, holder, host, pid, p_reason, session_user, coalesce(p_cancelled, '{}'));
  wakes := array(select g.wake from let_go(array[p_name]) g where g.wake is not null);
  outcome := 'released';
  select l.token, h.label into next_token, next_holder
    from lease l join holder h on h.id = l.holder_id
   where l.name = p_name;
end $$;

-- The server sessions whose open fenced transactions keep this term. The advisory lock tells them; where another lease has the same key,
-- which is a hash of the name, only those that are also seen to hold the lock of the lease's row. Prepared transactions have no session.
create function fencepost.fenced_sessions(p_name text, p_token bigint) returns setof integer
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_xmax xid;
  v_lockers xid[];
  v_is_shared boolean;
begin
  select l.xmax into v_xmax from lease l where l.name = p_name and l.token = p_token;
  if not found then
    return;
  end if;
  v_is_shared := exists (select from lease l where l.name <> p_name and fence_key(l.name) = fence_key(p_name));
  v_lockers := array[v_xmax];
  if v_is_shared then
    -- The row names one transaction, or a set of them, and does not say which of the two it is.
    begin
      v_lockers := v_lockers || array(select m.xid from pg_get_multixact_members(v_xmax) m);
    exception when others then
      null;
    end;
  end if;
  return query
    select distinct k.pid
      from pg_locks k
     where k.locktype = 'advisory' and k.classid = 1178947139 and k.objsubid = 2 and k.granted and k.mode = 'ShareLock'
       and k.objid = (fence_key(p_name)::bigint & 4294967295)::oid
       and k.database = (select d.oid from pg_database d where d.datname = current_database())
       and k.pid <> pg_backend_pid()
       and (not v_is_shared
            or exists (select from pg_locks t
                        where t.pid = k.pid and t.locktype = 'transactionid' and t.granted and t.transactionid = any (v_lockers)));
end $$;

-- As purge(), for at most p_most leases, so that no transaction is long. Fewer than that: there are no more.
create function fencepost.purge_some(p_older_than interval, p_most bigint) returns bigint
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
  delete from waiter w
   where w.ticket in (select d.ticket from waiter d
                       where not exists (select from holder h where h.id = d.holder_id and h.ended_at is null)
                         for update skip locked);
  with idle as materialized (
    select l.name
      from lease l left join holder h on h.id = l.holder_id
     where l.granted_at < v_before
       and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) < clock_timestamp()
       and (h.id is null or h.ended_at < v_before)
       and not exists (select from waiter w where w.lease = l.name)
     order by l.name
     limit p_most
       -- A row in use by an open fenced transaction or a taker is not idle.
       for update of l skip locked),
  forgotten as (
    delete from lease l using idle where l.name = idle.name returning 1)
  select count(*) into v_count from forgotten;
  delete from forced_release f where f.released_at < v_before;
  -- By the holder one sees how long its leases stay closed.
  delete from holder h
   where h.ended_at < v_before
     and not exists (select from lease l
                      where l.holder_id = h.id
                        and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) > clock_timestamp());
  return v_count;
end $$;

-- Forgets leases that nobody holds or waits for and that were last granted before p_older_than ago, holders that ended or
-- expired before then, and what was recorded of forced releases. Tokens go on rising: they live in token_sequence. Returns the number of
-- leases forgotten.
create or replace function fencepost.purge(p_older_than interval) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  return purge_some(p_older_than, null);
end $$;

-- The fenced transactions that are open, each of which keeps its lease. Of sessions of other roles one who is no member of pg_read_all_stats
-- sees neither state nor since. The pid is null of a prepared transaction.
create view fencepost.fenced_transactions as
select l.name as lease,
       k.pid,
       case when k.pid is null then 'prepared' else a.state end as state,
       a.usename::text as role,
       nullif(a.application_name, '') as application,
       a.xact_start as since
  from pg_catalog.pg_locks k
  join fencepost.lease l on fencepost.fence_key(l.name)::bigint & 4294967295 = k.objid::bigint
  left join pg_catalog.pg_stat_activity a on a.pid = k.pid
 where k.locktype = 'advisory' and k.classid = 1178947139 and k.objsubid = 2 and k.granted and k.mode = 'ShareLock'
   and k.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database());

-- Who takes part: holders that nobody has ended. The id is left out: it is a secret.
create view fencepost.holders as
with held as (
  select l.holder_id as id, count(*) as leases from fencepost.lease l
   where l.holder_id is not null and l.deadline > clock_timestamp() group by l.holder_id),
waiting as (
  select w.holder_id as id, count(*) as waits from fencepost.waiter w group by w.holder_id)
select h.label as holder,
       h.host,
       h.pid,
       h.meta,
       case when h.expires_at > clock_timestamp() then 'alive' else 'expired' end as state,
       h.ttl,
       h.joined_at as since,
       h.expires_at - clock_timestamp() as remaining,
       coalesce(held.leases, 0) as leases,
       coalesce(waiting.waits, 0) as waits
  from fencepost.holder h
  left join held on held.id = h.id
  left join waiting on waiting.id = h.id
 where h.ended_at is null;

-- Which terms were taken away, the last one last.
create view fencepost.forced_releases as
select f.id, f.lease, f.token, f.holder, f.host, f.pid, f.reason, f.released_at, f.released_by, f.cancelled
  from fencepost.forced_release f;

revoke all on function
  fencepost.force_release(text, bigint, text, bigint, integer[]),
  fencepost.fenced_sessions(text, bigint),
  fencepost.purge_some(interval, bigint)
from public;

-- Who could use leases before can look at the new views. The functions are not for applications.
do $$
declare
  v_role text;
begin
  for v_role in
    select distinct pg_catalog.quote_ident(r.rolname)
      from pg_catalog.pg_proc p
     cross join pg_catalog.aclexplode(p.proacl) a
      join pg_catalog.pg_roles r on r.oid = a.grantee
     where p.oid = 'fencepost.beat(uuid)'::regprocedure and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
  loop
    execute 'grant select on fencepost.fenced_transactions, fencepost.holders, fencepost.forced_releases to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 7';

-- Down Migration

drop view fencepost.forced_releases;
drop view fencepost.holders;
drop view fencepost.fenced_transactions;
drop function fencepost.fenced_sessions(text, bigint);
drop function fencepost.force_release(text, bigint, text, bigint, integer[]);

create or replace function fencepost.purge(p_older_than interval) returns bigint
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
  delete from waiter w
   where w.ticket in (select d.ticket from waiter d
                       where not exists (select from holder h where h.id = d.holder_id and h.ended_at is null)
                         for update skip locked);
  with idle as materialized (
    select l.name
      from lease l left join holder h on h.id = l.holder_id
     where l.granted_at < v_before
       and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) < clock_timestamp()
       and (h.id is null or h.ended_at < v_before)
       and not exists (select from waiter w where w.lease = l.name)
     order by l.name
       -- A row in use by an open fenced transaction or a taker is not idle.
       for update of l skip locked),
  forgotten as (
    delete from lease l using idle where l.name = idle.name returning 1)
  select count(*) into v_count from forgotten;
  -- By the holder one sees how long its leases stay closed.
  delete from holder h
   where h.ended_at < v_before
     and not exists (select from lease l
                      where l.holder_id = h.id
                        and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) > clock_timestamp());
  return v_count;
end $$;

drop function fencepost.purge_some(interval, bigint);
drop table fencepost.forced_release;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 6';
