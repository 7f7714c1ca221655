-- Up Migration

-- Asks for leases all or none: either every name comes back with a token, or none is granted and the rows are those that stand
-- in the way, with the reasons of acquire(). One token each, from one sequence. No order of the names can deadlock: rows that
-- somebody else is working on are never waited for. An attempt that finds one of them held reads only and writes nothing.
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

revoke all on function fencepost.acquire_all(text[], uuid, bigint, text) from public;

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 5';

-- Down Migration

drop function fencepost.acquire_all(text[], uuid, bigint, text);

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 4';
