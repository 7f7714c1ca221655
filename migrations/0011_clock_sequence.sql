-- Up Migration

-- Token sequences that follow the clock. A counter goes on from its last token, so where the last grants are lost (an asynchronous failover,
-- a restore, a dump taken to another cluster) it hands out numbers once more that were handed out before. A clock sequence never gives
-- less than the microseconds since 1970 of the database's clock, so what it gives after the loss is greater than all it gave before,
-- provided that
--   * the clock then shows a later time than it did at the last grant that was lost: a failover to a machine whose clock is behind must
--     take longer than it is behind; and
--   * the sequence was not ahead of the clock when that was granted. It is, after a batch of n, by at most n microseconds; for as long as
--     more than a million tokens a second are drawn; and after the clock went back, or raise_token_floor() went past it, until the clock
--     has caught up. Meanwhile it counts.
-- Tokens rise whatever the clock does: the row decides, under its lock, and the clock can only lift it.

-- It stays with the row, and is read where the row is written. No text with a CHECK: see 0008.
alter table fencepost.token_sequence add column follows_clock boolean not null default false;

-- What the next tokens of a sequence that follows the clock are counted from. The clock is read for each attempt to write the row, and the
-- greater of the two counts, so it does not matter when.
create function fencepost.clock_base(p_last bigint) returns bigint
language plpgsql as $$
begin
  return greatest(p_last, (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint - 1);
end $$;

-- The same for every sequence: the one rule, for all statements that draw. PostgreSQL puts the expression in place of the call when it plans
-- them, as long as it is one expression without settings of its own; with the clock in it, a counter would pay for preparing that.
create function fencepost.token_base(p_last bigint, p_follows_clock boolean) returns bigint
language sql as $$
  select case when p_follows_clock then fencepost.clock_base(p_last) else p_last end
$$;

-- Draws p_count tokens: those after the one returned. Locks the sequence until the transaction ends, so it comes last.
-- Runs with its caller's settings.

create or replace function fencepost.draw_tokens(p_sequence text, p_count integer) returns bigint
language plpgsql as $$
declare
  v_base bigint;
begin
  loop
    update fencepost.token_sequence s set last_token = fencepost.token_base(s.last_token, s.follows_clock) + p_count
     where s.name = p_sequence
    returning s.last_token - p_count into v_base;
    if found then
      return v_base;
    end if;
    insert into fencepost.token_sequence (name) values (p_sequence) on conflict do nothing;
  end loop;
end $$;

-- As 0008 has it, with the rule of token_base().
create or replace function fencepost.acquire_batch(
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
  update token_sequence s set last_token = token_base(s.last_token, s.follows_clock) + v_count
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

-- As 0010 has it, with the rule of token_base().
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
        update token_sequence s set last_token = token_base(s.last_token, s.follows_clock) + 1
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

-- As 0006 has it, except for how the names that were refused are found.
create or replace function fencepost.acquire(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default',
  p_stand boolean default false, p_barge boolean default false,
  p_min_hold_ms bigint default 0, p_max_hold_ms bigint default null, p_grace_ms bigint default 0,
  p_tickets bigint[] default null
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint,
  ticket bigint, again_ms bigint, deadline_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_deadline timestamptz;
  v_available_at timestamptz;
  v_grace interval;
  v_since_ms bigint;
  v_remaining_ms bigint;
  v_holder record;
  v_names text[] := p_names;
  v_queued text[] := '{}';
  v_mine text[];
  v_locked text[];
  v_expired uuid[];
  v_taken text[];
  v_free text[];
  v_fresh text[];
  v_unknown text[];
  v_held uuid[];
  v_behind text[];
  v_refused text[];
  v_count integer;
  v_base bigint;
begin
  select h.ended_at, h.expires_at, h.voided_attempt into v_holder from holder h where h.id = p_holder;
  if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
    raise exception 'the holder has expired or ended' using errcode = 'FP002';
  end if;

  if p_tickets is not null then
    perform be_certain();
    loop
      -- What has been granted by one of the tickets, and what is still in line, as one statement sees it: a grant takes the place.
      -- A term that is over already is no grant any more.
      select array_agg(r.name) filter (where l.ticket = r.ticket and l.deadline > clock_timestamp()),
             array_agg(r.name) filter (where w.ticket = r.ticket and l.ticket is distinct from r.ticket)
        into v_mine, v_names
        from unnest(p_names, p_tickets) r (name, ticket)
        left join lease l on l.name = r.name and l.holder_id = p_holder
        left join lateral (
          select w.ticket from waiter w where w.holder_id = p_holder and w.lease = r.name limit 1) w on true;
      exit when v_mine is null;
      -- Whoever granted it may not know yet whether a standby has it. The lock of a row is written to the log, and our commit waits
      -- for that. KEY SHARE passes a fenced transaction of the term, and keeps the term from being let go until this is answered.
      with mine as materialized (
        select l.name
          from lease l join unnest(p_names, p_tickets) r (name, ticket) on l.name = r.name
         where l.holder_id = p_holder and l.ticket = r.ticket and l.deadline > clock_timestamp()
         order by l.name
           for key share of l)
      select array_agg(m.name) into v_locked from mine m;
      -- What came or went between the two is looked at once more.
      exit when cardinality(v_locked) = cardinality(v_mine);
    end loop;
    return query
      select l.name, l.token, null::text, null::text, null::text, null::integer,
             (extract(epoch from l.granted_at) * 1000)::bigint,
             (extract(epoch from least(v_holder.expires_at, l.deadline) - clock_timestamp()) * 1000)::bigint,
             l.ticket, null::bigint, (extract(epoch from nullif(l.deadline, 'infinity') - clock_timestamp()) * 1000)::bigint
        from lease l
       where l.name = any (v_mine);
    return query
      select n, null::bigint, 'gone', null::text, null::text, null::integer, null::bigint, null::bigint,
             null::bigint, null::bigint, null::bigint
        from unnest(p_names) n
       where not exists (select from unnest(v_mine || v_names) other where other = n);
    if v_names is null then
      return;
    end if;
  end if;

  -- Mostly nobody waits for anything.
  if not p_barge and exists (select from waiter) then
    v_queued := queued(v_names, p_holder);
  end if;

  -- Rows that nobody holds, which is what is granted nearly always. A look at the lease alone: where the lock has to follow a row that
  -- somebody else has just changed, what is compared is what has been locked. SKIP LOCKED, because an open fenced transaction may
  -- hold the row for long and because another taker who holds it is about to win.
  with seen as materialized (
    select l.name
      from lease l
     where l.name = any (v_names)
       and l.holder_id is null
       and l.sequence = p_sequence
       and l.available_at <= clock_timestamp()
       and l.name <> all (v_queued)
     order by l.name
       for update of l skip locked)
  select array_agg(s.name) into v_free from seen s;

  if coalesce(cardinality(v_free), 0) < cardinality(v_names) then
    -- Rows whose term looks over, and for which nobody alive stands in line before us.
    with seen as materialized (
      select l.name, case when h.ended_at is null and h.expires_at <= clock_timestamp() then h.id end as expired
        from lease l left join holder h on h.id = l.holder_id
       where l.name = any (v_names)
         and l.holder_id is not null
         and l.sequence = p_sequence
         and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) <= clock_timestamp()
         and l.name <> all (v_queued)
       order by l.name
         for update of l skip locked)
    select array_agg(s.name), array_agg(distinct s.expired) filter (where s.expired is not null)
      into v_locked, v_expired
      from seen s;

    select array_agg(n order by n) into v_unknown
      from unnest(v_names) n
     where not exists (select from lease l where l.name = n);
  end if;

  if v_free is not null or v_locked is not null or v_unknown is not null then
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
    if p_tickets is null and v_holder.voided_attempt >= p_attempt then
      raise exception 'this attempt was given up by its sender' using errcode = 'FP004';
    end if;
    if v_expired is not null then
      perform from holder h where h.id = any (v_expired) and h.id > p_holder order by h.id for update;
      -- The expiry is compared again under the lock: a beat in flight and a take-over cannot both win.
      update holder h set ended_at = clock_timestamp()
       where h.id = any (v_expired) and h.ended_at is null and h.expires_at <= clock_timestamp();
    end if;
    if v_locked is not null then
      -- Once more, with a snapshot of its own: where the lock had to follow a row that somebody else had just changed, the rows beside it
      -- were those of the statement's beginning, when the new holder may not have been there yet. Nobody can change them now: to let a
      -- lease go, take it or stand in its line one locks it. A holder that only ran out just now has not been ended: another time.
      if not p_barge and exists (select from waiter) then
        v_queued := queued(v_locked, p_holder);
      end if;
      select array_agg(l.name) into v_taken
        from lease l left join holder h on h.id = l.holder_id
       where l.name = any (v_locked)
         and free_at(l.available_at, l.deadline, l.grace,
                     case when h.ended_at is not null then h.expires_at when h.id is not null then 'infinity' end,
                     h.ended_at) <= clock_timestamp()
         and l.name <> all (v_queued);
      v_free := v_free || v_taken;
    end if;

    if p_tickets is not null then
      -- A lease that somebody has deleted by hand has no line either.
      delete from waiter w where w.holder_id = p_holder and w.lease = any (v_unknown);
      -- Of those that are free, the ones whose place in line is still there. Nobody can take it from now on.
      select array_agg(s.lease) into v_free
        from (select w.lease from waiter w
               where w.holder_id = p_holder and w.lease = any (v_free)
                 for update skip locked) s;
    elsif v_unknown is not null then
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
  v_refused := v_names;
  if v_count > 0 and v_count < cardinality(v_names) then
    -- By a hash, which only this form is sure to be given: with many of many it would be every name with every other.
    v_refused := array(select n from unnest(v_names) n where n not in (select f from unnest(v_free) f));
  end if;

  if p_stand and p_tickets is null and v_count < cardinality(v_names) then
    -- Standing in line, before any token is drawn. Nothing here waits but for our own row: see grant_next().
    if v_count = 0 and pg_current_xact_id_if_assigned() is null then
      -- A place in line that is lost in a crash is taken again. Asked before the first lock, which assigns a transaction id.
      perform set_config('synchronous_commit', 'off', true);
    end if;
    select h.ended_at, h.expires_at, h.voided_attempt into v_holder
      from holder h where h.id = p_holder for key share;
    if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
      raise exception 'the holder has expired or ended' using errcode = 'FP002';
    end if;
    if v_holder.voided_attempt >= p_attempt then
      raise exception 'this attempt was given up by its sender' using errcode = 'FP004';
    end if;
    -- FOR SHARE keeps everybody from letting the lease go or taking it until this commits, but no fenced transaction from going on.
    select array_agg(s.name), array_agg(distinct s.holder_id) filter (where s.holder_id is not null)
      into v_mine, v_held
      from (select l.name, l.holder_id
              from lease l
             where l.name = any (v_refused) and l.sequence = p_sequence
             order by l.name
               for share skip locked) s;
    -- KEY SHARE keeps everybody from ending the holder.
    select array_agg(s.id) into v_held
      from (select h.id from holder h where h.id = any (v_held) order by h.id for key share skip locked) s;
    -- Where nobody holds the lease, nobody will hand it over: somebody who is alive and stands before us has to wake us when he leaves,
    -- and KEY SHARE keeps him from leaving until he can see us.
    select array_agg(b.lease) into v_behind
      from unnest(v_mine) m (name)
      join lease l on l.name = m.name
      left join holder h on h.id = l.holder_id
     cross join lateral (
       select w.lease
         from waiter w join holder o on o.id = w.holder_id
        where w.lease = l.name and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > clock_timestamp()
        order by w.ticket
        limit 1
          for key share of w skip locked) b
     where h.id is null or h.ended_at is not null or h.expires_at <= clock_timestamp() or l.deadline <= clock_timestamp();
    v_queued := queued(v_mine, p_holder);
    -- As it is under the locks. What is free by now is asked for again instead, unless others are before us in line or a fenced
    -- transaction keeps it.
    insert into waiter (lease, holder_id, attempt, min_hold, max_hold, grace)
    select l.name, p_holder, p_attempt, p_min_hold_ms * interval '1 ms', p_max_hold_ms * interval '1 ms',
           p_grace_ms * interval '1 ms'
      from unnest(v_mine) with ordinality m (name, place)
      join lease l on l.name = m.name
      left join holder h on h.id = l.holder_id
     where case when h.ended_at is null and h.expires_at > clock_timestamp() and l.deadline > clock_timestamp()
                then h.id = any (v_held)
                when free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) > clock_timestamp()
                then (h.id is null or h.ended_at is not null or h.id = any (v_held))
                     and (l.name = any (v_behind) or l.name <> all (v_queued))
                else is_fenced(l.name) or l.name = any (v_behind) end
     order by m.place
    on conflict do nothing;
  end if;

  if v_count > 0 then
    -- A grant that was answered must survive a crash.
    if current_setting('synchronous_commit') in ('off', 'local') or current_setting('client_min_messages') = 'error' then
      perform be_certain();
    end if;
    v_base := draw_tokens(p_sequence, v_count);
    v_now := clock_timestamp();
    if p_tickets is null then
      -- What is the same for all is worked out once.
      v_deadline := coalesce(v_now + p_max_hold_ms * interval '1 ms', 'infinity');
      v_available_at := case when p_min_hold_ms > 0 then v_now + p_min_hold_ms * interval '1 ms' else '-infinity' end;
      v_grace := p_grace_ms * interval '1 ms';
      v_since_ms := extract(epoch from v_now) * 1000;
      v_remaining_ms := extract(epoch from least(v_holder.expires_at, v_deadline) - v_now) * 1000;
      return query
        update lease l
           set token = v_base + f.place, holder_id = p_holder, attempt = p_attempt, ticket = null, granted_at = v_now,
               deadline = v_deadline, available_at = v_available_at, grace = v_grace
          from unnest(v_free) with ordinality f (name, place)
         where l.name = f.name
        returning l.name, l.token, null::text, null::text, null::text, null::integer, v_since_ms, v_remaining_ms,
                  null::bigint, null::bigint, p_max_hold_ms;
    else
      return query
        with served as (
          delete from waiter w
           using unnest(v_free) with ordinality f (name, place)
           where w.holder_id = p_holder and w.lease = f.name
          returning w.lease, w.ticket, w.attempt, w.min_hold, w.max_hold, w.grace, f.place)
        update lease l
           set token = v_base + s.place, holder_id = p_holder, attempt = s.attempt, ticket = s.ticket, granted_at = v_now,
               deadline = coalesce(v_now + s.max_hold, 'infinity'),
               available_at = case when s.min_hold > interval '0' then v_now + s.min_hold else '-infinity' end,
               grace = s.grace
          from served s
         where l.name = s.lease
        returning l.name, l.token, null::text, null::text, null::text, null::integer,
                  (extract(epoch from v_now) * 1000)::bigint,
                  (extract(epoch from least(v_holder.expires_at, l.deadline) - v_now) * 1000)::bigint,
                  l.ticket, null::bigint, (extract(epoch from nullif(l.deadline, 'infinity') - v_now) * 1000)::bigint;
    end if;
  end if;

  if v_count < cardinality(v_names) then
    v_now := clock_timestamp();
    return query
      select u.n, null::bigint, r.reason,
             case r.reason when 'sequence' then l.sequence when 'queued' then f.label else h.label end,
             case r.reason when 'queued' then f.host else h.host end,
             case r.reason when 'queued' then f.pid else h.pid end,
             (extract(epoch from case r.reason when 'queued' then f.since else l.granted_at end) * 1000)::bigint,
             greatest(0, ceil(extract(epoch from case r.reason when 'held' then least(h.expires_at, l.deadline)
                                                               when 'not_yet' then a.free_at
                                                               when 'queued' then f.expires_at end - v_now) * 1000))::bigint,
             me.ticket,
             case when r.reason = 'contended' then 0
                  else greatest(0, ceil(extract(epoch from coalesce(b.expires_at, nullif(a.free_at, '-infinity')) - v_now) * 1000))
             end::bigint,
             null::bigint
        from unnest(v_refused) u (n)
        left join lease l on l.name = u.n
        left join holder h on h.id = l.holder_id
        -- By itself for each name: joined, all places of the holder would be compared with all names.
        left join lateral (
          select w.ticket from waiter w
           where w.holder_id = p_holder and w.lease = u.n and (p_stand or p_tickets is not null)
           limit 1) me on true
       cross join lateral (
         select free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) as free_at) a
        -- The first in line, and the one just before us: as long as that one lives, it is not our turn.
        left join lateral (
          select w.since, o.label, o.host, o.pid, o.expires_at
            from waiter w join holder o on o.id = w.holder_id
           where w.lease = u.n and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > v_now
             and (me.ticket is null or w.ticket < me.ticket)
           order by w.ticket
           limit 1) f on true
        left join lateral (
          select o.expires_at
            from waiter w join holder o on o.id = w.holder_id
           where w.lease = u.n and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > v_now
             and w.ticket < me.ticket
           order by w.ticket desc
           limit 1) b on true
       cross join lateral (
         select case when l.name is null then 'contended'
                     when l.sequence <> p_sequence then 'sequence'
                     -- Whoever wants a place and has none was kept from it, or was granted the lease in the middle of this.
                     when me.ticket is null and (p_stand or p_tickets is not null) then 'contended'
                     when a.free_at > v_now and h.ended_at is null and h.expires_at > v_now and l.deadline > v_now then 'held'
                     when a.free_at > v_now then 'not_yet'
                     when f.expires_at is not null and not p_barge then 'queued'
                     when is_fenced(u.n) then 'draining'
                     else 'contended' end as reason) r;
  end if;
end $$;

-- Makes a token sequence, or has one that is there go on in another way: 'counter' or 'clock'. Safe at any time, in either direction: the
-- next token is greater than the last one. Returns the last token. For operators.
create function fencepost.set_sequence_kind(p_sequence text, p_kind text) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_last bigint;
begin
  if p_kind is null or p_kind not in ('counter', 'clock') then
    raise exception 'a token sequence is of kind counter or clock' using errcode = '22023';
  end if;
  -- Whoever relies on it must not find it undone after a crash.
  perform be_certain();
  insert into token_sequence (name, follows_clock) values (p_sequence, p_kind = 'clock')
  on conflict (name) do update set follows_clock = excluded.follows_clock
  returning last_token into v_last;
  return v_last;
end $$;

-- Which of these terms of the holder the database does not know (any more), as after a failover that has lost the last grants. token: under
-- which the lease is the holder's here, because its end was lost as well; null when it is not. For a holder that finds itself at
-- another server than before.
create function fencepost.missing_terms(p_holder uuid, p_names text[], p_tokens bigint[]) returns table (name text, token bigint)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
begin
  return query
    select t.name, l.token
      from unnest(p_names, p_tokens) t (name, token)
      -- By itself for each name: joined, all leases there are would be looked at.
      left join lateral (select l.token from lease l where l.name = t.name and l.holder_id = p_holder limit 1) l on true
     where l.token is distinct from t.token;
end $$;

-- The leases that are the holder's here by what it asked for up to this attempt, apart from those that are named: where it holds none of them,
-- their release was lost in a failover, and as long as the holder lives nobody else would get them. Terms that end by themselves are left
-- to do so. It reads all leases.
create function fencepost.stray_terms(p_holder uuid, p_names text[], p_attempt bigint)
returns table (name text, token bigint, sequence text, ticket bigint)
language sql security definer
set search_path = fencepost, pg_temp as $$
  select l.name, l.token, l.sequence, l.ticket
    from lease l
   where l.holder_id = p_holder and l.attempt <= p_attempt and l.deadline = 'infinity'
     and l.name not in (select n from unnest(p_names) n)
$$;

revoke all on function
  fencepost.clock_base(bigint),
  fencepost.token_base(bigint, boolean),
  fencepost.set_sequence_kind(text, text),
  fencepost.missing_terms(uuid, text[], bigint[]),
  fencepost.stray_terms(uuid, text[], bigint)
from public;

-- What people look at. ahead: how far the last token of a clock sequence is ahead of the clock, until which it only counts.
create view fencepost.sequences as
select s.name,
       case when s.follows_clock then 'clock' else 'counter' end as kind,
       s.last_token,
       case when s.follows_clock
            -- The difference first: all of the last token may be more than an interval takes.
            then greatest(0, s.last_token - (extract(epoch from clock_timestamp()) * 1000000)::bigint) * interval '1 microsecond' end as ahead
  from fencepost.token_sequence s;

-- Who could use leases before can look at them, and may not change them.
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
    execute 'grant select on fencepost.sequences to ' || v_role;
    execute 'grant execute on function fencepost.clock_base(bigint), fencepost.token_base(bigint, boolean), '
      'fencepost.missing_terms(uuid, text[], bigint[]), fencepost.stray_terms(uuid, text[], bigint) to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 11';

-- Down Migration

drop view fencepost.sequences;
drop function fencepost.stray_terms(uuid, text[], bigint);
drop function fencepost.missing_terms(uuid, text[], bigint[]);
drop function fencepost.set_sequence_kind(text, text);

-- As 0006 has them.
create or replace function fencepost.draw_tokens(p_sequence text, p_count integer) returns bigint
language plpgsql as $$
declare
  v_base bigint;
begin
  loop
    update fencepost.token_sequence s set last_token = s.last_token + p_count
     where s.name = p_sequence
    returning s.last_token - p_count into v_base;
    if found then
      return v_base;
    end if;
    insert into fencepost.token_sequence (name) values (p_sequence) on conflict do nothing;
  end loop;
end $$;

create or replace function fencepost.acquire(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default',
  p_stand boolean default false, p_barge boolean default false,
  p_min_hold_ms bigint default 0, p_max_hold_ms bigint default null, p_grace_ms bigint default 0,
  p_tickets bigint[] default null
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint,
  ticket bigint, again_ms bigint, deadline_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_deadline timestamptz;
  v_available_at timestamptz;
  v_grace interval;
  v_since_ms bigint;
  v_remaining_ms bigint;
  v_holder record;
  v_names text[] := p_names;
  v_queued text[] := '{}';
  v_mine text[];
  v_locked text[];
  v_expired uuid[];
  v_taken text[];
  v_free text[];
  v_fresh text[];
  v_unknown text[];
  v_held uuid[];
  v_behind text[];
  v_refused text[];
  v_count integer;
  v_base bigint;
begin
  select h.ended_at, h.expires_at, h.voided_attempt into v_holder from holder h where h.id = p_holder;
  if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
    raise exception 'the holder has expired or ended' using errcode = 'FP002';
  end if;

  if p_tickets is not null then
    perform be_certain();
    loop
      -- What has been granted by one of the tickets, and what is still in line, as one statement sees it: a grant takes the place.
      -- A term that is over already is no grant any more.
      select array_agg(r.name) filter (where l.ticket = r.ticket and l.deadline > clock_timestamp()),
             array_agg(r.name) filter (where w.ticket = r.ticket and l.ticket is distinct from r.ticket)
        into v_mine, v_names
        from unnest(p_names, p_tickets) r (name, ticket)
        left join lease l on l.name = r.name and l.holder_id = p_holder
        left join lateral (
          select w.ticket from waiter w where w.holder_id = p_holder and w.lease = r.name limit 1) w on true;
      exit when v_mine is null;
      -- Whoever granted it may not know yet whether a standby has it. The lock of a row is written to the log, and our commit waits
      -- for that. KEY SHARE passes a fenced transaction of the term, and keeps the term from being let go until this is answered.
      with mine as materialized (
        select l.name
          from lease l join unnest(p_names, p_tickets) r (name, ticket) on l.name = r.name
         where l.holder_id = p_holder and l.ticket = r.ticket and l.deadline > clock_timestamp()
         order by l.name
           for key share of l)
      select array_agg(m.name) into v_locked from mine m;
      -- What came or went between the two is looked at once more.
      exit when cardinality(v_locked) = cardinality(v_mine);
    end loop;
    return query
      select l.name, l.token, null::text, null::text, null::text, null::integer,
             (extract(epoch from l.granted_at) * 1000)::bigint,
             (extract(epoch from least(v_holder.expires_at, l.deadline) - clock_timestamp()) * 1000)::bigint,
             l.ticket, null::bigint, (extract(epoch from nullif(l.deadline, 'infinity') - clock_timestamp()) * 1000)::bigint
        from lease l
       where l.name = any (v_mine);
    return query
      select n, null::bigint, 'gone', null::text, null::text, null::integer, null::bigint, null::bigint,
             null::bigint, null::bigint, null::bigint
        from unnest(p_names) n
       where not exists (select from unnest(v_mine || v_names) other where other = n);
    if v_names is null then
      return;
    end if;
  end if;

  -- Mostly nobody waits for anything.
  if not p_barge and exists (select from waiter) then
    v_queued := queued(v_names, p_holder);
  end if;

  -- Rows that nobody holds, which is what is granted nearly always. A look at the lease alone: where the lock has to follow a row that
  -- somebody else has just changed, what is compared is what has been locked. SKIP LOCKED, because an open fenced transaction may
  -- hold the row for long and because another taker who holds it is about to win.
  with seen as materialized (
    select l.name
      from lease l
     where l.name = any (v_names)
       and l.holder_id is null
       and l.sequence = p_sequence
       and l.available_at <= clock_timestamp()
       and l.name <> all (v_queued)
     order by l.name
       for update of l skip locked)
  select array_agg(s.name) into v_free from seen s;

  if coalesce(cardinality(v_free), 0) < cardinality(v_names) then
    -- Rows whose term looks over, and for which nobody alive stands in line before us.
    with seen as materialized (
      select l.name, case when h.ended_at is null and h.expires_at <= clock_timestamp() then h.id end as expired
        from lease l left join holder h on h.id = l.holder_id
       where l.name = any (v_names)
         and l.holder_id is not null
         and l.sequence = p_sequence
         and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) <= clock_timestamp()
         and l.name <> all (v_queued)
       order by l.name
         for update of l skip locked)
    select array_agg(s.name), array_agg(distinct s.expired) filter (where s.expired is not null)
      into v_locked, v_expired
      from seen s;

    select array_agg(n order by n) into v_unknown
      from unnest(v_names) n
     where not exists (select from lease l where l.name = n);
  end if;

  if v_free is not null or v_locked is not null or v_unknown is not null then
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
    if p_tickets is null and v_holder.voided_attempt >= p_attempt then
      raise exception 'this attempt was given up by its sender' using errcode = 'FP004';
    end if;
    if v_expired is not null then
      perform from holder h where h.id = any (v_expired) and h.id > p_holder order by h.id for update;
      -- The expiry is compared again under the lock: a beat in flight and a take-over cannot both win.
      update holder h set ended_at = clock_timestamp()
       where h.id = any (v_expired) and h.ended_at is null and h.expires_at <= clock_timestamp();
    end if;
    if v_locked is not null then
      -- Once more, with a snapshot of its own: where the lock had to follow a row that somebody else had just changed, the rows beside it
      -- were those of the statement's beginning, when the new holder may not have been there yet. Nobody can change them now: to let a
      -- lease go, take it or stand in its line one locks it. A holder that only ran out just now has not been ended: another time.
      if not p_barge and exists (select from waiter) then
        v_queued := queued(v_locked, p_holder);
      end if;
      select array_agg(l.name) into v_taken
        from lease l left join holder h on h.id = l.holder_id
       where l.name = any (v_locked)
         and free_at(l.available_at, l.deadline, l.grace,
                     case when h.ended_at is not null then h.expires_at when h.id is not null then 'infinity' end,
                     h.ended_at) <= clock_timestamp()
         and l.name <> all (v_queued);
      v_free := v_free || v_taken;
    end if;

    if p_tickets is not null then
      -- A lease that somebody has deleted by hand has no line either.
      delete from waiter w where w.holder_id = p_holder and w.lease = any (v_unknown);
      -- Of those that are free, the ones whose place in line is still there. Nobody can take it from now on.
      select array_agg(s.lease) into v_free
        from (select w.lease from waiter w
               where w.holder_id = p_holder and w.lease = any (v_free)
                 for update skip locked) s;
    elsif v_unknown is not null then
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
  v_refused := v_names;
  if v_count > 0 and v_count < cardinality(v_names) then
    v_refused := array(select n from unnest(v_names) n where n <> all (v_free));
  end if;

  if p_stand and p_tickets is null and v_count < cardinality(v_names) then
    -- Standing in line, before any token is drawn. Nothing here waits but for our own row: see grant_next().
    if v_count = 0 and pg_current_xact_id_if_assigned() is null then
      -- A place in line that is lost in a crash is taken again. Asked before the first lock, which assigns a transaction id.
      perform set_config('synchronous_commit', 'off', true);
    end if;
    select h.ended_at, h.expires_at, h.voided_attempt into v_holder
      from holder h where h.id = p_holder for key share;
    if not found or v_holder.ended_at is not null or v_holder.expires_at <= clock_timestamp() then
      raise exception 'the holder has expired or ended' using errcode = 'FP002';
    end if;
    if v_holder.voided_attempt >= p_attempt then
      raise exception 'this attempt was given up by its sender' using errcode = 'FP004';
    end if;
    -- FOR SHARE keeps everybody from letting the lease go or taking it until this commits, but no fenced transaction from going on.
    select array_agg(s.name), array_agg(distinct s.holder_id) filter (where s.holder_id is not null)
      into v_mine, v_held
      from (select l.name, l.holder_id
              from lease l
             where l.name = any (v_refused) and l.sequence = p_sequence
             order by l.name
               for share skip locked) s;
    -- KEY SHARE keeps everybody from ending the holder.
    select array_agg(s.id) into v_held
      from (select h.id from holder h where h.id = any (v_held) order by h.id for key share skip locked) s;
    -- Where nobody holds the lease, nobody will hand it over: somebody who is alive and stands before us has to wake us when he leaves,
    -- and KEY SHARE keeps him from leaving until he can see us.
    select array_agg(b.lease) into v_behind
      from unnest(v_mine) m (name)
      join lease l on l.name = m.name
      left join holder h on h.id = l.holder_id
     cross join lateral (
       select w.lease
         from waiter w join holder o on o.id = w.holder_id
        where w.lease = l.name and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > clock_timestamp()
        order by w.ticket
        limit 1
          for key share of w skip locked) b
     where h.id is null or h.ended_at is not null or h.expires_at <= clock_timestamp() or l.deadline <= clock_timestamp();
    v_queued := queued(v_mine, p_holder);
    -- As it is under the locks. What is free by now is asked for again instead, unless others are before us in line or a fenced
    -- transaction keeps it.
    insert into waiter (lease, holder_id, attempt, min_hold, max_hold, grace)
    select l.name, p_holder, p_attempt, p_min_hold_ms * interval '1 ms', p_max_hold_ms * interval '1 ms',
           p_grace_ms * interval '1 ms'
      from unnest(v_mine) with ordinality m (name, place)
      join lease l on l.name = m.name
      left join holder h on h.id = l.holder_id
     where case when h.ended_at is null and h.expires_at > clock_timestamp() and l.deadline > clock_timestamp()
                then h.id = any (v_held)
                when free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) > clock_timestamp()
                then (h.id is null or h.ended_at is not null or h.id = any (v_held))
                     and (l.name = any (v_behind) or l.name <> all (v_queued))
                else is_fenced(l.name) or l.name = any (v_behind) end
     order by m.place
    on conflict do nothing;
  end if;

  if v_count > 0 then
    -- A grant that was answered must survive a crash.
    if current_setting('synchronous_commit') in ('off', 'local') or current_setting('client_min_messages') = 'error' then
      perform be_certain();
    end if;
    v_base := draw_tokens(p_sequence, v_count);
    v_now := clock_timestamp();
    if p_tickets is null then
      -- What is the same for all is worked out once.
      v_deadline := coalesce(v_now + p_max_hold_ms * interval '1 ms', 'infinity');
      v_available_at := case when p_min_hold_ms > 0 then v_now + p_min_hold_ms * interval '1 ms' else '-infinity' end;
      v_grace := p_grace_ms * interval '1 ms';
      v_since_ms := extract(epoch from v_now) * 1000;
      v_remaining_ms := extract(epoch from least(v_holder.expires_at, v_deadline) - v_now) * 1000;
      return query
        update lease l
           set token = v_base + f.place, holder_id = p_holder, attempt = p_attempt, ticket = null, granted_at = v_now,
               deadline = v_deadline, available_at = v_available_at, grace = v_grace
          from unnest(v_free) with ordinality f (name, place)
         where l.name = f.name
        returning l.name, l.token, null::text, null::text, null::text, null::integer, v_since_ms, v_remaining_ms,
                  null::bigint, null::bigint, p_max_hold_ms;
    else
      return query
        with served as (
          delete from waiter w
           using unnest(v_free) with ordinality f (name, place)
           where w.holder_id = p_holder and w.lease = f.name
          returning w.lease, w.ticket, w.attempt, w.min_hold, w.max_hold, w.grace, f.place)
        update lease l
           set token = v_base + s.place, holder_id = p_holder, attempt = s.attempt, ticket = s.ticket, granted_at = v_now,
               deadline = coalesce(v_now + s.max_hold, 'infinity'),
               available_at = case when s.min_hold > interval '0' then v_now + s.min_hold else '-infinity' end,
               grace = s.grace
          from served s
         where l.name = s.lease
        returning l.name, l.token, null::text, null::text, null::text, null::integer,
                  (extract(epoch from v_now) * 1000)::bigint,
                  (extract(epoch from least(v_holder.expires_at, l.deadline) - v_now) * 1000)::bigint,
                  l.ticket, null::bigint, (extract(epoch from nullif(l.deadline, 'infinity') - v_now) * 1000)::bigint;
    end if;
  end if;

  if v_count < cardinality(v_names) then
    v_now := clock_timestamp();
    return query
      select u.n, null::bigint, r.reason,
             case r.reason when 'sequence' then l.sequence when 'queued' then f.label else h.label end,
             case r.reason when 'queued' then f.host else h.host end,
             case r.reason when 'queued' then f.pid else h.pid end,
             (extract(epoch from case r.reason when 'queued' then f.since else l.granted_at end) * 1000)::bigint,
             greatest(0, ceil(extract(epoch from case r.reason when 'held' then least(h.expires_at, l.deadline)
                                                               when 'not_yet' then a.free_at
                                                               when 'queued' then f.expires_at end - v_now) * 1000))::bigint,
             me.ticket,
             case when r.reason = 'contended' then 0
                  else greatest(0, ceil(extract(epoch from coalesce(b.expires_at, nullif(a.free_at, '-infinity')) - v_now) * 1000))
             end::bigint,
             null::bigint
        from unnest(v_refused) u (n)
        left join lease l on l.name = u.n
        left join holder h on h.id = l.holder_id
        -- By itself for each name: joined, all places of the holder would be compared with all names.
        left join lateral (
          select w.ticket from waiter w
           where w.holder_id = p_holder and w.lease = u.n and (p_stand or p_tickets is not null)
           limit 1) me on true
       cross join lateral (
         select free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) as free_at) a
        -- The first in line, and the one just before us: as long as that one lives, it is not our turn.
        left join lateral (
          select w.since, o.label, o.host, o.pid, o.expires_at
            from waiter w join holder o on o.id = w.holder_id
           where w.lease = u.n and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > v_now
             and (me.ticket is null or w.ticket < me.ticket)
           order by w.ticket
           limit 1) f on true
        left join lateral (
          select o.expires_at
            from waiter w join holder o on o.id = w.holder_id
           where w.lease = u.n and w.holder_id <> p_holder and o.ended_at is null and o.expires_at > v_now
             and w.ticket < me.ticket
           order by w.ticket desc
           limit 1) b on true
       cross join lateral (
         select case when l.name is null then 'contended'
                     when l.sequence <> p_sequence then 'sequence'
                     -- Whoever wants a place and has none was kept from it, or was granted the lease in the middle of this.
                     when me.ticket is null and (p_stand or p_tickets is not null) then 'contended'
                     when a.free_at > v_now and h.ended_at is null and h.expires_at > v_now and l.deadline > v_now then 'held'
                     when a.free_at > v_now then 'not_yet'
                     when f.expires_at is not null and not p_barge then 'queued'
                     when is_fenced(u.n) then 'draining'
                     else 'contended' end as reason) r;
  end if;
end $$;

-- As 0008 has it.
create or replace function fencepost.acquire_batch(
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

-- As 0010 has it.
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

drop function fencepost.token_base(bigint, boolean);
drop function fencepost.clock_base(bigint);
-- A sequence goes on from where it is, as a counter.
alter table fencepost.token_sequence drop column follows_clock;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 10';
