import { escapeIdentifier } from 'pg'
import type { TextRow } from '../database/connection.ts'
import { type Examination, advice, sql } from './examination.ts'
import { type Shipped, normalQuery } from './shipped.ts'

/** The tables that the promises rest on, with their keys. */
const keys: Readonly<Record<string, string>> = {
  token_sequence: 'name',
  holder: 'id',
  lease: 'name',
  protected_table: 'relation',
  protected_schema: 'name',
  highest_token: 'lease',
  resource: 'name, token',
}

/** The tables and views of the schema: all there, with their keys, and nothing planted on them. */
export async function checkRelations(exam: Examination, shipped: Shipped): Promise<void> {
  const rows = await exam.look(
    { what: 'the tables of the schema', needs: 'the right to read the catalogs' },
    `select c.relname as name, c.relkind::text as kind, c.relpersistence::text as persistence,
            (c.relrowsecurity or c.relforcerowsecurity)::text as has_row_security,
            (select string_agg(format('%I.%I', n.nspname, h.relname), ', ')
               from pg_inherits i join pg_class h on h.oid = i.inhrelid join pg_namespace n on n.oid = h.relnamespace
              where i.inhparent = c.oid) as children,
            case when c.relkind = 'v' then pg_get_viewdef(c.oid) end as query,
            exists (select from pg_index x
                     where x.indrelid = c.oid and x.indisprimary and x.indisunique and x.indisvalid)::text as has_key
       from pg_class c
      where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = 'fencepost')
        and c.relkind in ('r', 'p', 'v', 'm', 'f')
      order by c.relname`,
  )
  if (rows === undefined) return
  for (const row of rows) checkRelation(exam, row, shipped)
  const present = new Set(rows.map((row) => row['name']!))
  for (const name of shipped.isKnown ? shipped.relations : []) {
    if (present.has(name)) continue
    exam.found(
      'relation-missing',
      'error',
      `fencepost.${name}`,
      `The table or view fencepost.${name} is gone.`,
      advice(
        'Restore it from a backup. What it held is part of the promises; if it held nothing that matters, drop the schema and run "fencepost migrate".',
      ),
    )
  }
  await checkPlanted(exam, shipped)
}

function checkRelation(exam: Examination, row: TextRow, shipped: Shipped): void {
  const name = row['name']!
  const relation = `fencepost.${name}`
  const key = keys[name]
  if (shipped.isKnown && !shipped.relations.has(name) && name !== 'migration') {
    exam.found(
      'object-unknown',
      'warning',
      relation,
      `${relation} is not fencepost's, and functions that run with the owner's rights may read it.`,
      sql(`alter ${kinds[row['kind']!] ?? 'table'} ${relation} set schema public;`),
    )
  }
  const query = shipped.isKnown ? shipped.views.get(name) : undefined
  if (query !== undefined && normalQuery(row['query'] ?? '') !== query) {
    exam.found(
      'view-altered',
      'error',
      relation,
      `The view ${relation} is not the one that was shipped.`,
      sql(`create or replace view ${relation} as ${query};`),
    )
  }
  if (key !== undefined && row['has_key'] !== 'true') {
    exam.found(
      'primary-key-missing',
      'error',
      relation,
      `${relation} has no valid primary key on (${key}), so it may hold two rows of one name.`,
      sql(`alter table ${relation} add primary key (${key});`),
    )
  }
  if (row['persistence'] === 'u') {
    exam.found(
      'table-unlogged',
      'error',
      relation,
      `${relation} is unlogged: a crash empties it, and tokens would be given out again.`,
      sql(`alter table ${relation} set logged;`),
    )
  }
  if (row['has_row_security'] === 'true') {
    exam.found(
      'row-security',
      'error',
      relation,
      `Row security is on for ${relation}, so the functions may see only part of its rows.`,
      sql(`alter table ${relation} disable row level security, no force row level security;`),
    )
  }
  if (row['children'] !== null && row['children'] !== undefined) {
    exam.found(
      'child-planted',
      'error',
      relation,
      `${row['children']} inherits from ${relation}, so its rows are taken for rows of the schema.`,
      sql(
        row['children']
          .split(', ')
          .map((child) => `alter table ${child} no inherit ${relation};`)
          .join('\n'),
      ),
    )
  }
}

const kinds: Readonly<Record<string, string>> = {
  v: 'view',
  m: 'materialized view',
  f: 'foreign table',
}

async function checkPlanted(exam: Examination, shipped: Shipped): Promise<void> {
  const rows = await exam.look(
    { what: 'triggers and rules on the tables of the schema', needs: 'the right to read the catalogs' },
    `with relation as (
       select c.oid, c.relname from pg_class c
        where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = 'fencepost'))
     select 'trigger' as kind, t.tgname as name, r.relname as relation
       from pg_trigger t join relation r on r.oid = t.tgrelid where not t.tgisinternal
     union all
     select 'rule', w.rulename, r.relname
       from pg_rewrite w join relation r on r.oid = w.ev_class where w.rulename <> '_RETURN'
     union all
     select 'policy', p.polname, r.relname from pg_policy p join relation r on r.oid = p.polrelid
      order by 3, 2`,
  )
  for (const row of rows ?? []) {
    const { kind, name, relation } = row
    if (kind === 'trigger' && shipped.triggers.has(name!)) continue
    exam.found(
      'trigger-planted',
      'error',
      `fencepost.${relation!}`,
      `The ${kind!} "${name!}" on fencepost.${relation!} is not fencepost's: it can change what a grant or a fence does.`,
      sql(`drop ${kind!} ${escapeIdentifier(name!)} on fencepost.${relation!};`),
    )
  }
}
