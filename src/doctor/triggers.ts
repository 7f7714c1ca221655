import type { TextRow } from '../database/connection.ts'
import { sqlStateOf } from '../database/failure.ts'
import { type Examination, advice, enumerate } from './examination.ts'
import { type Recorded, protectCommand } from './records.ts'

/** A table of a protected tree. */
export interface Branch {
  readonly oid: string
  readonly table: string
  readonly kind: string
  readonly isRoot: boolean
}

/** The triggers of a protected tree, table by table. */
export async function checkTriggers(
  exam: Examination,
  recorded: Recorded,
  table: string,
  tree: readonly Branch[],
): Promise<void> {
  const fits = await checkTemplate(exam, recorded, table, tree)
  const rows = await readFaults(exam, recorded, table, tree)
  for (const branch of tree) {
    const faults = rows.filter(
      (row) => row['oid'] === branch.oid && (fits || !row['name']!.startsWith('fencepost_guard_rows_')),
    )
    reportFaults(exam, recorded, table, branch, faults)
  }
}

/** Whether the columns of a template are what it may name. When not, no row trigger is as it should be. */
async function checkTemplate(
  exam: Examination,
  recorded: Recorded,
  table: string,
  tree: readonly Branch[],
): Promise<boolean> {
  try {
    await exam.ask(
      `select fencepost.template_expression($2, t.oid::regclass, 'r') from unnest($1::oid[]) t (oid)`,
      [tree.map((branch) => branch.oid), recorded.guard],
    )
    return true
  } catch (error) {
    const sqlState = sqlStateOf(error)
    // Whatever else it is, the comparison of the triggers meets it as well.
    if (sqlState !== '42703' && sqlState !== '22023') return true
    const isGone = sqlState === '42703'
    exam.found(
      'guard-column-missing',
      'error',
      table,
      isGone
        ? `The guard "${recorded.guard}" of ${table} names a column that the table, or a partition of it, does not have, so every write fails.`
        : `The guard of ${table} names a column that has changed, so that it does not tell for certain which lease a row belongs to: ${(error as Error).message}.`,
      advice(
        isGone
          ? `Name the column back, or protect it with the column's new name: fencepost protect ${table} --lease TEMPLATE`
          : `Give the column its former type, or protect it by another column: fencepost protect ${table} --lease TEMPLATE`,
      ),
    )
    return false
  }
}

/** As the schema tells them: a trigger that is not the one that protect makes is both missing and unwanted. */
async function readFaults(
  exam: Examination,
  recorded: Recorded,
  table: string,
  tree: readonly Branch[],
): Promise<TextRow[]> {
  try {
    return await exam.ask(
      `select t.oid::text as oid, f.name, f.fault
         from unnest($1::oid[]) t (oid)
        cross join lateral fencepost.trigger_faults(t.oid::regclass, $2, $3, $4) f
        order by 1, 2, 3`,
      [tree.map((branch) => branch.oid), recorded.guard, recorded.fenceColumn, String(recorded.isStamped)],
    )
  } catch (error) {
    const needs = 'EXECUTE on the functions of the schema (fencepost migrate --grant-to)'
    exam.couldNotLook({ what: `the triggers of ${table}`, needs }, error)
    return readPlainFaults(exam, tree)
  }
}

/** pg_trigger.tgtype: 1 row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate. */
const types: Readonly<Record<string, number>> = {
  fencepost_guard: 2 + 4 + 8 + 16 + 32,
  fencepost_guard_again: 4 + 8 + 16,
  fencepost_guard_rows_deleted: 8,
  fencepost_guard_rows_inserted: 4,
  fencepost_guard_rows_updated: 16,
  fencepost_stamp: 1 + 2 + 4 + 16,
}

/** What the catalogs alone tell: whether there is a guard at all, what is disabled, fires for less or calls something else. */
async function readPlainFaults(exam: Examination, tree: readonly Branch[]): Promise<TextRow[]> {
  const rows = await exam.look(
    { what: 'the triggers of protected tables', needs: 'the right to read the catalogs' },
    `with present as (
       select t.tgrelid as oid, t.tgname as name, t.tgenabled in ('O', 'A') as is_enabled,
              t.tgtype = w.value::int and t.tgqual is null and t.tgattr::text = '' and n.nspname = 'fencepost'
              and p.proname = case when t.tgname ~ '_rows_' then 'guard_rows' when t.tgname = 'fencepost_stamp' then 'stamp'
                                   else 'guard' end as is_as_made
         from pg_trigger t
         join pg_proc p on p.oid = t.tgfoid
         join pg_namespace n on n.oid = p.pronamespace
         join json_each_text($2) w on w.key = t.tgname
        where t.tgrelid = any ($1::oid[]))
     select o.oid::text as oid, 'fencepost_guard' as name, 'missing' as fault
       from unnest($1::oid[]) o (oid)
      where not exists (select from present p where p.oid = o.oid and p.name = 'fencepost_guard')
     union all
     select p.oid::text, p.name, f.fault
       from present p cross join (values ('missing'), ('unwanted')) f (fault) where not p.is_as_made
     union all
     select p.oid::text, p.name, 'disabled' from present p where p.is_as_made and not p.is_enabled
      order by 1, 2, 3`,
    [tree.map((branch) => branch.oid), JSON.stringify(types)],
  )
  return rows ?? []
}

function triggers(names: readonly string[]): string {
  return `the trigger${names.length > 1 ? 's' : ''} ${enumerate(names)}`
}

function reportFaults(
  exam: Examination,
  recorded: Recorded,
  table: string,
  branch: Branch,
  faults: readonly TextRow[],
): void {
  const named = (fault: string): string[] =>
    faults.filter((row) => row['fault'] === fault).map((row) => row['name']!)
  const unwanted = named('unwanted')
  const altered = named('missing').filter((name) => unwanted.includes(name))
  const missing = named('missing').filter((name) => !unwanted.includes(name))
  const disabled = named('disabled')
  const others = unwanted.filter((name) => !altered.includes(name))
  const fix = protectCommand(table, recorded)
  if (missing.length > 0) {
    exam.found(
      branch.isRoot ? 'trigger-missing' : 'partition-unguarded',
      'error',
      branch.table,
      branch.isRoot
        ? `${branch.table} is protected, but lacks ${triggers(missing)}.`
        : `${branch.table} is part of ${table}, which is protected, but lacks ${triggers(missing)}.`,
      fix,
    )
  }
  if (disabled.length > 0) {
    exam.found(
      'trigger-disabled',
      'error',
      branch.table,
      `${branch.table} is protected, but ${triggers(disabled)} ${disabled.length > 1 ? 'are' : 'is'} disabled.`,
      fix,
    )
  }
  if (altered.length > 0) {
    exam.found(
      'trigger-altered',
      'error',
      branch.table,
      `${branch.table} is protected by "${recorded.guard}", but ${triggers(altered)} ${
        altered.length > 1
          ? 'are not those that protect makes: they check'
          : 'is not the one that protect makes: it checks'
      } something else, or less.`,
      fix,
    )
  }
  if (others.length > 0) {
    exam.found(
      'trigger-unwanted',
      'warning',
      branch.table,
      `${branch.table} has ${triggers(others)}, which its protection by "${recorded.guard}" does not need.`,
      fix,
    )
  }
}
