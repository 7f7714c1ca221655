import { Client, type ClientBase, type ClientConfig, escapeIdentifier } from 'pg'
import { show } from '../duration.ts'
import { DatabaseError, FencepostError, InvalidArgumentError } from '../errors.ts'
import { RequestFailure, describeFailure, isConnectionState, sqlStateOf } from './failure.ts'
import { fenceOnlySchemaVersion, migrationsDirectory, readMigrations } from './migration-files.ts'
import { type SchemaKind, requiredSchemaVersion } from './schema.ts'

export interface MigrateOptions {
  /**
   * `down` removes the newest migration. Tokens survive it: `fencepost.token_sequence` stays, and so do the highest tokens
   * seen, in `fencepost.highest_token` and `fencepost.resource`. Default `up`.
   */
  readonly direction?: 'up' | 'down' | undefined
  /** Database roles that may use leases afterwards: USAGE on the schema, EXECUTE on its functions. Default none. */
  readonly grantTo?: readonly string[] | undefined
  /**
   * For a database that only guards data under leases that live in another one: it gets the fence and the highest token
   * seen of each lease, and no leases. What it was installed as, a database stays; removing needs the same. Default false.
   */
  readonly fenceOnly?: boolean | undefined
}

export interface MigrateResult {
  /** The migrations that were applied or removed, in order; empty when there was nothing to do. */
  readonly migrations: readonly string[]
  readonly schemaVersion: number
}

/** Our own number, so that another program's migrations in the same database do not wait for ours. */
const migrationLock = 7_364_521_908_114_203n

/**
 * Installs, upgrades or removes the schema `fencepost`. Any number of processes may call it at once; one works, the
 * others find nothing to do. A role that may not create anything can call it once the schema is there.
 */
export async function migrate(config: ClientConfig, options: MigrateOptions): Promise<MigrateResult> {
  const { direction = 'up', grantTo = [], fenceOnly = false } = options
  if (direction !== 'up' && direction !== 'down') {
    throw new InvalidArgumentError(
      'direction',
      direction,
      `direction must be "up" or "down"; got "${String(direction)}"`,
    )
  }
  if (typeof fenceOnly !== 'boolean') {
    throw new InvalidArgumentError(
      'fenceOnly',
      fenceOnly,
      `fenceOnly must be true or false; got ${show(fenceOnly)}`,
    )
  }
  const kind: SchemaKind = fenceOnly ? 'fence-only' : 'leases'
  const client = new Client({
    application_name: 'fencepost migrate',
    connectionTimeoutMillis: 10_000,
    ...config,
  })
  // Without a listener a lost connection would end the process; the query in progress rejects as well.
  client.on('error', () => {})
  try {
    await client.connect()
    const installed = await installedVersion(client, kind)
    const current = direction === 'up' && installed >= newestVersion[kind]
    if (current && grantTo.length === 0) return { migrations: [], schemaVersion: installed }
    return await inOneTransaction(client, async () => {
      await refuseForeignSchema(client)
      // Once more: somebody else may have made it the other kind while this waited for its turn.
      await installedVersion(client, kind)
      if (direction === 'down') await refuseWhileInUse(client)
      const migrations = current ? [] : await runMigrations(client, direction, kind)
      for (const role of direction === 'up' ? grantTo : []) await grant(client, role, kind)
      return { migrations, schemaVersion: await installedVersion(client, kind) }
    })
  } catch (error) {
    throw asMigrateError(error)
  } finally {
    await client.end().catch(() => {})
  }
}

const newestVersion: Record<SchemaKind, number> = {
  leases: requiredSchemaVersion,
  'fence-only': fenceOnlySchemaVersion,
}

/** Read from the catalogs, which every role may read: 0 when the schema is absent. Throws when it is of the other kind. */
async function installedVersion(client: ClientBase, kind: SchemaKind): Promise<number> {
  const { rows } = await client.query<{ source: string; kind: SchemaKind }>(
    `select p.prosrc as source,
            case when exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relname = 'lease')
                 then 'leases' else 'fence-only' end as kind
       from pg_catalog.pg_proc p
       join pg_catalog.pg_namespace n on n.oid = p.pronamespace
      where n.nspname = 'fencepost' and p.proname = 'schema_version'`,
  )
  const found = rows[0]
  if (found !== undefined && found.kind !== kind) throw ofOtherKind(found.kind)
  const digits = /\d+/.exec(found?.source ?? '')
  return digits === null ? 0 : Number(digits[0])
}

function ofOtherKind(installed: SchemaKind): DatabaseError {
  return installed === 'fence-only'
    ? new DatabaseError(
        'SCHEMA_FENCE_ONLY',
        'could not migrate: this database only guards data, and the leases live in another one. Migrate that one, or this ' +
          'one with "--fence-only" (fenceOnly: true).',
        { cause: undefined },
      )
    : new DatabaseError(
        'SCHEMA_WITH_LEASES',
        'could not migrate: this database holds leases, which is more than "--fence-only" (fenceOnly: true) installs. ' +
          'Leave it out.',
        { cause: undefined },
      )
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

/**
 * A live holder trusts its leases for up to a TTL, and nobody could keep others from being granted them meanwhile. Looked at
 * twice: without a lock, so that a refusal disturbs nobody, and under it, because a program may have joined meanwhile.
 * Those who want to join queue behind a lock that waits, so this one waits for a moment only.
 */
async function refuseWhileInUse(client: ClientBase): Promise<void> {
  const { rows } = await client.query<{ has_leases: boolean }>(
    `select pg_catalog.to_regclass('fencepost.holder') is not null as has_leases`,
  )
  if (rows[0]?.has_leases !== true) return
  const look = async (): Promise<void> => {
    const alive = await client.query(
      'select from fencepost.holder where ended_at is null and expires_at > clock_timestamp() limit 1',
    )
    if (alive.rows.length === 0) return
    throw Object.assign(
      new Error(
        'leases are in use: stop the programs that use them, or wait until their holders have expired',
      ),
      { code: '55006' },
    )
  }
  await look()
  // Long enough for the server to stop an autovacuum that is in the way, which it does after a second.
  await client.query(`set local lock_timeout = '1500ms'`)
  await client.query('lock table fencepost.holder, fencepost.lease in access exclusive mode')
  await client.query('set local lock_timeout to default')
  await look()
}

async function runMigrations(
  client: ClientBase,
  direction: 'up' | 'down',
  kind: SchemaKind,
): Promise<string[]> {
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
      dir: migrationsDirectory,
      // Which files there are for the kind of database is not for the runner to say.
      migrationLoaderStrategies: [{ extensions: ['.sql'], loader: async () => readMigrations(kind) }],
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

/** What an operator does, not an application. */
const operatorFunctions = [
  'purge(interval)',
  'purge_some(interval, bigint)',
  'raise_token_floor(text, bigint)',
  'set_sequence_kind(text, text)',
  'force_release(text, bigint, text, bigint, integer[])',
  'fenced_sessions(text, bigint)',
]
  .map((signature) => `fencepost.${signature}`)
  .join(', ')

/** What people look at. */
const leaseViews = ['leases', 'waiters', 'holders', 'fenced_transactions', 'forced_releases', 'sequences']
  .map((name) => `fencepost.${name}`)
  .join(', ')

async function grant(client: ClientBase, role: string, kind: SchemaKind): Promise<void> {
  const name = escapeIdentifier(role)
  await client.query(`grant usage on schema fencepost to ${name}`)
  await client.query(`grant execute on all routines in schema fencepost to ${name}`)
  if (kind === 'leases') {
    await client.query(`revoke execute on function ${operatorFunctions} from ${name}`)
  }
  const ownViews = kind === 'leases' ? leaseViews : 'fencepost.announced_terms'
  await client.query(
    `grant select on ${ownViews}, fencepost.protections, fencepost.schema_protections to ${name}`,
  )
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
