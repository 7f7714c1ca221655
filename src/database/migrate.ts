import { fileURLToPath } from 'node:url'
import { Client, type ClientBase, type ClientConfig, escapeIdentifier } from 'pg'
import { DatabaseError, FencepostError, InvalidArgumentError } from '../errors.ts'
import { RequestFailure, describeFailure, isConnectionState, sqlStateOf } from './failure.ts'
import { requiredSchemaVersion } from './schema.ts'

export interface MigrateOptions {
  /** `down` removes the newest migration. Tokens survive it: `fencepost.token_sequence` stays. Default `up`. */
  readonly direction?: 'up' | 'down' | undefined
  /** Database roles that may use leases afterwards: USAGE on the schema, EXECUTE on its functions. Default none. */
  readonly grantTo?: readonly string[] | undefined
}

export interface MigrateResult {
  /** The migrations that were applied or removed, in order; empty when there was nothing to do. */
  readonly migrations: readonly string[]
  readonly schemaVersion: number
}

/** Our own number, so that another program's migrations in the same database do not wait for ours. */
const migrationLock = 7_364_521_908_114_203n

const directory = fileURLToPath(new URL('../../migrations', import.meta.url))

/**
 * Installs, upgrades or removes the schema `fencepost`. Any number of processes may call it at once; one works, the
 * others find nothing to do. A role that may not create anything can call it once the schema is there.
 */
export async function migrate(config: ClientConfig, options: MigrateOptions): Promise<MigrateResult> {
  const { direction = 'up', grantTo = [] } = options
  if (direction !== 'up' && direction !== 'down') {
    throw new InvalidArgumentError(
      'direction',
      direction,
      `direction must be "up" or "down"; got "${String(direction)}"`,
    )
  }
  const client = new Client({
    application_name: 'fencepost migrate',
    connectionTimeoutMillis: 10_000,
    ...config,
  })
  // Without a listener a lost connection would end the process; the query in progress rejects as well.
  client.on('error', () => {})
  try {
    await client.connect()
    const installed = await installedVersion(client)
    const current = direction === 'up' && installed >= requiredSchemaVersion
    if (current && grantTo.length === 0) return { migrations: [], schemaVersion: installed }
    return await inOneTransaction(client, async () => {
      await refuseForeignSchema(client)
      const migrations = current ? [] : await runMigrations(client, direction)
      for (const role of direction === 'up' ? grantTo : []) await grant(client, role)
      return { migrations, schemaVersion: await installedVersion(client) }
    })
  } catch (error) {
    throw asMigrateError(error)
  } finally {
    await client.end().catch(() => {})
  }
}

/** Read from the catalogs, which every role may read: 0 when the schema is absent. */
async function installedVersion(client: ClientBase): Promise<number> {
  const { rows } = await client.query<{ source: string }>(
    `select p.prosrc as source
       from pg_catalog.pg_proc p
       join pg_catalog.pg_namespace n on n.oid = p.pronamespace
      where n.nspname = 'fencepost' and p.proname = 'schema_version'`,
  )
  const digits = /\d+/.exec(rows[0]?.source ?? '')
  return digits === null ? 0 : Number(digits[0])
}

/**
 * Everything in one transaction under one transaction-scoped lock: a failure leaves nothing behind, a killed process
 * leaves no lock behind, and it works through a transaction-mode pooler, where a session lock would stay for hours.
 */
async function inOneTransaction<T>(client: ClientBase, work: () => Promise<T>): Promise<T> {
  await client.query('begin isolation level read committed')
  try {
    await client.query('set local search_path to pg_catalog, public')
    await client.query(`select pg_catalog.pg_advisory_xact_lock(${migrationLock})`)
    const result = await work()
    await client.query('commit')
    return result
  } catch (error) {
    await client.query('rollback').catch(() => {})
    throw error
  }
}

/**
 * The functions run with their owner's rights and trust what is in their schema. Whoever owns the schema or a table in
 * it could plant a trigger that runs as the installing role, so what another role owns is never adopted.
 */
async function refuseForeignSchema(client: ClientBase): Promise<void> {
  const { rows } = await client.query<{ what: string; owner: string }>(
    `select o.what, pg_catalog.pg_get_userbyid(o.owner)::text as owner
       from (select 'the schema "fencepost"' as what, n.nspowner as owner
               from pg_catalog.pg_namespace n where n.nspname = 'fencepost'
             union all
             select 'fencepost.' || c.relname, c.relowner
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'fencepost') o
      where o.owner <> (select r.oid from pg_catalog.pg_roles r where r.rolname = current_user)
      limit 1`,
  )
  const foreign = rows[0]
  if (foreign === undefined) return
  throw new DatabaseError(
    'PERMISSION_DENIED',
    `could not migrate: ${foreign.what} belongs to the role "${foreign.owner}". Migrate as that role, if it is yours; ` +
      'otherwise find out who made it before you drop it.',
    { cause: undefined },
  )
}

async function runMigrations(client: ClientBase, direction: 'up' | 'down'): Promise<string[]> {
  // Loaded only here: nobody who merely uses leases should pay for it.
  const { runner } = await import('node-pg-migrate')
  let failure: unknown
  // The runner begins and commits on its own; the transaction is ours, so those statements are not passed on. It also
  // wraps errors without their SQLSTATE, so the first one is kept.
  const inner = {
    async query(query: string, values?: unknown[]) {
      if (/^\s*(begin|commit|rollback);?\s*$/i.test(query)) return { rows: [], rowCount: 0 }
      try {
        return await client.query(query, values)
      } catch (error) {
        failure ??= error
        throw error
      }
    },
  }
  try {
    const done = await runner({
      dbClient: inner as unknown as ClientBase,
      dir: directory,
      direction,
      count: direction === 'down' ? 1 : Number.POSITIVE_INFINITY,
      migrationsSchema: 'fencepost',
      createMigrationsSchema: true,
      migrationsTable: 'migration',
      singleTransaction: true,
      noLock: true,
      logger: { debug() {}, info() {}, warn() {}, error() {} },
    })
    return done.map((migration) => migration.name)
  } catch (error) {
    throw failure ?? error
  }
}

async function grant(client: ClientBase, role: string): Promise<void> {
  const name = escapeIdentifier(role)
  await client.query(`grant usage on schema fencepost to ${name}`)
  await client.query(`grant execute on all functions in schema fencepost to ${name}`)
  // What an operator does, not an application.
  await client.query(
    `revoke execute on function fencepost.purge(interval), fencepost.raise_token_floor(text, bigint) from ${name}`,
  )
  await client.query(`grant select on fencepost.leases to ${name}`)
}

function asMigrateError(error: unknown): unknown {
  if (error instanceof FencepostError) return error
  const sqlState = sqlStateOf(error)
  if (sqlState === '42501') {
    return new DatabaseError(
      'PERMISSION_DENIED',
      'could not migrate: this role may not create the schema "fencepost" (or grant rights on it). Run it once as a ' +
        'role with CREATE on the database, with "--grant-to" naming the role of the application.',
      { cause: error, sqlState },
    )
  }
  if (sqlState === '55P03') {
    return new DatabaseError(
      'QUERY_FAILED',
      'could not migrate: somebody is using or looking at the leases right now. Stop the programs that use them, or try again.',
      { cause: error, sqlState },
    )
  }
  if (sqlState === '55006') {
    return new DatabaseError('QUERY_FAILED', `could not migrate: ${(error as Error).message}.`, {
      cause: error,
      sqlState,
    })
  }
  if (sqlState === '42704') {
    return new DatabaseError(
      'QUERY_FAILED',
      `could not migrate: ${(error as Error).message}. Create the role first.`,
      {
        cause: error,
        sqlState,
      },
    )
  }
  const answered = sqlState !== undefined && !isConnectionState(sqlState)
  return describeFailure(new RequestFailure(answered ? 'refused' : 'unsent', error), 'migrate')
}
