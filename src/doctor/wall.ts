import type { TextRow } from '../database/connection.ts'
import { sqlStateOf } from '../database/failure.ts'
import { type Examination, advice, enumerate, sql } from './examination.ts'
import { quoteName, quoteText } from './quoting.ts'
import { type Recorded, protectCommand } from './records.ts'

/** A table of a protected tree. */
interface Branch {
  readonly oid: string
  readonly table: string
  readonly kind: string
  readonly isRoot: boolean
}

/** The same as a call in SQL, for a transaction that does more. */
function protectCall(table: string, recorded: Recorded): string {
  const words = [table, recorded.guard, recorded.fenceColumn].map(quoteText)
  return `select fencepost.protect(${words[0]!}::regclass, ${words[1]!}, ${words[2]!}, ${recorded.isStamped});`
}

/** The triggers of protected tables and of every partition of them. */
export async function checkWall(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  for (const one of recorded) {
    if (one.table === undefined) {
      reportDropped(exam, one, recorded)
      continue
    }
    // oxlint-disable-next-line no-await-in-loop -- One session, one query at a time.
    await checkTable(exam, one, one.table)
  }
}

function reportDropped(exam: Examination, one: Recorded, recorded: readonly Recorded[]): void {
  const forget = `select fencepost.forget_dropped(${quoteText(one.name)});`
  if (!one.isRemade) {
    exam.found(
      'protected-table-dropped',
      'warning',
      one.name,
      `The table ${one.name}, guarded by "${one.guard}", no longer exists: if it has another name or schema now, protect it there.`,
      sql(forget),
    )
    return
  }
  const isProtected = recorded.some((other) => other.table === one.name)
  exam.found(
    'protected-table-remade',
    isProtected ? 'warning' : 'error',
    one.name,
    isProtected
      ? `The table ${one.name} was dropped and made anew, and is protected again; what was recorded of the first one is still there.`
      : `The table ${one.name}, guarded by "${one.guard}", was dropped and made anew, and is not protected any more.`,
    isProtected ? sql(forget) : protectCommand(one.name, one),
  )
}

async function checkTable(exam: Examination, recorded: Recorded, table: string): Promise<void> {
  const tree = await readTree(exam, recorded.oid)
  if (tree === undefined) return
  const local = tree.filter((branch) => branch.kind !== 'f')
  for (const branch of tree) {
    if (branch.kind !== 'f') continue
    exam.found(
      'partition-foreign',
      'error',
      branch.table,
      `${branch.table} is a partition of ${table} and lives on another server, where its rows can be written past the wall.`,
      advice(
        `Protect it where it is, and take it out of this table: alter table ${table} detach partition ${branch.table};`,
      ),
    )
  }
  await checkShape(exam, recorded, table, local)
  await checkFaults(exam, recorded, table, local)
}

async function readTree(exam: Examination, oid: string): Promise<Branch[] | undefined> {
  const rows = await exam.look(
    { what: 'the partitions of a protected table', needs: 'the right to read the catalogs' },
    `with recursive tree as (
       select $1::oid as oid
       union
       select i.inhrelid from pg_inherits i join tree t on t.oid = i.inhparent)
     select c.oid::text as oid, format('%I.%I', n.nspname, c.relname) as "table", c.relkind::text as kind
       from tree t join pg_class c on c.oid = t.oid join pg_namespace n on n.oid = c.relnamespace
      order by c.oid <> $1::oid, 2`,
    [oid],
  )
  return rows?.map((row) => ({
    oid: row['oid']!,
    table: row['table']!,
    kind: row['kind']!,
    isRoot: row['oid'] === oid,
  }))
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

/** A trigger of the right name that fires for less, or calls something else: what a comparison of arguments does not see. */
async function checkShape(
  exam: Examination,
  recorded: Recorded,
  table: string,
  tree: readonly Branch[],
): Promise<void> {
  const rows = await exam.look(
    { what: `the triggers of ${table}`, needs: 'the right to read the catalogs' },
    `select t.tgrelid::text as oid, t.tgname as name
       from pg_trigger t
       join pg_proc p on p.oid = t.tgfoid
       join pg_namespace n on n.oid = p.pronamespace
       join json_each_text($2) w on w.key = t.tgname
      where t.tgrelid = any ($1::oid[])
        and (t.tgtype <> w.value::int or t.tgqual is not null or t.tgattr::text <> ''
             or n.nspname <> 'fencepost'
             or p.proname <> case when t.tgname ~ '_rows_' then 'guard_rows' when t.tgname = 'fencepost_stamp' then 'stamp'
                                  else 'guard' end)
      order by 1, 2`,
    [tree.map((branch) => branch.oid), JSON.stringify(types)],
  )
  for (const row of rows ?? []) {
    const branch = tree.find((one) => one.oid === row['oid'])!
    exam.found(
      'trigger-altered',
      'error',
      branch.table,
      `The trigger ${row['name']!} of ${branch.table} is not the one that protect makes: it fires for less, or calls something else.`,
      sql(
        [
          'begin;',
          "set local lock_timeout = '1s';",
          `drop trigger ${quoteName(row['name']!)} on ${branch.table};`,
          protectCall(table, recorded),
          'commit;',
        ].join('\n'),
      ),
    )
  }
}

async function checkFaults(
  exam: Examination,
  recorded: Recorded,
  table: string,
  tree: readonly Branch[],
): Promise<void> {
  let rows: TextRow[]
  const subject = {
    what: `the triggers of ${table}`,
    needs: 'EXECUTE on the functions of the schema (fencepost migrate --grant-to)',
  }
  const text = `select t.oid::text as oid, f.name, f.fault
       from unnest($1::oid[]) t (oid)
      cross join lateral fencepost.trigger_faults(t.oid::regclass, $2, $3, $4) f
      order by 1, 2, 3`
  const values = [
    tree.map((branch) => branch.oid),
    recorded.guard,
    recorded.fenceColumn,
    String(recorded.isStamped),
  ]
  try {
    rows = await exam.ask(text, values)
  } catch (error) {
    if (sqlStateOf(error) === '42703') {
      exam.found(
        'guard-column-missing',
        'error',
        table,
        `The guard "${recorded.guard}" of ${table} names a column that the table, or a partition of it, does not have, so every write fails.`,
        advice(
          `Name the column back, or protect it with the column's new name: fencepost protect ${table} --lease TEMPLATE`,
        ),
      )
      return
    }
    exam.couldNotLook(subject, error)
    rows = await readPlainFaults(exam, tree)
  }
  for (const branch of tree) {
    const faults = rows.filter((row) => row['oid'] === branch.oid)
    reportFaults(exam, recorded, table, branch, faults)
  }
}

/** What the catalogs alone tell: whether there is a guard at all, and what is disabled. */
async function readPlainFaults(exam: Examination, tree: readonly Branch[]): Promise<TextRow[]> {
  const rows = await exam.look(
    { what: 'the triggers of protected tables', needs: 'the right to read the catalogs' },
    `select o.oid::text as oid, 'fencepost_guard' as name, 'missing' as fault
       from unnest($1::oid[]) o (oid)
      where not exists (select from pg_trigger t where t.tgrelid = o.oid and t.tgname = 'fencepost_guard')
     union all
     select t.tgrelid::text, t.tgname, 'disabled'
       from pg_trigger t where t.tgrelid = any ($1::oid[]) and t.tgname = any ($2::name[]) and t.tgenabled not in ('O', 'A')
      order by 1, 2`,
    [tree.map((branch) => branch.oid), Object.keys(types)],
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
  const reported = new Set(
    exam.findings
      .filter((one) => one.code === 'trigger-altered' && one.object === branch.table)
      .map((one) => /trigger (\S+)/.exec(one.what)?.[1]),
  )
  // One with other arguments is both missing and unwanted.
  const altered = named('missing').filter((name) => unwanted.includes(name))
  const missing = named('missing').filter((name) => !unwanted.includes(name) && !reported.has(name))
  const disabled = named('disabled')
  const others = unwanted.filter((name) => !altered.includes(name) && !reported.has(name))
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
      `${branch.table} is protected by "${recorded.guard}", but ${triggers(altered)} check something else.`,
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
