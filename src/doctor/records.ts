import { createHash } from 'node:crypto'
import type { TextRow } from '../database/connection.ts'
import { sqlStateOf } from '../database/failure.ts'
import { type Examination, type Fix, command } from './examination.ts'

/** A protection as it is recorded, with the table that it is about. */
export interface Recorded {
  readonly oid: string
  /** Its name when it was protected, quoted where needed. */
  readonly name: string
  /** Its name now; undefined when the table no longer exists. */
  readonly table: string | undefined
  /** Whether another table has the recorded name by now. */
  readonly isRemade: boolean
  readonly guard: string
  readonly fenceColumn: string
  readonly isStamped: boolean
}

export interface Records {
  readonly tables: readonly Recorded[]
  readonly isKnown: boolean
}

/** From the records that are named "r", with the tables "c" that they are about. A table made anew has another number. */
function recordsFrom(record: string, oid: string): string {
  return `select coalesce(${oid}::text, '') as oid, case when c.oid is not null then format('%I.%I', n.nspname, c.relname) end as "table",
            r.name, r.guard, r.fence_column, r.is_stamped::text as is_stamped,
            exists (select from pg_class x join pg_namespace s on s.oid = x.relnamespace
                     where format('%I.%I', s.nspname, x.relname) = r.name and x.relkind in ('r', 'p')
                       and x.oid is distinct from c.oid)::text as is_remade
       from ${record}
       left join pg_namespace n on n.oid = c.relnamespace
      order by r.name`
}

/**
 * What is recorded as protected, empty in a schema that protects nothing. Where it may not be read it is guessed from the
 * triggers that there are, and `isKnown` is false.
 */
export async function readRecorded(exam: Examination): Promise<Records> {
  if (!exam.facts.relations.has('protected_table')) return { tables: [], isKnown: true }
  const subject = { what: 'the protected tables', needs: 'SELECT on fencepost.protections' }
  let rows: TextRow[] | undefined
  try {
    rows = await exam.ask(
      recordsFrom(
        'fencepost.protected_table r left join pg_class c on c.oid = r.relation',
        'r.relation::oid',
      ),
    )
  } catch (error) {
    if (sqlStateOf(error) !== '42501') {
      exam.couldNotLook(subject, error)
      return { tables: [], isKnown: false }
    }
    // The view shows names only, and the roles of applications may look at it.
    rows = await exam.look(
      subject,
      recordsFrom(
        `(select p."table" as name, p.guard, p.fence_column, p.is_stamped, p.is_dropped from fencepost.protections p) r
           left join (pg_class c join pg_namespace k on k.oid = c.relnamespace)
                  on format('%I.%I', k.nspname, c.relname) = r.name and c.relkind in ('r', 'p') and not r.is_dropped`,
        'c.oid',
      ),
    )
  }
  if (rows === undefined) return { tables: await guessRecorded(exam), isKnown: false }
  const tables = rows.map((row) => ({
    oid: row['oid']!,
    name: row['name']!,
    table: row['table'] ?? undefined,
    isRemade: row['is_remade'] === 'true',
    guard: row['guard']!,
    fenceColumn: row['fence_column']!,
    isStamped: row['is_stamped'] === 'true',
  }))
  return { tables, isKnown: true }
}

/** Triggers of every protection, with the table that has them and what they say of it. */
export const installed = `select c.oid::text as oid, format('%I.%I', n.nspname, c.relname) as "table",
            min(encode(t.tgargs, 'hex')) filter (where t.tgname = 'fencepost_guard') as arguments,
            min(encode(t.tgargs, 'hex')) filter (where t.tgname = 'fencepost_stamp') as stamp
       from pg_trigger t
       join pg_proc p on p.oid = t.tgfoid and p.proname in ('guard', 'guard_rows', 'stamp')
       join pg_namespace s on s.oid = p.pronamespace and s.nspname = 'fencepost'
       join pg_class c on c.oid = t.tgrelid
       join pg_namespace n on n.oid = c.relnamespace`

async function guessRecorded(exam: Examination): Promise<Recorded[]> {
  const rows = await exam.look(
    { what: 'tables with triggers of a protection', needs: 'the right to read the catalogs' },
    `${installed}
      where not exists (select from pg_inherits i join pg_trigger u on u.tgrelid = i.inhparent
                         where i.inhrelid = c.oid and u.tgfoid = t.tgfoid)
      group by 1, 2 order by 2`,
  )
  return (rows ?? []).flatMap((row) => readInstalled(row) ?? [])
}

export function readInstalled(row: TextRow): Recorded | undefined {
  const [guard] = triggerArguments(row['arguments'])
  if (guard === undefined) return undefined
  const isStamped = (row['stamp'] ?? null) !== null
  return {
    oid: row['oid']!,
    name: row['table']!,
    table: row['table']!,
    isRemade: false,
    guard,
    // After the setting that it takes the token from.
    fenceColumn: triggerArguments(row['stamp'])[1] ?? 'fence_token',
    isStamped,
  }
}

/** Each ends with a zero byte. */
function triggerArguments(hex: string | null | undefined): string[] {
  return Buffer.from(hex ?? '', 'hex')
    .toString('utf8')
    .split('\0')
    .slice(0, -1)
}

/** Where the guard leaves the token for stamps, as the schema's token_setting() has it: a role may lack the right to ask. */
export function tokenSetting(guard: string): string {
  return `fencepost.token_${createHash('sha256').update(guard).digest('hex').slice(0, 16)}`
}

/** The command that protects a table as it is recorded. It changes only what is missing. */
export function protectCommand(table: string, recorded: Recorded): Fix {
  return command(
    'fencepost',
    'protect',
    table,
    '--lease',
    recorded.guard,
    ...(recorded.fenceColumn === 'fence_token' ? [] : ['--fence-column', recorded.fenceColumn]),
    ...(recorded.isStamped ? ['--stamp'] : []),
  )
}
