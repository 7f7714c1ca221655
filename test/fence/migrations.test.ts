import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Kysely, sql } from 'kysely'
import { type MigrationProvider, Migrator } from 'kysely/migration'
import { runner } from 'node-pg-migrate'
import type { ClientBase, Pool } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type Fence,
  Fencepost,
  type FencedSessionOptions,
  HolderExpiredError,
  type Lease,
  StaleTermError,
  fencedSession,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const root = fileURLToPath(new URL('../../', import.meta.url))
const execute = promisify(execFile)

interface Migration {
  readonly name: string
  readonly sql: string
  /** Code of the migration that takes its time. */
  readonly pause?: (send: (text: string) => Promise<unknown>) => Promise<unknown>
  readonly hasNoTransaction?: boolean
}

let fencepost: Fencepost
let lease: Lease
let db: Kysely<unknown>
let pool: Pool
let taken: Lease[] = []

beforeAll(async () => {
  fencepost = await database.open()
})

beforeEach(async () => {
  lease = await fencepost.acquire('deploy')
  db = database.kysely<unknown>()
  pool = database.newPool()
})

afterEach(async () => {
  await Promise.all([lease, ...taken].map((one) => one.release()))
  taken = []
  await Fencepost.unprotectSchema('public', { connectionString: database.url })
  await database.query('drop schema public cascade')
  await database.query('create schema public')
})

async function withKysely(on: Kysely<unknown>, migrations: readonly Migration[]): Promise<string[]> {
  const provider: MigrationProvider = {
    getMigrations: async () =>
      Object.fromEntries(
        migrations.map(({ name, sql: text, pause }) => [
          name,
          {
            up: async (tx: Kysely<unknown>) => {
              await pause?.((line) => sql.raw(line).execute(tx))
              for (const statement of text.split(';')) await sql.raw(statement).execute(tx)
            },
          },
        ]),
      ),
  }
  const disableTransactions = migrations.some((migration) => migration.hasNoTransaction)
  const migrator = new Migrator({ db: on, provider, disableTransactions })
  const { error, results = [] } = await migrator.migrateToLatest()
  // oxlint-disable-next-line typescript/only-throw-error -- Whatever the migration has thrown.
  if (error !== undefined) throw error
  return results.map((result) => result.migrationName)
}

async function withRunner(
  dbClient: ClientBase,
  migrations: readonly Migration[],
  options: { readonly singleTransaction?: boolean; readonly noLock?: boolean } = {},
): Promise<string[]> {
  const done = await runner({
    dbClient,
    dir: join(root, 'migrations'),
    migrationLoaderStrategies: [
      {
        extensions: ['.sql'],
        loader: async () =>
          migrations.map(({ name, sql: text, pause, hasNoTransaction }) => ({
            id: `/${name}.js`,
            filePaths: [`/${name}.js`],
            actions: {
              up: async (pgm) => {
                if (hasNoTransaction === true) pgm.noTransaction()
                await pause?.((line) => pgm.db.query(line))
                for (const statement of text.split(';')) pgm.sql(statement)
              },
              down: false,
            },
          })),
      },
    ],
    direction: 'up',
    migrationsTable: 'pgmigrations',
    noLock: true,
    log: () => {},
    ...options,
  })
  return done.map((migration) => migration.name)
}

interface Tool {
  readonly history: string
  /** Whether what a migration's own code waits for is waited for in a transaction, and all of them are one. */
  readonly isOneTransaction: boolean
  /** Whether there is one even around a migration without one, until that is its turn. */
  readonly isOpenBefore: boolean
  fenced(fence: Fence, migrations: readonly Migration[], options?: FencedSessionOptions): Promise<string[]>
  unfenced(migrations: readonly Migration[]): Promise<string[]>
}

async function onClient<T>(work: (client: ClientBase) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  try {
    return await work(client)
  } finally {
    client.release(true)
  }
}

const tools: readonly (readonly [string, Tool])[] = [
  [
    'Kysely’s Migrator',
    {
      history: 'kysely_migration',
      isOneTransaction: true,
      isOpenBefore: false,
      fenced: (fence, migrations, options) =>
        fencedSession(fence, db, (session) => withKysely(session, migrations), options),
      unfenced: (migrations) => withKysely(db, migrations),
    },
  ],
  [
    'node-pg-migrate, a transaction for each',
    {
      history: 'pgmigrations',
      isOneTransaction: false,
      isOpenBefore: false,
      fenced: (fence, migrations, options) =>
        fencedSession(fence, pool, (client) => withRunner(client, migrations), options),
      unfenced: (migrations) => onClient((client) => withRunner(client, migrations)),
    },
  ],
  [
    'node-pg-migrate, one transaction, with its own lock',
    {
      history: 'pgmigrations',
      isOneTransaction: true,
      isOpenBefore: true,
      fenced: (fence, migrations, options) =>
        fencedSession(
          fence,
          pool,
          (client) => withRunner(client, migrations, { singleTransaction: true, noLock: false }),
          options,
        ),
      unfenced: (migrations) =>
        onClient((client) => withRunner(client, migrations, { singleTransaction: true })),
    },
  ],
]

const first: Migration = { name: '0001_first', sql: 'create table first (id integer)' }
const second: Migration = { name: '0002_second', sql: 'create table second (id integer)' }

const exists = async (name: string): Promise<boolean> =>
  (await database.query<{ is: boolean }>('select to_regclass($1) is not null as is', [name]))[0]!.is

/** For an open transaction: the server cuts a runner off that is silent, as it does after the TTL without this. */
const silence = `set local idle_in_transaction_session_timeout = '50ms'`

/** Somebody else is granted the lease. */
async function steal(): Promise<Lease> {
  await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
  const thief = await database.open()
  const next = await thief.acquire('deploy')
  taken.push(next)
  return next
}

describe.each(tools)('%s', (_, tool) => {
  const recorded = async (): Promise<unknown[]> =>
    (await exists(tool.history))
      ? (await database.query(`select name from ${tool.history} order by name`)).map((row) => row['name'])
      : []

  test('of two services that start at once, one migrates, and the other finds nothing to do', async () => {
    await lease.release()
    const services = await Promise.all([database.open(), database.open()])
    const applied = await Promise.all(
      services.map((service) =>
        service.withLease('deploy', { wait: '1m' }, (own) => tool.fenced(own, [first, second])),
      ),
    )
    expect(applied.toSorted((a, b) => b.length - a.length)).toEqual([[first.name, second.name], []])
    expect(await recorded()).toEqual([first.name, second.name])
  })

  test('a runner that was paused midway commits nothing after the next term was granted', async () => {
    const { term } = lease
    let next: string[] = []
    const takeOver = async (send: (text: string) => Promise<unknown>): Promise<void> => {
      await send(silence)
      const successor = await steal()
      next = await tool.fenced(successor, [first, second])
    }
    const migrating = tool.fenced({ term }, [
      first,
      { name: second.name, sql: 'create table late (id integer)', pause: takeOver },
    ])
    await expect(migrating).rejects.toMatchObject(
      tool.isOneTransaction ? { code: 'TRANSACTION_CUT_OFF' } : { code: 'STALE_TERM' },
    )
    expect(next).toEqual(tool.isOneTransaction ? [first.name, second.name] : [second.name])
    expect(await exists('late')).toBe(false)
    expect(await recorded()).toEqual([first.name, second.name])
  })

  test('a runner that wakes up before its first statement commits nothing; without the session it does', async () => {
    const { term } = lease
    await tool.fenced(lease, [first])
    const late = [first, { name: '0009_late', sql: 'create table late (id integer)' }]
    await steal()
    await expect(tool.fenced({ term }, late)).rejects.toThrow(StaleTermError)
    expect(await exists('late')).toBe(false)
    expect(await recorded()).toEqual([first.name])
    await tool.unfenced(late)
    expect(await exists('late')).toBe(true)
  })

  test('the next term begins when the transaction of a migration has ended, not before', async () => {
    const { term } = lease
    const blocker = await database.session()
    await tool.fenced(lease, [first])
    await blocker.query('begin')
    await blocker.query('lock table first')
    const alter = { name: '0002_alter', sql: 'alter table first add column more integer' }
    const migrating = tool.fenced({ term }, [first, alter]).catch((error: unknown) => error)
    const waiting = `select from pg_stat_activity where query like 'alter table first%' and wait_event_type = 'Lock'`
    await expect.poll(() => database.query(waiting)).toHaveLength(1)
    await database.query('select fencepost.end_holder($1)', [term.holderId])
    const other = await database.open()
    expect(await other.tryAcquire('deploy')).toBeNull()
    await blocker.query('rollback')
    // It was in time: its transaction had begun before.
    const applied = await migrating
    // A tool that gives its own lock back afterwards is refused that.
    if (applied instanceof Error) expect(applied).toBeInstanceOf(HolderExpiredError)
    else expect(applied).toEqual([alter.name])
    expect(await recorded()).toEqual([first.name, alter.name])
    const successor = await other.acquire('deploy')
    taken.push(successor)
    expect(await tool.fenced(successor, [first, alter])).toEqual([])
  })

  test('a migration that fails is rolled back, its error passes, and the next attempt finds no lock in its way', async () => {
    const failing = { name: second.name, sql: 'create table half (id integer); select 1 / 0' }
    await expect(tool.fenced(lease, [first, failing])).rejects.toMatchObject({ code: '22012' })
    expect(await exists('half')).toBe(false)
    const stays = tool.isOneTransaction ? [] : [first.name]
    expect(await recorded()).toEqual(stays)
    const own = new Error('of the migration itself')
    const throwing = { ...second, pause: () => Promise.reject(own) }
    await expect(tool.fenced(lease, [first, throwing])).rejects.toBe(own)
    expect(await recorded()).toEqual(stays)
    expect(await tool.unfenced([first, second])).toEqual(
      tool.isOneTransaction ? [first.name, second.name] : [second.name],
    )
  })

  test('works in a protected schema, where it is refused without the session', async () => {
    await Fencepost.protectSchema('public', { connectionString: database.url, lease: 'deploy' })
    await expect(tool.unfenced([first])).rejects.toThrow(/protected/)
    expect(await tool.fenced(lease, [first, second])).toEqual([first.name, second.name])
    await expect(tool.unfenced([first, second, { name: '0003', sql: 'drop table first' }])).rejects.toThrow(
      /protected/,
    )
    expect(await recorded()).toEqual([first.name, second.name])
  })

  describe('create index concurrently', () => {
    const index: Migration = {
      name: '0002_index',
      sql: 'create index concurrently first_id on first (id)',
      hasNoTransaction: true,
    }
    const outside = { outsideTransactions: true }

    test('is refused unless the session may send what PostgreSQL does not run in a transaction', async () => {
      await expect(tool.fenced(lease, [first, index])).rejects.toMatchObject({
        code: 'QUERY_FAILED',
        sqlState: '25001',
      })
      expect(await exists('first_id')).toBe(false)
      expect(await recorded()).toEqual([first.name])
      expect(await tool.fenced(lease, [first, index], outside)).toEqual([index.name])
      expect(await exists('first_id')).toBe(true)
    })

    test('is refused when a newer term was granted before it', async () => {
      const { term } = lease
      await tool.fenced(lease, [first])
      const pause = async (send: (text: string) => Promise<unknown>): Promise<void> => {
        await send(silence)
        await steal()
      }
      const stale = tool.fenced({ term }, [first, { ...index, pause }], outside)
      await expect(stale).rejects.toMatchObject({
        code: tool.isOpenBefore ? 'TRANSACTION_CUT_OFF' : 'STALE_TERM',
      })
      expect(await exists('first_id')).toBe(false)
      expect(await recorded()).toEqual([first.name])
    })

    test.each([false, true])(
      'that runs when its term ends is built, and not recorded (protected schema: %s)',
      async (isProtected) => {
        const { term } = lease
        await tool.fenced(lease, [first])
        if (isProtected) {
          await Fencepost.protectSchema('public', { connectionString: database.url, lease: 'deploy' })
        }
        // An open transaction on the table keeps the index from being ready.
        const writer = await database.session()
        await writer.query('begin')
        await writer.query('lock table first in row exclusive mode')
        const migrating = tool.fenced({ term }, [first, index], outside)
        migrating.catch(() => {})
        const waiting = `select from pg_stat_activity where query like 'create index conc%' and wait_event_type = 'Lock'`
        await expect.poll(() => database.query(waiting)).toHaveLength(1)
        await steal()
        await writer.query('rollback')
        await expect(migrating).rejects.toThrow(StaleTermError)
        expect(await recorded()).toEqual([first.name])
        expect(
          await database.query(`select indisvalid from pg_index where indexrelid = 'first_id'::regclass`),
        ).toEqual([{ indisvalid: !isProtected }])
      },
    )
  })
})

describe('in a fenced transaction, which is not made for it,', () => {
  test('a migration that fails leaves Kysely’s lock behind, and hides why it failed', async () => {
    const failing = { name: 'failing', sql: 'select 1 / 0' }
    const migrating = lease.transaction(db, (tx) => withKysely(tx as unknown as Kysely<unknown>, [failing]))
    await expect(migrating).rejects.toMatchObject({ code: '25P02' })
    const locks = await database.query(
      `select from pg_locks l join pg_stat_activity a using (pid)
        where a.datname = current_database() and a.state = 'idle' and l.locktype = 'advisory' and l.granted`,
    )
    expect(locks).toHaveLength(1)
  })

  test('node-pg-migrate cannot begin', async () => {
    const migrating = lease.transaction(pool, (client) => withRunner(client, [first]))
    await expect(migrating).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
  })
})

describe('docs/migrations-in-process.md', () => {
  let folder: string

  beforeAll(async () => {
    const page = await readFile(join(root, 'docs/migrations-in-process.md'), 'utf8')
    folder = await mkdtemp(join(root, 'test/fence/tmp-'))
    for (const [, name, code] of page.matchAll(/<!-- file: (\S+) -->\n```ts\n([^]*?)```/g)) {
      await writeFile(join(folder, name!), code!.replaceAll("'fencepost'", "'../../../src/index.ts'"))
    }
    await mkdir(join(folder, 'kysely-migrations'))
    await writeFile(
      join(folder, 'kysely-migrations/0001_first.mjs'),
      `export const up = (db) => db.schema.createTable('first').addColumn('id', 'integer').execute()`,
    )
    await mkdir(join(folder, 'sql-migrations'))
    await writeFile(join(folder, 'sql-migrations/0001_first.sql'), first.sql)
    return () => rm(folder, { recursive: true, force: true })
  })

  test('type-checks', async () => {
    const project = join(folder, 'tsconfig.json')
    await writeFile(project, JSON.stringify({ extends: '../../../tsconfig.json', include: ['*.ts'] }))
    const tsc = join(root, 'node_modules/typescript/bin/tsc')
    const checked = execute(process.execPath, [tsc, '-p', project, '--noEmit'])
    await expect(checked).resolves.toMatchObject({ stdout: '' })
  })

  test.each(['migrate-with-kysely.ts', 'migrate-with-node-pg-migrate.ts'])(
    '%s: of two processes that start at once, one migrates, and the other finds nothing to do',
    async (file) => {
      await lease.release()
      const env = { ...process.env, DATABASE_URL: database.url }
      const start = (): Promise<{ stdout: string }> => execute(process.execPath, [file], { cwd: folder, env })
      const outputs = await Promise.all([start(), start()])
      expect(outputs.map(({ stdout }) => stdout.trim()).toSorted()).toEqual([`[ '0001_first' ]`, '[]'])
      expect(await exists('first')).toBe(true)
    },
  )
})
