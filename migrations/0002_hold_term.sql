-- Up Migration

-- The heart of the fence as a function of its own, because from now on two callers need it: fence(), and the triggers
-- of protected tables. A database that only guards data (see fence-only/) has its own.

-- Locks the lease row FOR SHARE, so that until this transaction ends no newer term can be granted, and checks the term
-- with a clock that is read after the lock. Raises FP001 stale, FP002 expired, FP003 unknown here.
-- p_is_held: this transaction has held the term before, so an expired holder may go on with it (but not begin another),
-- and the holder is not looked at; "ttl" is null then.
-- Runs with its caller's rights and settings, which are those of the schema's owner.
create function fencepost.hold_term(
  p_name text, p_token bigint, p_holder uuid, p_is_held boolean, out ttl interval, out deadline timestamptz
) language plpgsql as $$
declare
  v_current bigint;
begin
  -- The row, and every clock after it. The advisory lock shows that a fenced transaction is open.
  select l.deadline, pg_catalog.pg_advisory_xact_lock_shared(1178947139, pg_catalog.hashtext(p_name))
    into hold_term.deadline
    from fencepost.lease l where l.name = p_name and l.token = p_token and l.holder_id = p_holder
     for share of l;
  if not found then
    select l.token into v_current from fencepost.lease l where l.name = p_name;
    -- A lease that was granted here leaves its row, with a token that is not smaller, or at least its holder, until both
    -- are purged.
    if (v_current is null or p_token > v_current)
       and not exists (select from fencepost.holder h where h.id = p_holder) then
      raise exception 'this database knows no lease "%" with token %', p_name, p_token
        using errcode = 'FP003', detail = json_build_object('by', 'lease', 'lease', p_name)::text;
    end if;
    raise exception 'token % of lease "%" is stale', p_token, p_name
      using errcode = 'FP001',
            detail = json_build_object('by', 'lease', 'lease', p_name, 'current', v_current::text)::text;
  end if;
  if p_is_held then
    return;
  end if;
  select h.ttl into hold_term.ttl
    from fencepost.holder h where h.id = p_holder and h.ended_at is null and h.expires_at > clock_timestamp();
  if not found or hold_term.deadline <= clock_timestamp() then
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
      -- Where the snapshot is older than the last heartbeat, this raises 40001.
      perform from fencepost.holder h where h.id = p_holder for share;
    end if;
    raise exception 'the holder of lease "%" (token %) has expired', p_name, p_token
      using errcode = 'FP002', detail = json_build_object('by', 'lease', 'lease', p_name)::text;
  end if;
end $$;

-- The terms that the fence locks, under one name in both kinds of databases.
create view fencepost.current_term as
select l.name, l.token, l.holder_id from fencepost.lease l;

-- Whether the term is the latest and its holder alive, without any lock: for what must not have a transaction id yet.
create function fencepost.is_current_term(p_name text, p_token bigint, p_holder uuid) returns boolean
language sql stable as $$
  select exists (
    select from fencepost.lease l join fencepost.holder h on h.id = l.holder_id
     where l.name = p_name and l.token = p_token and l.holder_id = p_holder and l.deadline > clock_timestamp()
       and h.ended_at is null and h.expires_at > clock_timestamp())
$$;

revoke all on function fencepost.hold_term(text, bigint, uuid, boolean) from public;
revoke all on function fencepost.is_current_term(text, bigint, uuid) from public;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 2';

-- Down Migration

drop view fencepost.current_term;
drop function fencepost.is_current_term(text, bigint, uuid);
drop function fencepost.hold_term(text, bigint, uuid, boolean);

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 1';
