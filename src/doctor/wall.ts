import { escapeLiteral } from 'pg'
import { type Examination, advice, sql } from './examination.ts'
import { type Recorded, protectCommand } from './records.ts'
import { type Branch, checkTriggers } from './triggers.ts'

/** Protected tables and every partition of them: there, here and with their triggers. */
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
  const forget = `select fencepost.forget_dropped(${escapeLiteral(one.name)});`
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
  await checkTriggers(exam, recorded, table, local)
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
