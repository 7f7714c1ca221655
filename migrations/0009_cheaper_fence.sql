-- Up Migration

-- The fence at a lower price. PostgreSQL prepares every expression of a function anew in each transaction, and a fence is called once
-- in each: what counts is how many statements and expressions there are on the way, more than what they do. So the usual case is two
-- statements and two tests, and whatever else there is goes the way of 0002 and 0003.

-- As 0003_protected_tables.sql says, with the same answers. No setting but the search path: the plans of look-ups by key are kept
-- without being told so, and each setting of a function costs every call.
create or replace function fencepost.fence(
  p_name text, p_token bigint, p_holder uuid, p_idle_ms bigint default null, p_timeout_ms bigint default null
) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_deadline timestamptz;
  v_ttl interval;
  v_fence text;
  v_bounds text;
  v_held text;
begin
  -- What hold_term() does: the row, and every clock after it. The advisory lock shows that a fenced transaction is open.
  select l.deadline, pg_advisory_xact_lock_shared(1178947139, hashtext(p_name))
    into v_deadline
    from lease l
   where l.name = p_name and l.token = p_token and l.holder_id = p_holder
     -- Not where this transaction is under a term already.
     and coalesce(current_setting('fencepost.held', true), '') = ''
     for share of l;
  -- The holder, and what bound_transaction() comes down to where nobody has asked for anything and the session has no interval
  -- of its own for looking after its client.
  select set_config('fencepost.held', concat_ws(':', p_token, p_holder, p_name), true)
           || set_config('fencepost.fence', concat_ws(':', p_token, p_holder, p_name), true),
         case when p_idle_ms is null and p_timeout_ms is null and v_deadline = 'infinity'
                   and current_setting('client_connection_check_interval', true) = '0' and version() like '%linux%'
                   and current_setting('client_min_messages') <> 'error' then
           set_config('client_connection_check_interval',
                      greatest(100, (date_part('epoch', h.ttl) * 1000)::bigint / 3)::text, true)
             || case when current_setting('idle_in_transaction_session_timeout') = '0'
                          or current_setting('idle_in_transaction_session_timeout')::interval > h.ttl then
                  set_config('idle_in_transaction_session_timeout', (date_part('epoch', h.ttl) * 1000)::bigint::text, true)
                else '' end
         end,
         h.ttl
    into v_fence, v_bounds, v_ttl
    from holder h
   where h.id = p_holder and h.ended_at is null and h.expires_at > clock_timestamp() and v_deadline > clock_timestamp();
  if v_bounds is not null then
    return p_token;
  end if;

  if v_fence is null then
    -- It raises, unless the term is not the transaction's first.
    select t.ttl, t.deadline into v_ttl, v_deadline from hold_term(p_name, p_token, p_holder, false) t;
    v_held := current_setting('fencepost.held', true);
    v_fence := p_token || ':' || p_holder || ':' || p_name;
    -- fencepost.held: the terms that this transaction has locked. It goes back with a savepoint, as the locks do.
    if v_held <> '' and v_fence <> all (string_to_array(v_held, E'\n')) then
      v_fence := v_held || E'\n' || v_fence;
    elsif v_held <> '' then
      v_fence := v_held;
    end if;
    v_held := set_config('fencepost.held', v_fence, true);
    v_held := set_config('fencepost.fence', v_fence, true);
  end if;
  perform bound_transaction(v_ttl, v_deadline, p_idle_ms, p_timeout_ms);
  return p_token;
end $$;

-- As 0003_protected_tables.sql says, with the same answers.
create or replace function fencepost.guard() returns trigger
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_token text;
begin
  -- What require_fence() comes down to when this transaction is fenced by one lease, and that one guards the table. Whoever may
  -- create triggers chooses the arguments, and this runs with the rights of the schema's owner: no other setting than these.
  select case when starts_with(TG_ARGV[3], 'fencepost.token_') and current_setting(TG_ARGV[3], true) is distinct from t.token::text
              then set_config(TG_ARGV[3], t.token::text, true) else '' end
    into v_token
    from current_term t
   where TG_ARGV[1] = 'lease' and t.name = TG_ARGV[2]
     and t.token || ':' || t.holder_id || ':' || t.name = current_setting('fencepost.held', true)
     and current_setting('fencepost.fence', true) = current_setting('fencepost.held', true)
     for share;
  if v_token is not null then
    return null;
  end if;

  v_token := require_fence(format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_ARGV[0], TG_ARGV[1], TG_ARGV[2]);
  if starts_with(TG_ARGV[3], 'fencepost.token_') and current_setting(TG_ARGV[3], true) is distinct from v_token then
    v_token := set_config(TG_ARGV[3], v_token, true);
  end if;
  if TG_OP = 'TRUNCATE' and TG_ARGV[1] = 'template' then
    raise exception 'table %.% is guarded row by row ("%"): TRUNCATE would delete the rows of other leases',
      TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]
      using errcode = 'FP006',
            detail = json_build_object('by', 'wall', 'what', format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME),
                                       'guard', TG_ARGV[0])::text,
            hint = 'Delete the rows of your own lease instead.';
  end if;
  return null;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 9';

-- Down Migration

-- As 0003_protected_tables.sql has them.
create or replace function fencepost.guard() returns trigger
language plpgsql security definer
set search_path = fencepost, pg_temp
as $$
declare
  v_fence text := current_setting('fencepost.fence', true);
  v_token text;
begin
  if TG_ARGV[1] = 'lease' and v_fence <> '' and v_fence = current_setting('fencepost.held', true)
     and v_fence = split_part(v_fence, ':', 1) || ':' || split_part(v_fence, ':', 2) || ':' || TG_ARGV[2] then
    -- What require_fence() comes down to when this transaction is fenced by this one lease, at half the price.
    perform from current_term t
      where t.name = TG_ARGV[2] and t.token = split_part(v_fence, ':', 1)::bigint
        and t.holder_id = split_part(v_fence, ':', 2)::uuid
        for share;
    if found then
      v_token := split_part(v_fence, ':', 1);
    end if;
  end if;
  if v_token is null then
    v_token := require_fence(format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_ARGV[0], TG_ARGV[1], TG_ARGV[2]);
  end if;
  -- Whoever may create triggers chooses the arguments, and this runs with the rights of the schema's owner: no other setting
  -- than these.
  if starts_with(TG_ARGV[3], 'fencepost.token_') and current_setting(TG_ARGV[3], true) is distinct from v_token then
    v_token := set_config(TG_ARGV[3], v_token, true);
  end if;
  if TG_OP = 'TRUNCATE' and TG_ARGV[1] = 'template' then
    raise exception 'table %.% is guarded row by row ("%"): TRUNCATE would delete the rows of other leases',
      TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]
      using errcode = 'FP006',
            detail = json_build_object('by', 'wall', 'what', format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME),
                                       'guard', TG_ARGV[0])::text,
            hint = 'Delete the rows of your own lease instead.';
  end if;
  return null;
end $$;

create or replace function fencepost.fence(
  p_name text, p_token bigint, p_holder uuid, p_idle_ms bigint default null, p_timeout_ms bigint default null
) returns bigint
language plpgsql security definer
set search_path = fencepost, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_term record;
  v_fence text := p_token || ':' || p_holder || ':' || p_name;
  v_held text := current_setting('fencepost.held', true);
begin
  v_term := hold_term(p_name, p_token, p_holder, false);
  -- fencepost.held: the terms that this transaction has locked. It goes back with a savepoint, as the locks do.
  if v_held <> '' and v_fence <> all (string_to_array(v_held, E'\n')) then
    v_fence := v_held || E'\n' || v_fence;
  elsif v_held <> '' then
    v_fence := v_held;
  end if;
  v_held := set_config('fencepost.held', v_fence, true);
  v_held := set_config('fencepost.fence', v_fence, true);
  perform bound_transaction(v_term.ttl, v_term.deadline, p_idle_ms, p_timeout_ms);
  return p_token;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 8';
