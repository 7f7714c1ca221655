-- Up Migration

-- For a database that guards data under leases that live in another one. It keeps the highest token that it has seen of
-- each lease and refuses lower ones: the classic fencing rule. A new term announces itself before it writes anything.
-- Followed by the numbered migrations that both kinds of database share (see src/database/migrate.ts); the rules at the
-- head of ../0001_leases_and_fence.sql hold here too.
--
-- This wall is weaker than that of the database that holds the leases: it hears of a term only when that term announces
-- itself here, and it never hears that a holder has expired. docs/other-databases.md says what follows from that.

-- It outlives this migration's removal, because a token that was refused once must never be accepted again.
create table if not exists fencepost.highest_token (
  lease text collate "C" primary key,
  token bigint not null,
  -- The holder's secret, as the term itself is announced with it: an equal token of another holder is no equal term.
  holder_id uuid not null,
  announced_at timestamptz not null default clock_timestamp(),
  constraint highest_token_lease_length check (octet_length(lease) between 1 and 512),
  constraint highest_token_positive check (token > 0)
) with (fillfactor = 70);

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

-- The advisory lock key of a lease: shared by its open fenced transactions, exclusive for a term that announces itself.
create function fencepost.fence_key(p_name text) returns integer
language sql immutable parallel safe as
$$ select hashtext(p_name) $$;

-- Locks the lease's row FOR SHARE, so that until this transaction ends no newer term can announce itself here, and checks
-- that no newer one has. Raises FP001 stale, FP007 not announced. "ttl" is what a paused holder is allowed to be silent for:
-- the real one is not known here.
-- A term that is newer than the highest token announces itself in this transaction: it waits until the fenced transactions
-- of older terms have ended, and until it has committed, other transactions of its own term wait for it.
-- p_is_held: this transaction has held the term before; null: it does nothing but announce it (see announce()).
-- Runs with its caller's rights and settings, which are those of the schema's owner.
create function fencepost.hold_term(
  p_name text, p_token bigint, p_holder uuid, p_is_held boolean, out ttl interval, out deadline timestamptz
) language plpgsql as $$
declare
  v_highest bigint;
begin
  ttl := interval '30 s';
  deadline := 'infinity';
  select h.token into v_highest from fencepost.highest_token h where h.lease = p_name;

  -- A snapshot that is older than the announcement may lack what an older term has committed last, and a whole transaction
  -- would go by it. So above read committed the announcement has to be committed before the transaction begins.
  if not p_is_held
     and current_setting('transaction_isolation') in ('repeatable read', 'serializable')
     and (v_highest is null or v_highest < p_token or current_setting('fencepost.announces', true) <> '') then
    raise exception 'the term of lease "%" with token % has not announced itself in this database', p_name, p_token
      using errcode = 'FP007',
            detail = json_build_object('by', 'lease', 'lease', p_name, 'current', v_highest::text)::text,
            hint = 'Call fencepost.announce() in a transaction of its own first: above read committed a transaction '
                   'cannot announce the term that it writes under.';
  end if;

  if v_highest is null or v_highest < p_token then
    begin
      -- The row alone would do for safety. But row locks are not fair: transactions of an older term that overlap could keep
      -- the announcement waiting for ever. Here they queue behind it.
      perform pg_catalog.pg_advisory_xact_lock(1178947139, pg_catalog.hashtext(p_name));
      -- Waits for the row as well, and compares with it as it is after the wait.
      insert into fencepost.highest_token as known (lease, token, holder_id)
      values (p_name, p_token, p_holder)
      on conflict (lease) do update
         set token = excluded.token, holder_id = excluded.holder_id, announced_at = clock_timestamp()
       where known.token < excluded.token;
      if found then
        return;
      end if;
      -- Somebody else has announced this term or a newer one meanwhile. Undoing this block gives both locks back, which
      -- would otherwise keep the other transactions of the term waiting until this one ends.
      raise exception 'announced meanwhile' using errcode = 'FP009';
    exception when sqlstate 'FP009' then
      null;
    end;
  end if;

  -- The queue first: whoever held the row and waited in the queue for an announcement would wait for ever.
  perform pg_catalog.pg_advisory_xact_lock_shared(1178947139, pg_catalog.hashtext(p_name));
  perform from fencepost.highest_token h
    where h.lease = p_name and h.token = p_token and h.holder_id = p_holder
      -- Until this transaction ends no newer term is announced; above read committed, 40001 when one has been meanwhile.
      for share of h;
  if not found then
    select h.token into v_highest from fencepost.highest_token h where h.lease = p_name;
    raise exception 'token % of lease "%" is stale', p_token, p_name
      using errcode = 'FP001',
            detail = json_build_object('by', 'lease', 'lease', p_name, 'current', v_highest::text)::text;
  end if;
end $$;

-- The terms that the fence locks, under one name in both kinds of databases.
create view fencepost.current_term as
select h.lease as name, h.token, h.holder_id from fencepost.highest_token h;

-- Whether no newer term is known, without any lock: for what must not have a transaction id yet, and so cannot announce it.
create function fencepost.is_current_term(p_name text, p_token bigint, p_holder uuid) returns boolean
language sql stable as $$
  select not exists (
    select from fencepost.highest_token h
     where h.lease = p_name and (h.token > p_token or h.token = p_token and h.holder_id <> p_holder))
$$;

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

-- What people and tools look at. The holder's id is left out: it is a secret.
create view fencepost.announced_terms as
select h.lease, h.token, h.announced_at from fencepost.highest_token h;

revoke all on all functions in schema fencepost from public;

-- Down Migration

-- highest_token stays, so that a later installation refuses what this one refused.
drop view fencepost.announced_terms;
drop view fencepost.current_term;
drop function fencepost.refuse_stale(text, bigint, bigint);
drop function fencepost.is_current_term(text, bigint, uuid);
drop function fencepost.hold_term(text, bigint, uuid, boolean);
drop function fencepost.fence_key(text);
drop function fencepost.be_certain();
drop function fencepost.schema_version();
-- 0003_protected_tables.sql brings it, and leaves it as it was before in a database that holds leases.
drop function if exists fencepost.fence(text, bigint, uuid, bigint, bigint);
