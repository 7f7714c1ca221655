import { escapeIdentifier } from 'pg'
import { type Examination, command, sql } from './examination.ts'
import { type Recorded, type Records, installed, protectCommand, readInstalled } from './records.ts'

/** What the records do not tell: rules, and protections that nobody has recorded. */
export async function checkSurroundings(exam: Examination, { tables, isKnown }: Records): Promise<void> {
  const standing = tables.filter((one) => one.table !== undefined)
  if (isKnown) await checkUnrecorded(exam, standing)
  await checkRules(exam, standing)
}

async function checkUnrecorded(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  const rows = await exam.look(
    { what: 'tables with triggers of a protection', needs: 'the right to read the catalogs' },
    `with recursive tree as (
       select unnest($1::oid[]) as oid
       union
       select i.inhrelid from pg_inherits i join tree t on t.oid = i.inhparent)
     ${installed}
      where not exists (select from tree where tree.oid = t.tgrelid)
      group by 1, 2 order by 2`,
    [recorded.map((one) => one.oid)],
  )
  for (const row of rows ?? []) {
    const table = row['table']!
    const protection = readInstalled(row)
    exam.found(
      'table-unrecorded',
      'warning',
      table,
      `${table} has triggers of a protection${protection === undefined ? '' : ` by "${protection.guard}"`} that is not recorded, as a detached partition or a restored table has: nobody notices when they are gone.`,
      protection === undefined ? command('fencepost', 'unprotect', table) : protectCommand(table, protection),
    )
  }
}

async function checkRules(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  const rows = await exam.look(
    { what: 'the rules of protected tables', needs: 'the right to read the catalogs' },
    `with recursive tree as (
       select unnest($1::oid[]) as oid
       union
       select i.inhrelid from pg_inherits i join tree t on t.oid = i.inhparent)
     select w.rulename as name, format('%I.%I', n.nspname, c.relname) as "table", w.is_instead::text as is_instead
       from pg_rewrite w join tree t on t.oid = w.ev_class
       join pg_class c on c.oid = w.ev_class join pg_namespace n on n.oid = c.relnamespace
      where w.ev_type <> '1' and w.ev_enabled <> 'D'
      order by 2, 1`,
    [recorded.map((one) => one.oid)],
  )
  for (const row of rows ?? []) {
    exam.found(
      'rule-on-protected-table',
      'warning',
      row['table']!,
      `The rule ${escapeIdentifier(row['name']!)} of ${row['table']!} ${
        row['is_instead'] === 'true'
          ? 'does something else than the write, so the wall does not see it'
          : 'writes elsewhere as well, where the wall does not see it'
      }.`,
      sql(`drop rule ${escapeIdentifier(row['name']!)} on ${row['table']!};`),
    )
  }
}
