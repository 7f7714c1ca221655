-- Up Migration

-- The wall: triggers that refuse every write to a protected table unless its transaction carries a valid fence of a lease
-- that guards the table, whoever the writer is. The fence reaches them as a setting, fencepost.fence: lines of the form
-- TOKEN:HOLDER:LEASE. fence() sets it for the transaction; a program that never heard of fencepost gets it for its
-- session (PGOPTIONS). NULL in a fresh session and '' after a transaction that had set it both mean none.
--
--   * A guard is one lease ("settlement"), a prefix ("orders/*": any lease that begins so), or a template over columns of
--     the row ("account/{id}": each row by its own lease). {{, }} and a final ** stand for the characters themselves.
--   * The check is a BEFORE STATEMENT trigger, which costs the same for one row and for 100,000. A template also needs
--     the rows: AFTER STATEMENT triggers compare them, as one set.
--   * Statement triggers of a table do not fire for a write to one of its partitions, so each partition has its own.
--   * It is a guard for integrity, not a security boundary: anyone may set the fence, but only to one whose holder id
--     they know.
--
-- SQLSTATEs: FP005 no fence, FP006 a fence of a lease that does not guard this; and those of hold_term().

-- What is protected, as protect() left it: the triggers are the wall, this is what they are compared with.
create table fencepost.protected_table (
  relation regclass primary key,
  -- Its name when it was protected, by which a table that was dropped and made again is found to have lost its protection.
  name text collate "C" not null,
  -- The role that may have the record forgotten once the table is gone.
  owner name not null,
  guard text collate "C" not null,
  fence_column name not null,
  is_stamped boolean not null,
  since timestamptz not null default clock_timestamp()
);

-- By name, because the number of a schema does not survive dump and restore.
create table fencepost.protected_schema (
  name name primary key,
  guard text collate "C" not null,
  since timestamptz not null default clock_timestamp()
);

-- Doubled braces as control characters, which no name has: what is left of braces is syntax. {{{id}}} is a column in braces.
create function fencepost.escape_braces(p_guard text) returns text
language sql immutable parallel safe as
$$ select reverse(replace(reverse(replace(p_guard, '{{', U&'\0001')), '}}', U&'\0002')) $$;

-- A guard taken apart: its kind, and the literal text it consists of or begins with. Raises 22023.
create function fencepost.read_guard(p_guard text, out kind text, out literal text)
language plpgsql immutable
set search_path = fencepost, pg_temp as $$
declare
  v_text text := escape_braces(p_guard);
begin
  if p_guard is null or octet_length(p_guard) not between 1 and 512 or p_guard ~ '[[:cntrl:]]' then
    raise exception 'a guard must have 1 to 512 bytes and no control characters' using errcode = '22023';
  end if;
  if v_text ~ '[{}]' then
    if v_text !~ '^([^{}]*\{[^{}]+\})+[^{}]*$' then
      raise exception 'guard "%" has braces that do not enclose a column name; write {{ and }} for braces of the lease''s own name', p_guard
        using errcode = '22023';
    end if;
    if v_text ~ '\*$' then
      raise exception 'guard "%" is both a template and a prefix', p_guard using errcode = '22023';
    end if;
    kind := 'template';
    literal := split_part(v_text, '{', 1);
  elsif v_text ~ '\*\*$' then
    kind := 'lease';
    literal := left(v_text, -1);
  elsif v_text ~ '\*$' then
    kind := 'prefix';
    literal := left(v_text, -1);
  else
    kind := 'lease';
    literal := v_text;
  end if;
  literal := replace(replace(literal, U&'\0001', '{'), U&'\0002', '}');
end $$;

-- The SQL expression that renders a template for one row, of which p_table is the alias that its columns are read from.
-- Only types whose text is the same in every session. Raises 22023, 42703.
create function fencepost.template_expression(p_guard text, p_table regclass, p_alias text) returns text
language plpgsql stable
set search_path = fencepost, pg_temp as $$
declare
  v_text text := escape_braces(p_guard);
  v_parts text[] := '{}';
  v_match text[];
  v_column name;
  v_type oid;
  v_is_virtual boolean;
begin
  for v_match in select regexp_matches(v_text, '([^{}]*)(?:\{([^{}]+)\})?', 'g') loop
    if v_match[1] <> '' then
      v_parts := v_parts || quote_literal(replace(replace(v_match[1], U&'\0001', '{'), U&'\0002', '}'));
    end if;
    continue when v_match[2] is null;
    v_column := v_match[2];
    select case t.typtype when 'd' then t.typbasetype else a.atttypid end, a.attgenerated = 'v' into v_type, v_is_virtual
      from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
     where a.attrelid = p_table and a.attname = v_column and a.attnum > 0 and not a.attisdropped;
    if not found then
      raise exception 'guard "%" names column "%", which % does not have', p_guard, v_column, p_table
        using errcode = '42703';
    end if;
    if v_is_virtual then
      raise exception 'guard "%": column "%" of % is a virtual generated column, which triggers do not see', p_guard, v_column, p_table
        using errcode = '22023';
    end if;
    if v_type not in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'text'::regtype, 'varchar'::regtype,
                      'uuid'::regtype, 'bool'::regtype, 'name'::regtype)
       and not exists (select from pg_catalog.pg_type t where t.oid = v_type and t.typtype = 'e') then
      raise exception 'guard "%": column "%" of % is of type %, whose text depends on settings; use an integer, text, varchar, uuid, boolean or enum column',
        p_guard, v_column, p_table, format_type(v_type, null) using errcode = '22023';
    end if;
    v_parts := v_parts || format('%s.%I::text', p_alias, v_column);
  end loop;
  return array_to_string(v_parts, ' || ');
end $$;

-- What the server does about a holder that is paused or dies inside the transaction. The caller's own stricter
-- settings stay. p_idle_ms: how long the client may be silent inside the transaction (null: the TTL; 0: no bound).
create function fencepost.bound_transaction(
  p_ttl interval, p_deadline timestamptz, p_idle_ms bigint, p_timeout_ms bigint
) returns void
language plpgsql as $$
declare
  v_idle bigint := coalesce(p_idle_ms, (extract(epoch from p_ttl) * 1000)::bigint);
  v_timeout bigint := p_timeout_ms;
  v_own bigint;
  v_check bigint;
begin
  -- A commit in doubt must not look like a commit.
  if current_setting('client_min_messages') = 'error' then
    perform set_config('client_min_messages', 'warning', true);
  end if;

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
    v_check := greatest(100, (extract(epoch from p_ttl) * 1000)::bigint / 3);
    if v_own = 0 or v_own > v_check then
      perform set_config('client_connection_check_interval', v_check::text, true);
    end if;
  end if;

  if p_deadline < 'infinity' then
    v_timeout := least(v_timeout, greatest(1, (extract(epoch from p_deadline - clock_timestamp()) * 1000)::bigint));
  end if;
  if v_timeout is not null then
    perform set_config(
      case when current_setting('server_version_num')::integer >= 170000 then 'transaction_timeout'
           else 'statement_timeout' end,
      v_timeout::text, true);
  end if;
end $$;

-- The fence. Call it first in a transaction, before any other statement and outside any savepoint.
-- It returns the token, or raises: FP001 the term is stale, FP002 the holder has expired or the term's hard end has
-- passed, FP003 this database knows neither the lease nor the holder. From then until the transaction ends no newer term
-- can be granted. Called for several leases, it fences the transaction by all of them.
-- p_idle_ms: how long the client may be silent inside the transaction before the server ends the session
-- (null: the holder's TTL; 0: no bound). p_timeout_ms: bound on the whole transaction (PostgreSQL 17 and later) or on
-- each statement (before).
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

-- Where the check of a guard leaves the token for stamps, for the transaction: what is written under several leases, even in
-- one statement, carries the token of the lease that guards it.
create function fencepost.token_setting(p_guard text) returns text
language sql immutable parallel safe as
$$ select 'fencepost.token_' || left(encode(sha256(convert_to(p_guard, 'UTF8')), 'hex'), 16) $$;

-- Holds every term of this transaction's fence whose lease fits the guard, and returns the lowest token of them: it is older
-- than every later term of any of them, and never refuses one of this transaction's own. Raises FP005 when there is no fence, FP006
-- when none fits, and what hold_term() raises. p_what: what is protected, for people.
-- Runs with its caller's rights and settings, which are those of the schema's owner.
create function fencepost.require_fence(p_what text, p_guard text, p_kind text, p_literal text) returns text
language plpgsql
as $$
declare
  v_setting text := current_setting('fencepost.fence', true);
  v_held text[] := string_to_array(nullif(current_setting('fencepost.held', true), ''), E'\n');
  v_fence text;
  v_token text;
  v_holder text;
  v_lease text;
  v_is_held boolean;
  v_term record;
  v_lowest text;
  v_others text[] := '{}';
begin
  if v_setting is null or v_setting = '' then
    raise exception '% is protected: it is written under lease "%" only, and this transaction carries no fence', p_what, p_guard
      using errcode = 'FP005',
            detail = json_build_object('by', 'wall', 'what', p_what, 'guard', p_guard)::text,
            hint = 'Call fencepost.fence() first in the transaction, or give the session its fence: see "fencepost env".';
  end if;
  foreach v_fence in array string_to_array(v_setting, E'\n') loop
    -- Plain tests, because a regular expression with captures takes longer than all the rest.
    v_token := split_part(v_fence, ':', 1);
    v_holder := split_part(v_fence, ':', 2);
    v_lease := substr(v_fence, length(v_token) + length(v_holder) + 3);
    if v_fence !~ '^[0-9]+:[0-9a-f-]+:[^[:cntrl:]]+$' or lpad(v_token, 19, '0') > '9223372036854775807' collate "C" or length(v_token) > 19
       or v_holder not like '________-____-____-____-____________' or length(replace(v_holder, '-', '')) <> 32 then
      raise exception '% is protected: the setting fencepost.fence is malformed', p_what
        using errcode = 'FP005',
              detail = json_build_object('by', 'wall', 'what', p_what, 'guard', p_guard)::text,
              hint = 'It has the form TOKEN:HOLDER:LEASE. See "fencepost env".';
    end if;
    if not (case p_kind when 'lease' then v_lease = p_literal else starts_with(v_lease, p_literal) end) then
      v_others := v_others || v_lease;
      continue;
    end if;
    if v_lowest is null or v_token::bigint < v_lowest::bigint then
      v_lowest := v_token;
    end if;
    v_is_held := coalesce(v_fence = any (v_held), false);
    v_term := fencepost.hold_term(v_lease, v_token::bigint, v_holder::uuid, v_is_held);
    if not v_is_held then
      -- Where fence() has been called it has set the bounds; a session that is bounded tightly enough needs none.
      if v_held is null and (current_setting('idle_in_transaction_session_timeout') = '0'
                             or current_setting('idle_in_transaction_session_timeout')::interval > v_term.ttl)
         or v_term.deadline < 'infinity' then
        perform fencepost.bound_transaction(v_term.ttl, v_term.deadline, null, null);
      end if;
      v_held := v_held || v_fence;
      v_token := set_config('fencepost.held', array_to_string(v_held, E'\n'), true);
    end if;
  end loop;
  if v_lowest is null then
    raise exception '% is protected: it is written under lease "%" only, and this transaction is fenced by "%"',
      p_what, p_guard, array_to_string(v_others, '", "')
      using errcode = 'FP006',
            detail = json_build_object('by', 'wall', 'what', p_what, 'guard', p_guard)::text,
            hint = 'Write it under a lease that guards it.';
  end if;
  return v_lowest;
end $$;

-- BEFORE STATEMENT on a protected table. Arguments: the guard, its kind, its literal, its token_setting().
create function fencepost.guard() returns trigger
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

-- AFTER STATEMENT on a table with a template, with the changed rows as "rows" and, for an update, their former state as
-- "former". Arguments: the guard, and its expression over "r". With the writer's own rights, because the expression is
-- given by whoever creates the trigger. The fences were checked before the statement.
create function fencepost.guard_rows() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_leases text[];
  v_other text;
  v_found boolean;
begin
  -- No function of the schema, because the writer may have no right to it.
  select array_agg(substr(f, length(split_part(f, ':', 1)) + length(split_part(f, ':', 2)) + 3)) into v_leases
    from unnest(string_to_array(current_setting('fencepost.fence', true), E'\n')) f;
  execute format(
    'select true, x.lease from (select (%s) collate "C" as lease from rows r%s) x where x.lease is null or x.lease <> all ($1) limit 1',
    TG_ARGV[1], case TG_OP when 'UPDATE' then format(' union all select (%s) collate "C" from former r', TG_ARGV[1]) else '' end)
    into v_found, v_other using v_leases;
  if v_found then
    raise exception 'table %.% is guarded by "%": a row belongs to %, and this transaction is fenced by "%"',
      TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0],
      coalesce('lease "' || v_other || '"', 'no lease, because a column of the template is null'),
      array_to_string(v_leases, '", "')
      using errcode = 'FP006',
            detail = json_build_object('by', 'wall', 'what', format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME),
                                       'guard', TG_ARGV[0], 'row', v_other)::text,
            hint = 'Write the rows of one lease only, or fence the transaction by each of them.';
  end if;
  return null;
end $$;

-- BEFORE ROW, only where automatic stamps were asked for. Arguments: the token_setting() of the guard, and the column when it
-- has another name than fence_token, which takes several times as long.
create function fencepost.stamp() returns trigger
language plpgsql
set plan_cache_mode = force_generic_plan as $$
declare
  v_token text := current_setting(TG_ARGV[0], true);
begin
  if v_token is null or v_token = '' then
    -- A partition that was added later has this trigger, and no guard yet.
    raise exception 'table %.% is part of a protected table and has no guard of its own yet', TG_TABLE_SCHEMA, TG_TABLE_NAME
      using errcode = 'FP005',
            detail = json_build_object('by', 'wall', 'what', format('table %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME))::text,
            hint = 'Protect the table once more: that guards what is new.';
  end if;
  if TG_NARGS = 1 then
    new.fence_token := v_token;
    return new;
  end if;
  return jsonb_populate_record(new, jsonb_build_object(TG_ARGV[1], v_token));
end $$;

-- The table and what inherits from it, partitions included.
create function fencepost.table_tree(p_table regclass) returns table (relation regclass)
language sql stable
set search_path = fencepost, pg_temp as $$
  with recursive tree as (
    select p_table::oid as oid
    union
    select i.inhrelid from pg_catalog.pg_inherits i join tree on tree.oid = i.inhparent)
  select oid::regclass from tree
$$;

-- The tables of the tree that have a parent outside of it, through which their rows can be written as well.
create function fencepost.outer_parents(p_table regclass) returns table (relation regclass, parent regclass)
language sql stable
set search_path = fencepost, pg_temp as $$
  select t.relation, i.inhparent::regclass
    from table_tree(p_table) t join pg_catalog.pg_inherits i on i.inhrelid = t.relation
   where i.inhparent not in (select u.relation from table_tree(p_table) u)
$$;

-- The triggers that the wall needs on one table of a protected tree: name, when (in words, and as pg_trigger.tgtype has it:
-- 1 row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate), function and arguments.
create function fencepost.wanted_triggers(
  p_table regclass, p_guard text, p_fence_column name, p_is_stamped boolean
) returns table (name name, event text, type smallint, function text, arguments text[])
language plpgsql stable
set search_path = fencepost, pg_temp as $$
#variable_conflict use_column
declare
  v_guard record := read_guard(p_guard);
  v_check text[] := array[p_guard, v_guard.kind, v_guard.literal, token_setting(p_guard)];
  v_rows text[];
begin
  return query values (
    'fencepost_guard'::name, 'before insert or update or delete or truncate on %s for each statement', 62::smallint, 'guard',
    v_check);
  if v_guard.kind = 'template' then
    begin
      v_rows := array[p_guard, template_expression(p_guard, p_table, 'r')];
    exception when undefined_column or invalid_parameter_value then
      -- A column of the template has gone or changed since: no trigger is as it should be.
      v_rows := array[p_guard, null];
    end;
    return query values
      -- Once more, in case the statement itself has changed the setting that guard_rows() reads next.
      ('fencepost_guard_again'::name, 'after insert or update or delete on %s for each statement', 28::smallint, 'guard',
       v_check),
      ('fencepost_guard_rows_deleted', 'after delete on %s referencing old table as rows for each statement',
       8::smallint, 'guard_rows', v_rows),
      ('fencepost_guard_rows_inserted', 'after insert on %s referencing new table as rows for each statement',
       4::smallint, 'guard_rows', v_rows),
      ('fencepost_guard_rows_updated',
       'after update on %s referencing old table as former new table as rows for each statement', 16::smallint, 'guard_rows', v_rows);
  end if;
  if p_is_stamped then
    return query values (
      'fencepost_stamp'::name, 'before insert or update on %s for each row', 23::smallint, 'stamp',
      array[token_setting(p_guard)] || case when p_fence_column = 'fence_token' then '{}' else array[p_fence_column::text] end);
  end if;
end $$;

-- The triggers as they are, and whatever else has a name of theirs. "type" is null where a condition or a list of columns keeps
-- a trigger from some writes. Row triggers of a partitioned table are cloned to its partitions, and go with it.
create function fencepost.installed_triggers(p_table regclass)
returns table (name name, type smallint, function text, arguments bytea, is_enabled boolean, is_cloned boolean)
language sql stable
set search_path = fencepost, pg_temp as $$
  select t.tgname, case when t.tgqual is null and t.tgattr = '' then t.tgtype end,
         case when n.nspname = 'fencepost' then p.proname::text end, t.tgargs, t.tgenabled in ('O', 'A'), t.tgparentid <> 0
    from pg_catalog.pg_trigger t
    join pg_catalog.pg_proc p on p.oid = t.tgfoid
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
   where t.tgrelid = p_table
     and (n.nspname = 'fencepost' and p.proname in ('guard', 'guard_rows', 'stamp')
          or t.tgname in ('fencepost_guard', 'fencepost_guard_again', 'fencepost_guard_rows_deleted',
                          'fencepost_guard_rows_inserted', 'fencepost_guard_rows_updated', 'fencepost_stamp'))
$$;

-- What sets one table of a protected tree apart from what is wanted: a trigger that is "missing", "disabled" or
-- "unwanted" (which one with other arguments is as well, besides being missing).
create function fencepost.trigger_faults(
  p_table regclass, p_guard text, p_fence_column name, p_is_stamped boolean
) returns table (name name, fault text, is_cloned boolean, event text, function text, arguments text[])
language sql stable
set search_path = fencepost, pg_temp as $$
  select coalesce(w.name, i.name),
         case when i.name is null then 'missing' when w.name is null then 'unwanted' else 'disabled' end,
         i.is_cloned, w.event, w.function, w.arguments
    from wanted_triggers(p_table, p_guard, p_fence_column, p_is_stamped) w
    full join installed_triggers(p_table) i
      on i.name = w.name and i.function = w.function and i.type = w.type
     and i.arguments = (select coalesce(string_agg(convert_to(a, getdatabaseencoding()) || '\x00', '' order by n), '')
                          from unnest(w.arguments) with ordinality u (a, n))
   where i.name is null or w.name is null or not i.is_enabled
$$;

-- The default of the fence column: an expression, not a function, so that whoever may insert a row needs no more rights.
create function fencepost.stamp_default(p_guard text) returns text
language sql immutable
set search_path = fencepost, pg_temp as $$
  select format($e$COALESCE(NULLIF(current_setting('%s'::text, true), ''::text), '0'::text)::bigint$e$, token_setting(p_guard))
$$;

-- Refuses what cannot be guarded, with the reason (SQLSTATE 0A000).
create function fencepost.check_protectable(p_table regclass) returns void
language plpgsql stable
set search_path = fencepost, pg_temp as $$
declare
  v_reason text;
  v_one record;
begin
  for v_one in
    select c.oid::regclass as relation, c.relkind, c.relpersistence, n.nspname
      from table_tree(p_table) t
      join pg_catalog.pg_class c on c.oid = t.relation
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  loop
    v_reason := case
      when v_one.nspname = 'fencepost' then 'it belongs to fencepost itself'
      when v_one.nspname in ('pg_catalog', 'information_schema', 'pg_toast') then 'it is a system table'
      when v_one.relkind = 'v' then 'it is a view, through which writes reach other tables; protect those'
      when v_one.relkind = 'm' then 'it is a materialized view, which nobody writes row by row'
      when v_one.relkind = 'f' then
        'it is a foreign table, whose rows others can write where they are; protect it there'
      when v_one.relkind not in ('r', 'p') then 'it is no table'
      when v_one.relpersistence = 't' then 'it is temporary, and no other session can write it'
    end;
    exit when v_reason is not null;
    select format('it is part of %s, through which its rows can be written as well; protect that', o.parent)
      into v_reason
      from outer_parents(p_table) o where o.relation = v_one.relation limit 1;
    exit when v_reason is not null;
  end loop;
  if v_reason is not null then
    raise exception '% cannot be protected: %', v_one.relation, v_reason using errcode = '0A000';
  end if;
end $$;

-- Protects a table: writes to it, and to each of its partitions, are refused without a valid fence of a lease that fits
-- the guard. Adds the fence column if there is none, and fills it on INSERT; with p_stamp, a row trigger fills it on every
-- write. Does nothing where everything is as wanted. Takes brief locks that hold up writers, so set lock_timeout first.
-- With the caller's rights: it must own the table. Returns the number of tables that are guarded: it and its partitions.
create function fencepost.protect(
  p_table regclass, p_lease text, p_fence_column name default 'fence_token', p_stamp boolean default false
) returns integer
language plpgsql
set search_path = fencepost, pg_temp as $$
declare
  v_column record;
  v_table regclass;
  v_former name;
  v_trigger record;
  v_count integer := 0;
begin
  if p_table is null or p_fence_column is null or p_stamp is null then
    raise exception 'no argument of protect() may be null' using errcode = '22004';
  end if;
  perform check_protectable(p_table);
  if (select g.kind from read_guard(p_lease) g) = 'template' then
    perform template_expression(p_lease, p_table, 'r');
  end if;

  select a.atttypid, a.attgenerated, a.attidentity into v_column
    from pg_catalog.pg_attribute a
   where a.attrelid = p_table and a.attname = p_fence_column and a.attnum > 0 and not a.attisdropped;
  if not found then
    -- A constant default, which costs no rewrite of the table.
    execute format('alter table %s add column %I bigint not null default 0', p_table, p_fence_column);
  elsif v_column.atttypid <> 'int8'::regtype or v_column.attgenerated <> '' or v_column.attidentity <> '' then
    raise exception '% cannot be protected: its column "%" must be a plain bigint', p_table, p_fence_column
      using errcode = '42804';
  end if;
  -- A default that the user has chosen stays.
  for v_table in
    select t.relation
      from table_tree(p_table) t
      join pg_catalog.pg_attribute a on a.attrelid = t.relation and a.attname = p_fence_column
      left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     cross join lateral (select coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '0') as standard) e
     where e.standard in ('0', '''0''::bigint')
        or e.standard like '%current_setting(''fencepost.token\_%' and e.standard not like '%' || token_setting(p_lease) || '%'
  loop
    execute format('alter table only %s alter column %I set default %s', v_table, p_fence_column, stamp_default(p_lease));
  end loop;

  -- A fence column of an earlier protection is an ordinary column from now on.
  for v_table, v_former in
    select t.relation, a.attname
      from table_tree(p_table) t
      join pg_catalog.pg_attribute a on a.attrelid = t.relation and a.attname <> p_fence_column
      join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where pg_catalog.pg_get_expr(d.adbin, d.adrelid) like '%current_setting(''fencepost.token\_%'
  loop
    execute format('alter table only %s alter column %I set default 0', v_table, v_former);
  end loop;

  for v_table in select t.relation from table_tree(p_table) t loop
    v_count := v_count + 1;
    for v_trigger in
      select f.* from trigger_faults(v_table, p_lease, p_fence_column, p_stamp) f
       where f.fault <> 'missing' and f.is_cloned is not true
    loop
      execute format(case v_trigger.fault when 'disabled' then 'alter table %2$s enable trigger %1$I'
                                          else 'drop trigger %1$I on %2$s' end, v_trigger.name, v_table);
    end loop;
    for v_trigger in
      select f.* from trigger_faults(v_table, p_lease, p_fence_column, p_stamp) f where f.fault <> 'unwanted'
    loop
      execute case v_trigger.fault
        when 'missing' then
          format('create trigger %I ' || v_trigger.event || ' execute function fencepost.%I(%s)',
                 v_trigger.name, v_table, v_trigger.function,
                 (select string_agg(quote_literal(a), ', ' order by n)
                    from unnest(v_trigger.arguments) with ordinality u (a, n)))
        else format('alter table %s enable trigger %I', v_table, v_trigger.name) end;
    end loop;
  end loop;
  perform record_protection(p_table, p_lease, p_fence_column, p_stamp);
  return v_count;
end $$;

-- Whether the session belongs to the role, or to the owner of the schema fencepost. A function that runs with its owner's
-- rights cannot ask who has called it, only whose session it is.
create function fencepost.is_session_of(p_role name) returns boolean
language sql stable as $$
  select exists (
    select from pg_catalog.pg_roles r
     where (r.rolname = p_role
            or r.oid = (select n.nspowner from pg_catalog.pg_namespace n where n.nspname = 'fencepost'))
       and pg_catalog.pg_has_role(session_user, r.oid, 'usage'))
$$;

create function fencepost.owner_of(p_table regclass) returns name
language sql stable as
$$ select pg_catalog.pg_get_userbyid(c.relowner) from pg_catalog.pg_class c where c.oid = p_table $$;

create function fencepost.qualified_name(p_table regclass) returns text
language sql stable as $$
  select format('%I.%I', n.nspname, c.relname)
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = p_table
$$;

-- Forgets protections of tables that were dropped, by the name that they had, as far as they were the session's own. Returns
-- how many there were.
create function fencepost.forget_dropped(p_name text) returns integer
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_count integer;
begin
  delete from protected_table p
   where p.name = p_name and not exists (select from pg_catalog.pg_class c where c.oid = p.relation)
     and is_session_of(p.owner);
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Keeps what protect() has done. With the owner's rights, and only what the table's triggers bear out.
create function fencepost.record_protection(p_table regclass, p_guard text, p_fence_column name, p_is_stamped boolean)
returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  if exists (select from trigger_faults(p_table, p_guard, p_fence_column, p_is_stamped)) then
    raise exception '% does not have the triggers of such a protection', p_table using errcode = '22023';
  end if;
  if exists (select from protected_table p
              where (p.relation, p.name, p.owner, p.guard, p.fence_column, p.is_stamped)
                    = (p_table, qualified_name(p_table), owner_of(p_table), p_guard, p_fence_column, p_is_stamped))
     and not exists (select from protected_table p join table_tree(p_table) t on t.relation = p.relation
                      where p.relation <> p_table) then
    return;
  end if;
  perform forget_dropped(qualified_name(p_table));
  -- What was protected by itself is part of this now.
  delete from protected_table p using table_tree(p_table) t where p.relation = t.relation and p.relation <> p_table;
  insert into protected_table as known (relation, name, owner, guard, fence_column, is_stamped)
  values (p_table, qualified_name(p_table), owner_of(p_table), p_guard, p_fence_column, p_is_stamped)
  on conflict (relation) do update
     set name = excluded.name, owner = excluded.owner, guard = excluded.guard, fence_column = excluded.fence_column, is_stamped = excluded.is_stamped,
         since = clock_timestamp();
end $$;

create function fencepost.forget_protection(p_table regclass) returns void
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
begin
  if exists (select from installed_triggers(p_table)) then
    raise exception '% still has triggers of its protection', p_table using errcode = '22023';
  end if;
  if exists (select from protected_table p where p.relation = p_table and not is_session_of(owner_of(p_table))) then
    raise exception 'must be owner of table %', p_table using errcode = '42501';
  end if;
  delete from protected_table where relation = p_table;
end $$;

-- Takes the protection of a table and its partitions away. The fence column stays, with what it holds. Returns the number
-- of tables that had triggers; 0 when there was nothing to do. Takes brief exclusive locks: set lock_timeout first.
create function fencepost.unprotect(p_table regclass) returns integer
language plpgsql
set search_path = fencepost, pg_temp as $$
declare
  v_table regclass;
  v_trigger name;
  v_count integer := 0;
  v_column name;
begin
  if p_table is null then
    raise exception 'no argument of unprotect() may be null' using errcode = '22004';
  end if;
  for v_table in select i.inhparent::regclass from pg_catalog.pg_inherits i where i.inhrelid = p_table loop
    if exists (select from installed_triggers(v_table)) then
      raise exception '% cannot be unprotected: it is part of %, which is protected; unprotect that', p_table, v_table
        using errcode = '0A000';
    end if;
  end loop;
  for v_table in select t.relation from table_tree(p_table) t where exists (select from installed_triggers(t.relation)) loop
    v_count := v_count + 1;
    for v_trigger in select i.name from installed_triggers(v_table) i where not i.is_cloned loop
      execute format('drop trigger %I on %s', v_trigger, v_table);
    end loop;
  end loop;
  for v_table, v_column in
    select a.attrelid::regclass, a.attname
      from table_tree(p_table) t
      join pg_catalog.pg_attribute a on a.attrelid = t.relation
      join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where pg_catalog.pg_get_expr(d.adbin, d.adrelid) like '%current_setting(''fencepost.token\_%'
  loop
    execute format('alter table only %s alter column %I set default 0', v_table, v_column);
  end loop;
  perform forget_protection(p_table);
  return v_count;
end $$;

-- What is protected, for people and tools. "unguarded": tables of its tree that lack a trigger or have one disabled, or that
-- can be written through a parent outside; of a table that was dropped since, its name.
create view fencepost.protections as
select coalesce(fencepost.qualified_name(p.relation), p.name) as "table",
       p.guard,
       p.fence_column::text as fence_column,
       p.is_stamped,
       p.since,
       c.oid is null as is_dropped,
       case when c.oid is null then 0 else (select count(*) from fencepost.table_tree(p.relation)) end::integer as tables,
       case when c.oid is null then array[p.name] else
         coalesce((select array_agg(fencepost.qualified_name(t.relation) order by 1)
                     from fencepost.table_tree(p.relation) t
                    where exists (select from fencepost.trigger_faults(t.relation, p.guard, p.fence_column, p.is_stamped))
                       or exists (select from fencepost.outer_parents(p.relation) o where o.relation = t.relation)),
                  '{}') end as unguarded
  from fencepost.protected_table p
  left join pg_catalog.pg_class c on c.oid = p.relation;

create view fencepost.schema_protections as
select s.name::text as schema, s.guard, s.since from fencepost.protected_schema s;

-- The same wall for the schema of the data: event triggers refuse DDL that changes a protected schema. What a command has
-- changed is known only after it, and it is then undone; a rewrite of a table is refused before it begins. It is seen in two
-- ways: by the objects that the command names, and by the catalogs themselves, because a command on one object may change
-- others (a parent its children, a type its tables) or take them out of the schema.
-- What commits on the way (CONCURRENTLY) is refused before its schema is known, and so needs the fence of every protected schema.

-- Of all rows that the catalogs have about a schema, the versions: equal before and after a command that leaves it alone. (Also
-- when somebody else commits DDL in the schema meanwhile: then the command is refused without need, and may be repeated.)
create function fencepost.schema_fingerprint(p_schema name) returns text
language sql volatile
set search_path = pg_catalog, pg_temp as $$
  with place as (
    select n.oid, n.xmin, n.ctid from pg_namespace n where n.nspname = p_schema),
  relation as (
    select c.oid, c.xmin, c.ctid from pg_class c join place p on c.relnamespace = p.oid),
  entry as (
    select 'n' as kind, p.xmin, p.ctid from place p
    union all select 'c', c.xmin, c.ctid from relation c
    union all select 'a', a.xmin, a.ctid from pg_attribute a join relation c on c.oid = a.attrelid
    union all select 'd', d.xmin, d.ctid from pg_attrdef d join relation c on c.oid = d.adrelid
    union all select 'i', i.xmin, i.ctid from pg_index i join relation c on c.oid = i.indrelid
    union all select 'g', g.xmin, g.ctid from pg_trigger g join relation c on c.oid = g.tgrelid
    union all select 'r', r.xmin, r.ctid from pg_rewrite r join relation c on c.oid = r.ev_class
    union all select 'p', y.xmin, y.ctid from pg_policy y join relation c on c.oid = y.polrelid
    union all select 's', s.xmin, s.ctid from pg_sequence s join relation c on c.oid = s.seqrelid
    union all select 'h', h.xmin, h.ctid from pg_inherits h join relation c on c.oid in (h.inhrelid, h.inhparent)
    union all select 'o', o.xmin, o.ctid from pg_constraint o join place p on o.connamespace = p.oid
    union all select 't', t.xmin, t.ctid from pg_type t join place p on t.typnamespace = p.oid
    union all select 'e', e.xmin, e.ctid from pg_enum e join pg_type t on t.oid = e.enumtypid join place p on t.typnamespace = p.oid
    union all select 'f', f.xmin, f.ctid from pg_proc f join place p on f.pronamespace = p.oid
    union all select 'x', x.xmin, x.ctid from pg_statistic_ext x join place p on x.stxnamespace = p.oid
    union all select 'l', l.xmin, l.ctid from pg_collation l join place p on l.collnamespace = p.oid
    union all select 'b', b.xmin, b.ctid from pg_operator b join place p on b.oprnamespace = p.oid
    union all select 'u', u.xmin, u.ctid from pg_default_acl u join place p on u.defaclnamespace = p.oid)
  select (select count(*) from pg_depend d join place p on d.refobjid = p.oid and d.refclassid = 'pg_namespace'::regclass)
         || ':' || encode(sha256(convert_to(string_agg(e.kind || e.ctid || e.xmin, ',' order by e.kind, e.ctid), 'UTF8')), 'hex')
    from entry e
$$;

-- The fingerprints of all protected schemas, by name.
create function fencepost.schema_fingerprints() returns jsonb
language sql volatile
set search_path = fencepost, pg_temp as
$$ select jsonb_object_agg(s.name, schema_fingerprint(s.name)) from protected_schema s $$;

create function fencepost.guard_schema(p_schema text, p_command text) returns void
language plpgsql
set search_path = fencepost, pg_temp as $$
declare
  v_guard record;
  v_one record;
begin
  for v_one in select s.name, s.guard from protected_schema s where p_schema is null or s.name = p_schema order by s.name loop
    v_guard := read_guard(v_one.guard);
    perform require_fence(format('schema %I (%s)', v_one.name, p_command), v_one.guard, v_guard.kind, v_guard.literal);
  end loop;
end $$;

create function fencepost.guard_ddl() returns event_trigger
language plpgsql security definer
set search_path = fencepost, pg_temp as $$
declare
  v_one record;
begin
  if not exists (select from protected_schema) then
    return;
  end if;
  case TG_EVENT
    when 'ddl_command_start' then
      if TG_TAG = 'DROP INDEX' and current_query() ~* '\mconcurrently\M' then
        -- It must be the first thing that its transaction does, so nothing can be locked yet. It is guarded again at its end.
        for v_one in
          select s.name
            from protected_schema s
           cross join lateral read_guard(s.guard) g
           where not exists (
             select from unnest(string_to_array(current_setting('fencepost.fence', true), E'\n')) f
              cross join lateral (select substr(f, length(split_part(f, ':', 1)) + length(split_part(f, ':', 2)) + 3) as lease) l
              where case g.kind when 'lease' then l.lease = g.literal else starts_with(l.lease, g.literal) end
                and is_current_term(l.lease, split_part(f, ':', 1)::bigint, split_part(f, ':', 2)::uuid))
        loop
          perform guard_schema(v_one.name, TG_TAG);
        end loop;
      elsif TG_TAG = 'ALTER SCHEMA'
            or TG_TAG in ('CREATE INDEX', 'REINDEX') and current_query() ~* '\mconcurrently\M'
            or TG_TAG = 'ALTER TABLE' and current_query() ~* '\mdetach\s+partition\M.*\mconcurrently\M' then
        perform guard_schema(null, TG_TAG);
      end if;
      perform set_config('fencepost.schemas', schema_fingerprints()::text, true);
    when 'table_rewrite' then
      select n.nspname into v_one
        from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
       where c.oid = pg_event_trigger_table_rewrite_oid();
      perform guard_schema(v_one.nspname, TG_TAG);
    when 'ddl_command_end' then
      for v_one in
        select distinct s.name
          from pg_event_trigger_ddl_commands() d
         cross join lateral pg_catalog.pg_identify_object_as_address(d.classid, d.objid, d.objsubid) i
          join protected_schema s on s.name = coalesce(
            d.schema_name,
            -- Things that belong to a table have no schema of their own, but its name; a schema is its own.
            case when d.object_type in ('schema', 'trigger', 'rule', 'policy', 'table constraint', 'default value') then
              i.object_names[1] end)
         where d.classid <> 0 and d.command_tag <> 'REFRESH MATERIALIZED VIEW'
      loop
        perform guard_schema(v_one.name, TG_TAG);
      end loop;
      if TG_TAG <> 'REFRESH MATERIALIZED VIEW' and current_setting('fencepost.schemas', true) <> '' then
        for v_one in
          select before.key as name
            from jsonb_each_text(current_setting('fencepost.schemas', true)::jsonb) before
            join protected_schema s on s.name = before.key
           where before.value is distinct from schema_fingerprint(before.key::name)
           order by 1
        loop
          perform guard_schema(v_one.name, TG_TAG);
        end loop;
      end if;
    when 'sql_drop' then
      for v_one in
        select distinct s.name
          from pg_event_trigger_dropped_objects() d
          join protected_schema s on s.name = coalesce(
            d.schema_name,
            case when d.object_type in ('schema', 'trigger', 'rule', 'policy', 'table constraint', 'default value') then
              d.address_names[1] end)
         where not d.is_temporary
      loop
        perform guard_schema(v_one.name, TG_TAG);
      end loop;
    else null;
  end case;
end $$;

-- Protects a schema: DDL in it is refused without a valid fence of a lease that fits the guard. With the caller's rights:
-- event triggers need a superuser (or the role that a managed service has for them).
create function fencepost.protect_schema(p_schema name, p_lease text) returns void
language plpgsql
set search_path = fencepost, pg_temp as $$
declare
  v_event text;
begin
  if p_schema is null then
    raise exception 'no argument of protect_schema() may be null' using errcode = '22004';
  end if;
  if (select g.kind from read_guard(p_lease) g) = 'template' then
    raise exception 'the guard of a schema cannot be a template: "%"', p_lease using errcode = '22023';
  end if;
  if p_schema in ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost') or p_schema like 'pg\_%' then
    raise exception 'schema % cannot be protected: it belongs to the system or to fencepost', p_schema using errcode = '0A000';
  end if;
  if not exists (select from pg_catalog.pg_namespace n where n.nspname = p_schema) then
    raise exception 'there is no schema %', p_schema using errcode = '3F000';
  end if;
  foreach v_event in array array['ddl_command_start', 'ddl_command_end', 'sql_drop', 'table_rewrite'] loop
    if not exists (select from pg_catalog.pg_event_trigger e
                    where e.evtname = 'fencepost_' || v_event and e.evtenabled in ('O', 'A')) then
      execute format('drop event trigger if exists %I', 'fencepost_' || v_event);
      execute format('create event trigger %I on %s execute function fencepost.guard_ddl()', 'fencepost_' || v_event, v_event);
    end if;
  end loop;
  insert into protected_schema as known (name, guard) values (p_schema, p_lease)
  on conflict (name) do update set guard = excluded.guard, since = clock_timestamp() where known.guard <> excluded.guard;
end $$;

-- Returns whether the schema was protected. The event triggers go with the last one.
create function fencepost.unprotect_schema(p_schema name) returns boolean
language plpgsql
set search_path = fencepost, pg_temp as $$
declare
  v_event text;
  v_was boolean;
begin
  delete from protected_schema where name = p_schema;
  v_was := found;
  if not exists (select from protected_schema) then
    for v_event in select e.evtname from pg_catalog.pg_event_trigger e
                    where e.evtfoid = 'fencepost.guard_ddl()'::regprocedure loop
      execute format('drop event trigger %I', v_event);
    end loop;
  end if;
  return v_was;
end $$;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 3';

revoke all on all functions in schema fencepost from public;

-- Down Migration

do $$
begin
  if exists (select from fencepost.protected_table) or exists (select from fencepost.protected_schema) then
    raise exception 'tables or schemas are protected: unprotect them first (see fencepost.protections)'
      using errcode = '55006';
  end if;
end $$;

drop function fencepost.unprotect_schema(name);
drop function fencepost.protect_schema(name, text);
drop function fencepost.guard_ddl();
drop function fencepost.guard_schema(text, text);
drop function fencepost.schema_fingerprints();
drop function fencepost.schema_fingerprint(name);
drop view fencepost.schema_protections;
drop view fencepost.protections;
drop function fencepost.unprotect(regclass);
drop function fencepost.forget_protection(regclass);
drop function fencepost.forget_dropped(text);
drop function fencepost.qualified_name(regclass);
drop function fencepost.owner_of(regclass);
drop function fencepost.is_session_of(name);
drop function fencepost.record_protection(regclass, text, name, boolean);
drop function fencepost.protect(regclass, text, name, boolean);
drop function fencepost.check_protectable(regclass);
drop function fencepost.stamp_default(text);
drop function fencepost.token_setting(text);
drop function fencepost.trigger_faults(regclass, text, name, boolean);
drop function fencepost.installed_triggers(regclass);
drop function fencepost.wanted_triggers(regclass, text, name, boolean);
drop function fencepost.outer_parents(regclass);
drop function fencepost.table_tree(regclass);
drop function fencepost.stamp();
drop function fencepost.guard_rows();
drop function fencepost.guard();
drop function fencepost.require_fence(text, text, text, text);
drop function fencepost.bound_transaction(interval, timestamptz, bigint, bigint);
drop function fencepost.template_expression(text, regclass, text);
drop function fencepost.read_guard(text);
drop function fencepost.escape_braces(text);
drop table fencepost.protected_schema;
drop table fencepost.protected_table;

-- As 0001_leases_and_fence.sql has it.
create or replace function fencepost.fence(
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

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 2';
