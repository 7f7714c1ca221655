-- Up Migration

-- Waiting in line, and terms with bounds of their own: a minimum hold, a maximum hold, and a grace after a crash.
--
-- How a wait works, and why no wake-up is lost:
--   * acquire(p_stand => true) tries, and where it is refused it stands in line: a row in waiter, with a ticket. A holder stands
--     once for a lease; callers of one process queue up behind each other there.
--   * Whoever lets a lease go (release, leave, give_back, hand_on) grants it, in the same transaction, to the first in line
--     who is alive, and gets the wake-up for that one back. It sends it with wake(), a statement of its own, after the commit. So
--     between two terms of a lease somebody waits for there is no gap, and the waiter needs no statement of its own.
--   * The wake-up names ticket and token, and proves with the holder's secret that the database has granted them: whoever listens
--     on the channel can neither use it nor forge one.
--   * To stand in line one locks the lease row FOR SHARE and looks once more whether it is held. Letting go locks the row
--     FOR UPDATE first and looks for waiters after that. So one of the two sees the other.
--   * A lease that nobody holds (its holder died, or it is withheld) is not handed over: the first in line asks for it, and when he
--     leaves he wakes the next. So whoever stands in line there locks one of those before him FOR KEY SHARE, and who leaves locks
--     the one he wakes: nobody leaves without having seen who relies on him.
--   * A wake-up may still be lost: the sender died, the queue was full, nobody listened. Then the waiter asks with its ticket
--     (p_tickets) when the holder's time is up, and is told that it has been granted. Asking with a ticket can be repeated, because
--     a ticket is good for one grant.
--
-- Locks, beside the rules of 0001: nobody waits for a row of waiter while it holds another lock (skip locked), except for its own.

create table fencepost.waiter (
  lease text collate "C" not null,
  -- The order in the line.
  ticket bigint not null generated always as identity,
  holder_id uuid not null,
  since timestamptz not null default clock_timestamp(),
  -- Which of its holder's attempts has put it here.
  attempt bigint not null,
  min_hold interval not null,
  max_hold interval,
  grace interval not null,
  primary key (lease, ticket),
  constraint waiter_stands_once unique (holder_id, lease),
  constraint waiter_lease_length check (octet_length(lease) between 1 and 512),
  -- Whoever lets the lease go computes with them, so what no clock can reach is refused here.
  constraint waiter_bounds check (
    min_hold between '0' and '1 day' and max_hold between '0' and '366 days' and grace between '0' and '1 day')
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

alter table fencepost.lease
  -- How long after its holder's end the lease stays closed, unless it was released.
  add column grace interval not null default '0',
  -- Everybody who looks at the lease computes with it. And holders are remembered for a day.
  add constraint lease_grace_bounds check (grace between '0' and '1 day'),
  -- The place in line by which this term was granted; null when it was not by waiting.
  add column ticket bigint;

-- When the lease may be granted. A holder that is not there (any more) counts as a release.
create function fencepost.free_at(
  p_available_at timestamptz, p_deadline timestamptz, p_grace interval, p_expires_at timestamptz, p_ended_at timestamptz
) returns timestamptz
language sql stable as $$
  select case when p_expires_at is null then p_available_at
              else greatest(p_available_at, least(p_deadline, p_expires_at, p_ended_at) + p_grace) end
$$;

-- Those of the leases for which somebody who is alive stands in line before this holder. The plan is bound to one look per name, because
-- nothing that is known of the table when it is made tells how long a line will be.
create function fencepost.queued(p_names text[], p_holder uuid) returns text[]
language plpgsql
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
begin
  return array(
    select n
      from unnest(p_names) n
      left join lateral (
        select w.ticket from waiter w where w.holder_id = p_holder and w.lease = n limit 1) me on true
     cross join lateral (
       select from waiter w join holder h on h.id = w.holder_id
        where w.lease = n and w.holder_id <> p_holder and (me.ticket is null or w.ticket < me.ticket)
          and h.ended_at is null and h.expires_at > clock_timestamp()
        order by w.ticket
        limit 1) f);
end $$;

-- What a waiter is told when it has been granted the lease: the ticket, the token, and a proof that the database has done it. The
-- lease is in the proof, because tickets may be given out once more after a crash.
create function fencepost.wake_up(p_name text, p_holder uuid, p_ticket bigint, p_token bigint) returns text
language sql stable as $$
  select p_ticket || ':' || p_token || ':' || left(encode(sha256(convert_to(
           p_holder || ':' || p_ticket || ':' || p_token || ':' || p_name, 'UTF8')), 'hex'), 24)
$$;

-- Sends wake-ups. A statement of its own, because a notification that cannot be sent (the queue is full) takes its transaction
-- with it, and because those that notify commit one at a time.
create function fencepost.wake(p_wakes text[]) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  perform pg_notify('fencepost', w) from unnest(p_wakes) w;
end $$;

-- Draws p_count tokens: those after the one returned. Locks the sequence until the transaction ends, so it comes last.
-- Runs with its caller's settings.
create function fencepost.draw_tokens(p_sequence text, p_count integer) returns bigint
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

-- Takes the dead out of the line who stand before these: they would be looked at again and again.
create function fencepost.forget_dead(p_names text[], p_tickets bigint[]) returns void
language sql
set search_path = fencepost, pg_temp
set enable_seqscan = off as $$
  delete from waiter w
   where w.lease = any (p_names)
     and w.ticket in (
       select d.ticket
         from unnest(p_names, p_tickets) s (name, ticket)
         join waiter d on d.lease = s.name and d.ticket < s.ticket
        where not exists (select from holder h
                           where h.id = d.holder_id and h.ended_at is null and h.expires_at > clock_timestamp())
          for update of d skip locked)
$$;

-- Grants leases to the first in line of each who is alive, where there is one and the lease is not closed for a while. The caller
-- has locked the rows FOR UPDATE and knows that they are free, or its own to give. Returns whom to wake; without a grant, to ask again.
create function fencepost.grant_next(p_names text[]) returns table (name text, wake text)
language plpgsql
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_next record;
  v_group record;
  v_base bigint;
  v_now timestamptz;
begin
  with next as materialized (
    select l.name, l.sequence, l.available_at, n.ticket, n.holder_id
      from lease l
     cross join lateral (
       select w.ticket, w.holder_id
         from waiter w join holder h on h.id = w.holder_id
        where w.lease = l.name and h.ended_at is null and h.expires_at > clock_timestamp()
        order by w.ticket
        limit 1
          -- Who is just leaving, or being ended, is passed over. A heartbeat does not stand in the way of KEY SHARE.
          for update of w skip locked
          for key share of h skip locked) n
     where l.name = any (p_names))
  select array_agg(n.name) as names, array_agg(n.sequence) as sequences, array_agg(n.ticket) as tickets,
         array_agg(n.holder_id) as holders, array_agg(n.available_at) as available
    into v_next
    from next n;

  for v_group in
    select n.sequence, array_agg(n.name order by n.name) as names, array_agg(n.ticket order by n.name) as tickets
      from unnest(v_next.names, v_next.sequences, v_next.tickets, v_next.holders, v_next.available)
             n (name, sequence, ticket, holder_id, available_at)
     where n.available_at <= clock_timestamp()
       -- The expiry is compared again under the lock.
       and exists (select from holder h where h.id = n.holder_id and h.expires_at > clock_timestamp())
     group by n.sequence
     order by n.sequence
  loop
    -- A waiter that is told of a grant must be able to rely on it.
    perform be_certain();
    v_base := draw_tokens(v_group.sequence, cardinality(v_group.names));
    v_now := clock_timestamp();
    return query
      with served as (
        delete from waiter w
         using unnest(v_group.names, v_group.tickets) with ordinality s (name, ticket, place)
         where w.lease = s.name and w.ticket = s.ticket
        returning w.lease, w.ticket, w.holder_id, w.attempt, w.min_hold, w.max_hold, w.grace, s.place)
      update lease l
         set token = v_base + s.place, holder_id = s.holder_id, attempt = s.attempt, ticket = s.ticket, granted_at = v_now,
             deadline = coalesce(v_now + s.max_hold, 'infinity'),
             available_at = case when s.min_hold > interval '0' then v_now + s.min_hold else '-infinity' end,
             grace = s.grace
        from served s
       where l.name = s.lease
      returning l.name, wake_up(l.name, l.holder_id, l.ticket, l.token);
    perform forget_dead(v_group.names, v_group.tickets);
  end loop;

  return query
    select n.name, n.ticket::text
      from unnest(v_next.names, v_next.tickets, v_next.available) n (name, ticket, available_at)
     where n.available_at > clock_timestamp();
end $$;

-- Lets leases go that the caller has locked FOR UPDATE: to the first in line, or free. Returns whom to wake; rows of those who were
-- passed over are without a name.
create function fencepost.let_go(p_names text[]) returns table (name text, wake text)
language plpgsql
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_waited text[];
  v_answered text[] := '{}';
begin
  update lease l set holder_id = null where l.name = any (p_names) and l.holder_id is not null;
  -- A statement of its own after the lock, so that whoever stood in line before it is seen.
  v_waited := array(select w.lease from waiter w where w.lease = any (p_names) group by w.lease);
  if v_waited = '{}' then
    return;
  end if;
  for name, wake in
    select g.name, g.wake from grant_next(v_waited) g
  loop
    v_answered := v_answered || name;
    return next;
  end loop;
  if cardinality(v_answered) < cardinality(v_waited) then
    -- Nobody in line is alive, or all were passed over because somebody was working on their rows. For one of them that may come to
    -- nothing, and he asks in vain as long as the others are there. So all of them are woken.
    return query
      select null::text, w.ticket::text
        from waiter w join holder h on h.id = w.holder_id
       where w.lease = any (array(select u.n from unnest(v_waited) u (n) except all select a.n from unnest(v_answered) a (n)))
         and h.ended_at is null and h.expires_at > clock_timestamp();
  end if;
end $$;

-- Whom to wake because somebody has left the line before him: the first one may have become the first just now. Call it after the
-- places are gone, and nothing that waits after it.
create function fencepost.next_after(p_names text[], p_tickets bigint[]) returns setof text
language sql
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
  select coalesce(held.ticket, free.ticket)::text
    from (select r.name, min(r.ticket) as ticket from unnest(p_names, p_tickets) r (name, ticket) group by r.name) r
    left join lateral (
      select true as is_held
        from lease l join holder h on h.id = l.holder_id
       where l.name = r.name and h.ended_at is null and h.expires_at > clock_timestamp() and l.deadline > clock_timestamp()) l on true
    left join lateral (
      select w.ticket
        from waiter w join holder h on h.id = w.holder_id
       where l.is_held and w.lease = r.name and h.ended_at is null and h.expires_at > clock_timestamp()
       order by w.ticket
       limit 1) held on true
    left join lateral (
      select w.ticket
        from waiter w join holder h on h.id = w.holder_id
       where l.is_held is null and w.lease = r.name and h.ended_at is null and h.expires_at > clock_timestamp()
       order by w.ticket
       limit 1
         -- Nobody will hand over what nobody holds, and of two who leave at once neither sees that the other does. So who is just leaving
         -- is passed over, and whoever is found leaves only after us, and looks then.
         for key share of w skip locked) free on true
   where coalesce(held.ticket, free.ticket) > r.ticket
$$;

drop function fencepost.acquire_all(text[], uuid, bigint, text);
drop function fencepost.acquire(text[], uuid, bigint, text);

-- Asks for leases. One row per name: token when granted, else a reason and who stands in the way.
--   held       another holder is alive
--   queued     it is free, but others are in line: the first of them is named
--   draining   the term is over, but a fenced transaction of it is still open
--   contended  somebody else is taking or giving back this lease right now: ask again
--   not_yet    it may not be granted before remaining_ms have passed: a minimum hold, or the grace after a crash
--   sequence   the lease draws its tokens from another sequence, named in "label"
--   gone       the ticket is not valid any more: ask without it
-- An attempt that finds every lease held reads and writes nothing, unless it stands in line: no transaction id, no WAL.
-- p_attempt grows with every call of one holder; see void_attempts().
-- p_stand: where it is refused, stand in line; the answer has the ticket then. p_barge: do not mind those in line.
-- p_tickets: one per name, from an earlier call: such a call grants what that one asked for, with the bounds it named, and p_attempt
-- and the bounds of this one do not count. The same question may be asked again and again: a ticket is good for one grant.
-- again_ms: when to ask again, unless woken before. For the first in line, when the lease comes free; for the others, when the one before
-- them would be dead, whose turn it is until then.
-- deadline_ms, of a grant: until the end of its maximum hold; null without one.
create function fencepost.acquire(
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

-- Asks for leases all or none: either every name comes back with a token, or none is granted and the rows are those that stand
-- in the way, with the reasons of acquire(). One token each, from one sequence. No order of the names can deadlock: rows that
-- somebody else is working on are never waited for. An attempt that finds one of them held reads only and writes nothing. It never
-- stands in line, and does not pass those who do (unless p_barge).
create function fencepost.acquire_all(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default', p_barge boolean default false,
  p_min_hold_ms bigint default 0, p_max_hold_ms bigint default null, p_grace_ms bigint default 0
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
#variable_conflict use_column
declare
  v_queued text[] := '{}';
  v_asked text[];
  v_granted jsonb;
  v_refused jsonb;
begin
  if not p_barge and exists (select from waiter) then
    v_queued := queued(p_names, p_holder);
  end if;
  -- Names that are plainly not to be had: nothing will come of the others, so only these are asked for, to hear why.
  select array_agg(l.name) into v_asked
    from lease l
    left join holder h on h.id = l.holder_id
   where l.name = any (p_names)
     and (l.sequence <> p_sequence
          or free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) > clock_timestamp()
          or l.name = any (v_queued));
  v_asked := coalesce(v_asked, p_names);
  begin
    select jsonb_agg(to_jsonb(a)) filter (where a.token is not null), jsonb_agg(to_jsonb(a)) filter (where a.token is null)
      into v_granted, v_refused
      from acquire(v_asked, p_holder, p_attempt, p_sequence, false, p_barge, p_min_hold_ms, p_max_hold_ms, p_grace_ms) a;
    if v_granted is not null and (v_refused is not null or cardinality(v_asked) < cardinality(p_names)) then
      -- Takes back what was granted: the block is a subtransaction.
      raise exception 'not all of them are free' using errcode = 'FP008';
    end if;
  exception when sqlstate 'FP008' then
    v_granted := null;
  end;
  if v_granted is null and v_refused is null then
    -- What was held a moment ago has come free meanwhile: another attempt will tell.
    return query
      select n, null::bigint, 'contended', null::text, null::text, null::integer, null::bigint, null::bigint
        from unnest(v_asked) n;
    return;
  end if;
  return query
    select r.name, r.token, r.reason, r.label, r.host, r.pid, r.since_ms, r.remaining_ms
      from jsonb_to_recordset(coalesce(v_granted, v_refused)) r (
        name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint);
end $$;

drop function fencepost.release(text[], bigint[], uuid);

-- Gives leases back. One row per name: released, not_held (the term is not this holder's any more), or draining
-- (a fenced transaction of the term is still open, or somebody stands in line right now: ask again). "wake" is for wake(); with a
-- token in it (a colon) the lease has been handed over. A row without a name has one more to wake. Where nobody is in line it does
-- not wait for the disk: a crash can undo a release that was answered, so a holder that lives on asks once more after its next
-- heartbeat, whose flush carries the release along: "not_held" then means that it is durable.
create function fencepost.release(p_names text[], p_tokens bigint[], p_holder uuid)
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

-- Leaves the line. What has been granted by the ticket meanwhile goes on to the next. One row per name: left, or contended
-- (somebody works on the lease right now: ask again); and rows of whom to wake, which may be without a name.
create function fencepost.leave(p_holder uuid, p_names text[], p_tickets bigint[])
returns table (name text, outcome text, wake text)
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_mine text[];
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  -- Waits for whoever is just granting by one of these tickets, so that the next statement sees it.
  delete from waiter w
   using unnest(p_names, p_tickets) r (name, ticket)
   where w.holder_id = p_holder and w.lease = r.name and w.ticket = r.ticket;
  with mine as materialized (
    select l.name
      from lease l
      join unnest(p_names, p_tickets) r (name, ticket) on l.name = r.name
     where l.holder_id = p_holder and l.ticket = r.ticket
     order by l.name
       for update of l skip locked)
  select coalesce(array_agg(m.name), '{}') into v_mine from mine m;
  -- Nobody has had these terms: no minimum hold follows from them.
  update lease l set available_at = '-infinity' where l.name = any (v_mine) and l.available_at > '-infinity';
  return query
    select n, case when n is not null then 'left' end, g.wake from unnest(v_mine) n full join let_go(v_mine) g on g.name = n;
  return query
    select r.name, case when l.name is null then 'left' else 'contended' end, null::text
      from unnest(p_names, p_tickets) r (name, ticket)
      left join lease l on l.name = r.name and l.holder_id = p_holder and l.ticket = r.ticket
     where not exists (select from unnest(v_mine) other where other = r.name);
  return query select null::text, null::text, a from next_after(p_names, p_tickets) a;
end $$;

drop function fencepost.give_back(uuid, text[], bigint[]);

-- Lets a term end by itself: its holder goes on, but the term does not, unless it is released before. limited; not_held (the term is not
-- this holder's any more); or draining (a fenced transaction of the term is open: ask again). The first in line is woken, to hear
-- when that will be.
create function fencepost.limit_term(
  p_name text, p_token bigint, p_holder uuid, p_within_ms bigint, out outcome text, out wake text
) language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  perform from lease l where l.name = p_name and l.token = p_token and l.holder_id = p_holder for no key update skip locked;
  if found then
    update lease l set deadline = least(l.deadline, clock_timestamp() + p_within_ms * interval '1 ms') where l.name = p_name;
    outcome := 'limited';
    wake := (select a from next_after(array[p_name], array[0]) a);
  else
    outcome := case when exists (select from lease l where l.name = p_name and l.token = p_token and l.holder_id = p_holder)
                    then 'draining' else 'not_held' end;
  end if;
end $$;

-- The second call that closes the question of an acquire whose answer was lost (see void_attempts): what these attempts did grant is
-- given back, and their places in line are left. Each name comes with its own attempt, so that nothing else is touched. Returns
-- whom to wake.
create function fencepost.give_back(p_holder uuid, p_names text[], p_attempts bigint[]) returns setof text
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_left record;
  v_mine text[];
begin
  -- The client forgets the attempt when this is answered, so the answer must survive a crash.
  perform be_certain();
  -- Before the places: a later attempt that stands in line for the same leases holds their rows while it waits for our places to go.
  perform from lease l
    where l.holder_id = p_holder
      and exists (select from unnest(p_names, p_attempts) v (name, attempt) where v.name = l.name and v.attempt = l.attempt)
      and l.name = any (p_names)
    order by l.name
      for update of l;
  with gone as (
    delete from waiter w
     using unnest(p_names, p_attempts) v (name, attempt)
     where w.holder_id = p_holder and w.lease = v.name and w.attempt = v.attempt
    returning w.lease, w.ticket)
  select array_agg(g.lease) as names, array_agg(g.ticket) as tickets into v_left from gone g;
  -- Once more, for what was granted by one of the places meanwhile. Nobody else can lock these for long: no client has heard of the
  -- terms.
  with mine as materialized (
    select l.name
      from lease l
     where l.holder_id = p_holder
       and l.name = any (p_names)
       and exists (select from unnest(p_names, p_attempts) v (name, attempt) where v.name = l.name and v.attempt = l.attempt)
     order by l.name
       for update of l)
  select coalesce(array_agg(m.name), '{}') into v_mine from mine m;
  -- Nobody has had these terms: no minimum hold follows from them.
  update lease l set available_at = '-infinity' where l.name = any (v_mine) and l.available_at > '-infinity';
  return query select g.wake from let_go(v_mine) g;
  return query select a from next_after(v_left.names, v_left.tickets) a;
end $$;

-- What an ended holder leaves behind goes on: its places in line, and the leases that others wait for. A call of its own after
-- end_holder(), so that it sees who stood in line until then. Returns whom to wake.
create function fencepost.hand_on(p_holder uuid) returns setof text
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_left record;
  v_waited text[];
  v_free text[];
begin
  if exists (select from holder h where h.id = p_holder and h.ended_at is null) then
    return;
  end if;
  with gone as (
    delete from waiter w where w.holder_id = p_holder returning w.lease, w.ticket)
  select array_agg(g.lease) as names, array_agg(g.ticket) as tickets into v_left from gone g;
  select array_agg(l.name order by l.name) into v_waited
    from (select distinct w.lease from waiter w) w join lease l on l.name = w.lease
   where l.holder_id = p_holder;
  with free as materialized (
    select l.name
      from lease l left join holder h on h.id = l.holder_id
     where l.name = any (v_waited) and l.holder_id = p_holder
       and free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) <= clock_timestamp()
     order by l.name
       for update of l skip locked)
  select coalesce(array_agg(f.name), '{}') into v_free from free f;
  return query select g.wake from let_go(v_free) g;
  -- Those that stay closed, or are locked: the first in line asks, and hears for how long.
  v_waited := array(select n from unnest(v_waited) n where n <> all (v_free));
  return query
    select a from next_after(v_left.names || v_waited,
                             v_left.tickets || array_fill(0::bigint, array[cardinality(v_waited)])) a;
end $$;

-- Forgets leases that nobody holds or waits for and that were last granted before p_older_than ago, and holders that ended or
-- expired before then. Tokens go on rising: they live in token_sequence. Returns the number of leases forgotten.
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

-- Who waits for what, first in line first. The dead are not shown.
create view fencepost.waiters as
select w.lease,
       row_number() over (partition by w.lease order by w.ticket) as place,
       h.label as holder,
       h.host,
       h.pid,
       w.since
  from fencepost.waiter w
  join fencepost.holder h on h.id = w.holder_id
 where h.ended_at is null and h.expires_at > clock_timestamp();

-- What people and tools look at. The holder's id is left out: it is a secret.
create or replace view fencepost.leases as
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
       case when s.is_held then least(h.expires_at, l.deadline) - clock_timestamp()
            when s.free_at > clock_timestamp() then s.free_at - clock_timestamp() end as remaining,
       case when s.is_held then 'held'
            when fencepost.fence_key(l.name)::bigint & 4294967295 in (select f.key from fenced f) then 'draining'
            when s.free_at > clock_timestamp() then 'withheld'
            when s.is_given_back then 'free'
            else 'expired' end as state,
       l.sequence
  from fencepost.lease l
  left join fencepost.holder h on h.id = l.holder_id
 cross join lateral (
   select h.ended_at is null and h.expires_at > clock_timestamp() and l.deadline > clock_timestamp() as is_held,
          -- Released, or its holder ended before it expired, which only the holder itself does.
          l.holder_id is null or coalesce(h.ended_at < h.expires_at, false) as is_given_back,
          fencepost.free_at(l.available_at, l.deadline, l.grace, h.expires_at, h.ended_at) as free_at) s;

revoke all on function
  fencepost.free_at(timestamptz, timestamptz, interval, timestamptz, timestamptz),
  fencepost.queued(text[], uuid),
  fencepost.wake_up(text, uuid, bigint, bigint),
  fencepost.wake(text[]),
  fencepost.draw_tokens(text, integer),
  fencepost.forget_dead(text[], bigint[]),
  fencepost.grant_next(text[]),
  fencepost.let_go(text[]),
  fencepost.next_after(text[], bigint[]),
  fencepost.acquire(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint, bigint[]),
  fencepost.acquire_all(text[], uuid, bigint, text, boolean, bigint, bigint, bigint),
  fencepost.release(text[], bigint[], uuid),
  fencepost.leave(uuid, text[], bigint[]),
  fencepost.give_back(uuid, text[], bigint[]),
  fencepost.hand_on(uuid),
  fencepost.limit_term(text, bigint, uuid, bigint)
from public;

-- Who could use leases before can do so now: what is made anew has no rights.
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
    execute 'grant execute on function fencepost.free_at(timestamptz, timestamptz, interval, timestamptz, timestamptz), fencepost.wake(text[]), '
      'fencepost.acquire(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint, bigint[]), '
      'fencepost.acquire_all(text[], uuid, bigint, text, boolean, bigint, bigint, bigint), '
      'fencepost.release(text[], bigint[], uuid), fencepost.leave(uuid, text[], bigint[]), '
      'fencepost.give_back(uuid, text[], bigint[]), fencepost.hand_on(uuid), fencepost.limit_term(text, bigint, uuid, bigint) to ' || v_role;
    execute 'grant select on fencepost.waiters to ' || v_role;
  end loop;
  -- Who could only look at the leases can still do so: a view calls functions with the rights of whoever looks.
  for v_role in
    select distinct coalesce(pg_catalog.quote_ident(r.rolname), 'public')
      from pg_catalog.pg_proc p
     cross join pg_catalog.aclexplode(p.proacl) a
      left join pg_catalog.pg_roles r on r.oid = a.grantee
     where p.oid = 'fencepost.fence_key(text)'::regprocedure and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
  loop
    execute 'grant execute on function fencepost.free_at(timestamptz, timestamptz, interval, timestamptz, timestamptz) to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 6';

-- Down Migration

create or replace view fencepost.leases as
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

drop view fencepost.waiters;
drop function fencepost.limit_term(text, bigint, uuid, bigint);
drop function fencepost.hand_on(uuid);
drop function fencepost.give_back(uuid, text[], bigint[]);
drop function fencepost.leave(uuid, text[], bigint[]);
drop function fencepost.release(text[], bigint[], uuid);
drop function fencepost.acquire_all(text[], uuid, bigint, text, boolean, bigint, bigint, bigint);
drop function fencepost.acquire(text[], uuid, bigint, text, boolean, boolean, bigint, bigint, bigint, bigint[]);
drop function fencepost.next_after(text[], bigint[]);
drop function fencepost.let_go(text[]);
drop function fencepost.grant_next(text[]);
drop function fencepost.forget_dead(text[], bigint[]);
drop function fencepost.draw_tokens(text, integer);
drop function fencepost.wake(text[]);
drop function fencepost.wake_up(text, uuid, bigint, bigint);
drop function fencepost.queued(text[], uuid);
drop function fencepost.free_at(timestamptz, timestamptz, interval, timestamptz, timestamptz);
alter table fencepost.lease drop column ticket, drop column grace;
drop table fencepost.waiter;

-- As 0001 and 0005 have made them.
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

create function fencepost.acquire_all(
  p_names text[], p_holder uuid, p_attempt bigint default 1, p_sequence text default 'default'
) returns table (
  name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint
)
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
#variable_conflict use_column
declare
  v_asked text[];
  v_granted jsonb;
  v_refused jsonb;
begin
  -- Names that are plainly not to be had: nothing will come of the others, so only these are asked for, to hear why.
  select array_agg(l.name) into v_asked
    from lease l
    left join holder h on h.id = l.holder_id
   where l.name = any (p_names)
     and (l.sequence <> p_sequence
          or l.available_at > clock_timestamp()
          or l.deadline > clock_timestamp() and h.ended_at is null and h.expires_at > clock_timestamp());
  v_asked := coalesce(v_asked, p_names);
  begin
    select jsonb_agg(to_jsonb(a)) filter (where a.token is not null), jsonb_agg(to_jsonb(a)) filter (where a.token is null)
      into v_granted, v_refused
      from acquire(v_asked, p_holder, p_attempt, p_sequence) a;
    if v_granted is not null and (v_refused is not null or cardinality(v_asked) < cardinality(p_names)) then
      -- Takes back what was granted: the block is a subtransaction.
      raise exception 'not all of them are free' using errcode = 'FP008';
    end if;
  exception when sqlstate 'FP008' then
    v_granted := null;
  end;
  if v_granted is null and v_refused is null then
    -- What was held a moment ago has come free meanwhile: another attempt will tell.
    return query
      select n, null::bigint, 'contended', null::text, null::text, null::integer, null::bigint, null::bigint
        from unnest(v_asked) n;
    return;
  end if;
  return query
    select r.name, r.token, r.reason, r.label, r.host, r.pid, r.since_ms, r.remaining_ms
      from jsonb_to_recordset(coalesce(v_granted, v_refused)) r (
        name text, token bigint, reason text, label text, host text, pid integer, since_ms bigint, remaining_ms bigint);
end $$;

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

revoke all on function
  fencepost.acquire(text[], uuid, bigint, text),
  fencepost.acquire_all(text[], uuid, bigint, text),
  fencepost.release(text[], bigint[], uuid),
  fencepost.give_back(uuid, text[], bigint[])
from public;

-- Who could use leases before can do so now: what is made anew has no rights.
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
    execute 'grant execute on function fencepost.acquire(text[], uuid, bigint, text), fencepost.acquire_all(text[], uuid, bigint, text), '
      'fencepost.release(text[], bigint[], uuid), fencepost.give_back(uuid, text[], bigint[]) to ' || v_role;
  end loop;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 5';
