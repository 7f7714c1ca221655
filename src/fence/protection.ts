import { randomInt } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, type ClientConfig, escapeIdentifier, escapeLiteral } from 'pg'
import { RequestFailure, describeFailure, isConnectionState, sqlStateOf } from '../database/failure.ts'
import { type Duration, durationMs } from '../duration.ts'
import { DatabaseError, FencepostError, InvalidArgumentError } from '../errors.ts'
import { checkName } from '../lease/name.ts'
import { protectedFailure } from './fence-failure.ts'

export interface ProtectOptions {
  /**
   * What guards the table: one lease (`settlement`), a prefix (`orders/*`: any lease that begins so) or a template over
   * columns of the row (`account/{id}`: each row by its own lease). `{{`, `}}` and a final `**` stand for the characters
   * themselves. Columns of a template are integers, text, varchar, uuid, boolean or enums.
   */
  readonly lease: string
  /** The column that rows are stamped in, added when it is missing. Default `fence_token`. It must be a bigint. */
  readonly fenceColumn?: string | undefined
  /**
   * Also stamp rows whose writer does not name the column in an UPDATE, by a row trigger. Default false, because it costs
   * a large write two to three times the plain one. INSERT is stamped by a column default in any case.
   */
  readonly stamp?: boolean | undefined
  /** How long to keep trying for the brief locks that this needs. Up to a day, default 1 minute. */
  readonly wait?: Duration | undefined
}

export interface ProtectSchemaOptions {
  /** What guards the schema: one lease or a prefix (`deploy/*`). */
  readonly lease: string
}

/** A protected table, as the view `fencepost.protections` shows it. */
export interface ProtectedTable {
  /** With its schema, quoted where SQL needs it. */
  readonly table: string
  /** It was dropped since, and its protection with it. A table of the same name that was made again is not protected. */
  readonly isDropped: boolean
  readonly guard: string
  readonly fenceColumn: string
  readonly isStamped: boolean
  readonly since: Date
  /** How many tables it is: itself and its partitions. */
  readonly tables: number
  /** Those of them that lack a trigger or have one disabled. `protect` mends them. */
  readonly unguarded: readonly string[]
}

export interface ProtectedSchema {
  readonly schema: string
  readonly guard: string
  readonly since: Date
}

export interface Protections {
  readonly tables: readonly ProtectedTable[]
  readonly schemas: readonly ProtectedSchema[]
}

const dayMs = 86_400_000

/**
 * How long one attempt may queue for a lock: whoever writes the table queues behind it. It grows beyond the server's
 * `deadlock_timeout` of 1 s, because only then an autovacuum gives way.
 */
const lockTimeoutsMs = [100, 200, 400, 800, 1500]

/** Protects a table and returns the number of tables that are guarded: it and its partitions. */
export async function protectTable(
  config: ClientConfig,
  table: string,
  options: ProtectOptions,
): Promise<number> {
  const call = protectCall(options)
  return withBriefLocks(config, 'protect', table, options.wait, async (client) => {
    const relation = await resolveTable(client, table)
    const { rows } = await client.query<{ count: number }>(
      `select ${call('$1::pg_catalog.oid::pg_catalog.regclass')} as count`,
      [relation],
    )
    return rows[0]?.count ?? 0
  })
}

/** Takes the protection away. Returns the number of tables that had any: 0 when there was nothing to do. */
export async function unprotectTable(
  config: ClientConfig,
  table: string,
  options: { readonly wait?: Duration | undefined },
): Promise<number> {
  return withBriefLocks(config, 'unprotect', table, options.wait, async (client) => {
    const forgotten = await forgetDropped(client, table)
    const relation = await findTable(client, table)
    if (relation === undefined) {
      if (forgotten === 0) throw unknownTable(table)
      return forgotten
    }
    const { rows } = await client.query<{ count: number }>(
      'select fencepost.unprotect($1::pg_catalog.oid::pg_catalog.regclass) as count',
      [relation],
    )
    return forgotten + (rows[0]?.count ?? 0)
  })
}

/** A protection whose table was dropped is known by the name that it had. */
async function forgetDropped(client: Client, table: string): Promise<number> {
  if (!/^("([^"]|"")+"|[^".]+)(\.("([^"]|"")+"|[^".]+))*$/.test(table)) return 0
  const { rows } = await client.query<{ count: number | null }>(
    `select sum(fencepost.forget_dropped(p."table"))::integer as count
       from fencepost.protections p
      where p.is_dropped
        and pg_catalog.parse_ident(p."table")
            in (pg_catalog.parse_ident($1), array['public'] || pg_catalog.parse_ident($1))`,
    [qualifiedName(table)],
  )
  return rows[0]?.count ?? 0
}

/** The SQL that protects a table, for migrations of the user's own. */
export function protectSql(table: string, options: ProtectOptions): string {
  const call = protectCall(options)
  checkName('table', table)
  return [
    '-- In one transaction. Writers wait while this waits for its lock: it gives up early; try again then.',
    "set local lock_timeout = '1s';",
    `select ${call(`${escapeLiteral(qualifiedName(table))}::regclass`)};`,
    '',
  ].join('\n')
}

export function unprotectSql(table: string): string {
  checkName('table', table)
  return [
    '-- In one transaction.',
    "set local lock_timeout = '1s';",
    `select fencepost.unprotect(${escapeLiteral(qualifiedName(table))}::regclass);`,
    '',
  ].join('\n')
}

export async function protectSchema(
  config: ClientConfig,
  schema: string,
  options: ProtectSchemaOptions,
): Promise<void> {
  const sql = protectSchemaSql(schema, options)
  await withSession(config, 'protect', schema, (client) => client.query(sql))
}

export function protectSchemaSql(schema: string, options: ProtectSchemaOptions): string {
  checkName('schema', schema)
  return `select fencepost.protect_schema(${escapeLiteral(schema)}, ${escapeLiteral(checkName('lease', options.lease))});\n`
}

/** Whether there was a protection to take away. */
export async function unprotectSchema(config: ClientConfig, schema: string): Promise<boolean> {
  checkName('schema', schema)
  return withSession(config, 'unprotect', schema, async (client) => {
    const { rows } = await client.query<{ was: boolean }>(`select fencepost.unprotect_schema($1) as was`, [
      schema,
    ])
    return rows[0]?.was === true
  })
}

export function unprotectSchemaSql(schema: string): string {
  return `select fencepost.unprotect_schema(${escapeLiteral(checkName('schema', schema))});\n`
}

export async function listProtections(config: ClientConfig): Promise<Protections> {
  return withSession(config, 'list', '', async (client) => {
    const tables = await client.query<{
      table: string
      guard: string
      fence_column: string
      is_stamped: boolean
      is_dropped: boolean
      since_ms: string
      tables: number
      unguarded: string[]
    }>(
      `select "table", guard, fence_column, is_stamped, is_dropped, (extract(epoch from since) * 1000)::bigint::text as since_ms, tables,
              unguarded
         from fencepost.protections order by "table"`,
    )
    const schemas = await client.query<{ schema: string; guard: string; since_ms: string }>(
      `select schema, guard, (extract(epoch from since) * 1000)::bigint::text as since_ms
         from fencepost.schema_protections order by schema`,
    )
    return {
      tables: tables.rows.map((row) => ({
        table: row.table,
        isDropped: row.is_dropped,
        guard: row.guard,
        fenceColumn: row.fence_column,
        isStamped: row.is_stamped,
        since: new Date(Number(row.since_ms)),
        tables: row.tables,
        unguarded: row.unguarded,
      })),
      schemas: schemas.rows.map((row) => ({
        schema: row.schema,
        guard: row.guard,
        since: new Date(Number(row.since_ms)),
      })),
    }
  })
}

function protectCall(options: ProtectOptions): (table: string) => string {
  const { lease, fenceColumn = 'fence_token', stamp = false } = options
  checkName('lease', lease)
  checkName('fenceColumn', fenceColumn)
  if (typeof stamp !== 'boolean') {
    throw new InvalidArgumentError('stamp', stamp, 'stamp must be true or false')
  }
  const rest = [lease, ...(fenceColumn === 'fence_token' && !stamp ? [] : [fenceColumn])].map(escapeLiteral)
  if (stamp) rest.push('true')
  return (table) => `fencepost.protect(${[table, ...rest].join(', ')})`
}

/** `Orders` and `app.Orders` as they are written; what has quotes already is taken as SQL. */
function qualifiedName(table: string): string {
  return table.includes('"') ? table : table.split('.').map(escapeIdentifier).join('.')
}

async function resolveTable(client: Client, table: string): Promise<number> {
  const relation = await findTable(client, table)
  if (relation === undefined) throw unknownTable(table)
  return relation
}

/** The table's number: as it is written, else as SQL would read it. Views and the like are found too, and refused later. */
async function findTable(client: Client, table: string): Promise<number | undefined> {
  const find = async (name: string): Promise<number | undefined> => {
    const { rows } = await client.query<{ oid: string | null }>(
      'select pg_catalog.to_regclass($1)::pg_catalog.oid::text as oid',
      [name],
    )
    return rows[0]?.oid == null ? undefined : Number(rows[0].oid)
  }
  try {
    return (await find(qualifiedName(table))) ?? (await find(table))
  } catch (error) {
    // What is no name at all: before PostgreSQL 16 that was an error.
    const sqlState = sqlStateOf(error)
    if (sqlState === '42601' || sqlState === '42602') throw unknownTable(table)
    throw error
  }
}

function unknownTable(table: string): DatabaseError {
  return new DatabaseError(
    'UNKNOWN_TABLE',
    `the database has no table "${table}". Check its name, its schema and the search_path.`,
    { cause: undefined },
  )
}

/**
 * Runs `work` in one transaction that gives up its place in the queue for a lock after a moment, and tries again later: a
 * session that waits for a lock on a table holds up everyone who writes it.
 */
async function withBriefLocks<T>(
  config: ClientConfig,
  action: string,
  table: string,
  wait: Duration | undefined,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  checkName('table', table)
  const waitMs = durationMs('wait', wait ?? 60_000, { minMs: 0, maxMs: dayMs })
  return withSession(config, action, table, async (client) => {
    const startedMs = performance.now()
    for (let attempt = 0; ; attempt += 1) {
      const lockTimeoutMs = lockTimeoutsMs[Math.min(attempt, lockTimeoutsMs.length - 1)]!
      try {
        await client.query(`begin isolation level read committed; set local lock_timeout = ${lockTimeoutMs}`)
        const result = await work(client)
        await client.query('commit')
        return result
      } catch (error) {
        await client.query('rollback').catch(() => {})
        const sqlState = sqlStateOf(error)
        if (sqlState !== '55P03' && sqlState !== '40P01' && sqlState !== '40001') throw error
        const waitedMs = performance.now() - startedMs
        if (waitedMs >= waitMs) {
          throw new DatabaseError(
            'TABLE_BUSY',
            `could not ${action} "${table}" within ${Math.round(waitedMs)} ms: a transaction that has used it is still open. ` +
              'Nothing was changed. Look for it in pg_stat_activity, or wait longer.',
            { cause: error, sqlState },
          )
        }
        // Longer than the attempt itself, so that those who queued behind it get through.
        await sleep(Math.min(lockTimeoutMs + randomInt(50, 250), waitMs - waitedMs))
      }
    }
  })
}

async function withSession<T>(
  config: ClientConfig,
  action: string,
  what: string,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  const client = new Client({
    application_name: `fencepost ${action}`,
    connectionTimeoutMillis: 10_000,
    ...config,
  })
  // Without a listener a lost connection would end the process; the query in progress rejects as well.
  client.on('error', () => {})
  try {
    await client.connect()
    return await work(client)
  } catch (error) {
    throw asFailure(error, action === 'list' ? 'list what is protected' : `${action} "${what}"`)
  } finally {
    await client.end().catch(() => {})
  }
}

function asFailure(error: unknown, action: string): unknown {
  if (error instanceof FencepostError) return error
  // Where the schema is protected as well, its wall speaks.
  const refused = protectedFailure(error)
  if (refused !== undefined) return refused
  const sqlState = sqlStateOf(error)
  const message = error instanceof Error ? error.message : String(error)
  const options = { cause: error, sqlState }
  switch (sqlState) {
    case '0A000':
    case '42804':
      return new DatabaseError(
        'NOT_PROTECTABLE',
        `could not ${action}: ${message}. Nothing was changed.`,
        options,
      )
    case '22023':
      return new InvalidArgumentError(
        'lease',
        undefined,
        `could not ${action}: ${message}. Nothing was changed.`,
      )
    case '42703':
      return new DatabaseError(
        'UNKNOWN_COLUMN',
        `could not ${action}: ${message}. Nothing was changed.`,
        options,
      )
    case '42P01':
      return new DatabaseError(
        'SCHEMA_MISSING',
        `could not ${action}: the schema "fencepost" is not installed in this database, or it is older than this version. ` +
          'Run "fencepost migrate".',
        options,
      )
    case '3F000':
      if (!/"?fencepost"?/.test(message)) {
        return new DatabaseError(
          'UNKNOWN_TABLE',
          `could not ${action}: ${message}. Nothing was changed.`,
          options,
        )
      }
      break
    case '42501':
      return new DatabaseError(
        'PERMISSION_DENIED',
        `could not ${action}: ${message}. ${
          /event trigger/.test(message)
            ? 'Event triggers need a superuser, or the role that a managed service has for them.'
            : 'Run it as the owner of the table, with the rights that "fencepost migrate --grant-to" gives.'
        }`,
        options,
      )
    default:
  }
  const answered = sqlState !== undefined && !isConnectionState(sqlState)
  return describeFailure(new RequestFailure(answered ? 'refused' : 'unsent', error), action)
}
