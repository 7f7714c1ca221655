-- Up Migration

-- A hand-over in one statement, and in as few steps as it takes: each of them is time in which nobody has the lease.
--
-- Why the notification is still not part of the grant: a notification that cannot be sent takes its transaction with it, and
-- transactions that notify commit one at a time. So hand_over() is a procedure, which commits the grant, durably, before it begins
-- the transaction of the wake-up. What is saved is the way back to the client and out again.

-- Every process listens on a channel of its own beside the one of all, and what is for one of its holders is sent there: of a thousand
-- processes that wait for something, one hears of a hand-over. Wake-ups of the other ways (leave, give_back, hand_on, an older
-- library) go to the channel of all.
alter table fencepost.holder
  add column channel text,
  add constraint holder_channel_form check (channel ~ '^fencepost_[0-9a-f]{32}$');

-- Joins like the one with a parameter less, and tells on which channel the holder's process hears wake-ups.
create function fencepost.join_holder(
  p_id uuid, p_label text, p_host text, p_pid integer, p_meta jsonb, p_ttl_ms bigint, p_channel text
) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  perform join_holder(p_id, p_label, p_host, p_pid, p_meta, p_ttl_ms);
  update holder set channel = p_channel where id = p_id;
end $$;

-- As 0006 has it, except for one lease alone: that takes two statements less where nobody waits, and three less where somebody does.
create or replace function fencepost.release(p_names text[], p_tokens bigint[], p_holder uuid)
returns table (name text, outcome text, wake text)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_is_ours boolean := pg_current_xact_id_if_assigned() is null;
  v_sequence text;
  v_available_at timestamptz;
  v_next record;
  v_now timestamptz;
  v_released text[];
begin
  if cardinality(p_names) = 1 then
    select l.sequence, l.available_at into v_sequence, v_available_at
      from lease l
     where l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder
       for update skip locked;
    name := p_names[1];
    if not found then
      outcome := case when exists (select from lease l
                                    where l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder)
                      then 'draining' else 'not_held' end;
      return next;
      return;
    end if;
    outcome := 'released';
    -- A statement of its own after the lock, so that whoever stood in line before it is seen.
    update lease l set holder_id = null
     where l.name = p_names[1] and not exists (select from waiter w where w.lease = p_names[1]);
    if found then
      if v_is_ours then
        -- An assignment, because that is worked out without a query.
        wake := set_config('synchronous_commit', 'off', true);
        wake := null;
      end if;
      return next;
      return;
    end if;
    -- The first in line, unless he is just leaving or being ended; see grant_next().
    select w.ticket, w.holder_id, w.attempt, w.min_hold, w.max_hold, w.grace, h.ended_at, h.expires_at, h.channel
      into v_next
      from waiter w join holder h on h.id = w.holder_id
     where w.lease = p_names[1]
     order by w.ticket
     limit 1
       for update of w skip locked
       for key share of h skip locked;
    v_now := clock_timestamp();
    if v_next.ended_at is null and v_next.expires_at > v_now and v_available_at <= v_now then
      -- A waiter that is told of a grant must be able to rely on it.
      if current_setting('synchronous_commit') in ('off', 'local') or current_setting('client_min_messages') = 'error' then
        perform be_certain();
      end if;
      with drawn as (
        update token_sequence s set last_token = s.last_token + 1
         where s.name = v_sequence
        returning s.last_token),
      served as (
        delete from waiter w using drawn d where w.lease = p_names[1] and w.ticket = v_next.ticket)
      update lease l
         set token = d.last_token, holder_id = v_next.holder_id, attempt = v_next.attempt, ticket = v_next.ticket,
             granted_at = v_now, deadline = coalesce(v_now + v_next.max_hold, 'infinity'),
             available_at = case when v_next.min_hold > interval '0' then v_now + v_next.min_hold else '-infinity' end,
             grace = v_next.grace
        from drawn d
       where l.name = p_names[1]
      returning wake_up(l.name, l.holder_id, l.ticket, l.token) || coalesce(':' || v_next.channel, '') into wake;
    end if;
    if wake is not null then
      return next;
    else
      return query
        select n, case when n is not null then 'released' end, g.wake from unnest(p_names) n full join let_go(p_names) g on g.name = n;
    end if;
    return;
  end if;

  if v_is_ours then
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
  -- A statement of its own after the lock, so that whoever stood in line before it is seen. Mostly nobody waits for anything.
  if exists (select from waiter) then
    return query
      select n, case when n is not null then 'released' end, g.wake
        from unnest(v_released) n full join let_go(v_released) g on g.name = n;
  else
    return query select n, 'released'::text, null::text from unnest(v_released) n;
  end if;
  if cardinality(v_released) < cardinality(p_names) then
    return query
      select r.name, case when l.name is null then 'not_held' else 'draining' end, null::text
        from unnest(p_names, p_tokens) r (name, token)
        left join lease l on l.name = r.name and l.token = r.token and l.holder_id = p_holder
       where not exists (select from unnest(v_released) other where other = r.name);
  end if;
end $$;

-- Gives one lease back, like release(), and wakes the next in line. p_here: tickets in line for it whose owners the caller tells itself.
-- is_handed_over: it has gone straight to the next in line. wakes: as release() returns them, with spaces in between; unless
-- is_sent, they are left for the caller to send with wake(). It commits in between, so it must not be called within a transaction.
--
-- Where commits wait for a standby, that wait may be cancelled, which is a warning and no error, and whoever was woken then could not
-- rely on the grant: the caller sees the warning and this does not, so there the caller sends. So it does when the queue
-- of notifications is nearly full. Asking how full it is also makes room in it.
--
-- It has the rights of the caller and no search_path of its own, as procedures that commit have to, so all in it is named in full.
create procedure fencepost.hand_over(
  p_name text, p_token bigint, p_holder uuid, p_here bigint[] default '{}',
  inout outcome text default null, inout is_handed_over boolean default null, inout wakes text default null,
  inout is_sent boolean default null
)
language plpgsql as $$
declare
  v_elsewhere text[];
  v_ignored text;
begin
  select pg_catalog.min(r.outcome), pg_catalog.string_agg(r.wake, ' ') into outcome, wakes
    from fencepost.release(array[p_name], array[p_token], p_holder) r;
  is_handed_over := pg_catalog.strpos(wakes, ':') > 0;
  is_sent := false;
  if wakes is null then
    return;
  end if;
  v_elsewhere := array(select w from pg_catalog.unnest(pg_catalog.string_to_array(wakes, ' ')) w
                        where pg_catalog.split_part(w, ':', 1)::bigint <> all (p_here));
  if v_elsewhere = '{}' or pg_catalog.current_setting('synchronous_standby_names') <> ''
     or pg_catalog.pg_notification_queue_usage() > 0.9 then
    return;
  end if;
  commit;
  v_ignored := pg_catalog.set_config('synchronous_commit', 'off', true);
  perform pg_catalog.pg_notify(coalesce(nullif(pg_catalog.split_part(w, ':', 4), ''), 'fencepost'), w)
     from pg_catalog.unnest(v_elsewhere) w;
  is_sent := true;
end $$;

revoke all on procedure fencepost.hand_over(text, bigint, uuid, bigint[], text, boolean, text, boolean) from public;
revoke all on function fencepost.join_holder(uuid, text, text, integer, jsonb, bigint, text) from public;

-- Who could release leases before can do so now.
do $$
declare
  v_role text;
begin
  for v_role in
    select distinct pg_catalog.quote_ident(r.rolname)
      from pg_catalog.pg_proc p
     cross join pg_catalog.aclexplode(p.proacl) a
      join pg_catalog.pg_roles r on r.oid = a.grantee
     where p.oid = 'fencepost.release(text[], bigint[], uuid)'::regprocedure and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
  loop
    execute 'grant execute on procedure fencepost.hand_over(text, bigint, uuid, bigint[], text, boolean, text, boolean) to ' || v_role;
    execute 'grant execute on function fencepost.join_holder(uuid, text, text, integer, jsonb, bigint, text) to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 10';

-- Down Migration

drop procedure fencepost.hand_over(text, bigint, uuid, bigint[], text, boolean, text, boolean);
drop function fencepost.join_holder(uuid, text, text, integer, jsonb, bigint, text);

-- As 0006 has made it.
create or replace function fencepost.release(p_names text[], p_tokens bigint[], p_holder uuid)
returns table (name text, outcome text, wake text)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_is_ours boolean := pg_current_xact_id_if_assigned() is null;
  v_sequence text;
  v_available_at timestamptz;
  v_next record;
  v_expires_at timestamptz;
  v_token bigint;
  v_now timestamptz;
  v_released text[];
begin
  if cardinality(p_names) = 1 then
    -- One lease, with somebody waiting for it: each statement here is time in which nobody has it. The same as below, in fewer.
    select l.sequence, l.available_at into v_sequence, v_available_at
      from lease l
     where l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder
       for update skip locked;
    name := p_names[1];
    if not found then
      outcome := case when exists (select from lease l
                                    where l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder)
                      then 'draining' else 'not_held' end;
      return next;
      return;
    end if;
    outcome := 'released';
    update lease l set holder_id = null
     where l.name = p_names[1] and not exists (select from waiter w where w.lease = p_names[1]);
    if not found and v_available_at <= clock_timestamp() then
      -- The first in line, if he is alive and not just leaving; see grant_next().
      select w.ticket, w.holder_id, w.attempt, w.min_hold, w.max_hold, w.grace into v_next
        from waiter w
       where w.lease = p_names[1]
       order by w.ticket
       limit 1
         for update skip locked;
      select h.expires_at into v_expires_at
        from holder h where h.id = v_next.holder_id and h.ended_at is null for key share skip locked;
      if v_expires_at > clock_timestamp() then
        delete from waiter w where w.lease = p_names[1] and w.ticket = v_next.ticket;
        v_token := draw_tokens(v_sequence, 1) + 1;
        v_now := clock_timestamp();
        update lease l
           set token = v_token, holder_id = v_next.holder_id, attempt = v_next.attempt, ticket = v_next.ticket,
               granted_at = v_now, deadline = coalesce(v_now + v_next.max_hold, 'infinity'),
               available_at = case when v_next.min_hold > interval '0' then v_now + v_next.min_hold else '-infinity' end,
               grace = v_next.grace
         where l.name = p_names[1];
        wake := wake_up(p_names[1], v_next.holder_id, v_next.ticket, v_token);
      end if;
    end if;
    if wake is not null then
      -- A waiter that is told of a grant must be able to rely on it.
      if current_setting('synchronous_commit') in ('off', 'local') or current_setting('client_min_messages') = 'error' then
        perform be_certain();
      end if;
      return next;
    elsif exists (select from waiter w where w.lease = p_names[1]) then
      return query
        select n, case when n is not null then 'released' end, g.wake from unnest(p_names) n full join let_go(p_names) g on g.name = n;
    else
      if v_is_ours then
        wake := set_config('synchronous_commit', 'off', true);
        wake := null;
      end if;
      update lease l set holder_id = null where l.name = p_names[1] and l.holder_id is not null;
      return next;
    end if;
    return;
  end if;

  if v_is_ours then
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
  -- A statement of its own after the lock, so that whoever stood in line before it is seen. Mostly nobody waits for anything.
  if exists (select from waiter) then
    return query
      select n, case when n is not null then 'released' end, g.wake
        from unnest(v_released) n full join let_go(v_released) g on g.name = n;
  else
    return query select n, 'released'::text, null::text from unnest(v_released) n;
  end if;
  if cardinality(v_released) < cardinality(p_names) then
    return query
      select r.name, case when l.name is null then 'not_held' else 'draining' end, null::text
        from unnest(p_names, p_tokens) r (name, token)
        left join lease l on l.name = r.name and l.token = r.token and l.holder_id = p_holder
       where not exists (select from unnest(v_released) other where other = r.name);
  end if;
end $$;

alter table fencepost.holder drop column channel;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 9';
