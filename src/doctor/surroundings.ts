import { type Examination, command, sql } from './examination.ts'
import { quoteName } from './quoting.ts'
import { type Recorded, type Records, installed, protectCommand, readInstalled } from './records.ts'

/** Ways past the triggers that are seen in the catalogs: parents, rules, and protections that nobody has recorded. */
export async function checkSurroundings(exam: Examination, { tables, isKnown }: Records): Promise<void> {
  const standing = tables.filter((one) => one.table !== undefined)
  await checkParents(exam, standing)
  if (isKnown) await checkUnrecorded(exam, standing)
  await checkRules(exam, standing)
}

async function checkParents(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  const rows = await exam.look(
    { what: 'the parents of protected tables', needs: 'the right to read the catalogs' },
    `with recursive up as (
       select i.inhrelid as root, i.inhparent as oid from pg_inherits i where i.inhrelid = any ($1::oid[])
       union
       select u.root, i.inhparent from up u join pg_inherits i on i.inhrelid = u.oid)
     select u.root::text as root, format('%I.%I', n.nspname, c.relname) as parent
       from up u join pg_class c on c.oid = u.oid join pg_namespace n on n.oid = c.relnamespace
      where not exists (select from pg_inherits i where i.inhrelid = u.oid)
        -- A protected table further up guards what is below it.
        and not exists (select from up a where a.root = u.root and a.oid = any ($1::oid[]))
      order by 1, 2`,
    [recorded.map((one) => one.oid)],
  )
  for (const row of rows ?? []) {
    const one = recorded.find((known) => known.oid === row['root'])!
    exam.found(
      'parent-unprotected',
      'error',
      one.table!,
      `${one.table!} is protected, but has become part of ${row['parent']!}, through which its rows are written without a check.`,
      protectCommand(row['parent']!, one),
    )
  }
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
      `The rule ${quoteName(row['name']!)} of ${row['table']!} ${
        row['is_instead'] === 'true'
          ? 'does something else than the write, so the wall does not see it'
          : 'writes elsewhere as well, where the wall does not see it'
      }.`,
      sql(`drop rule ${quoteName(row['name']!)} on ${row['table']!};`),
    )
  }
}
