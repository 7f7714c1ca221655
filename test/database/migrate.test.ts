import { readFile } from 'node:fs/promises'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { requiredSchemaVersion } from '../../src/database/schema.ts'
import { Fencepost } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { schemaOf } from '../support/schema-of.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase({ migrated: false })
const stepwise = useDatabase({ migrated: false })
const whole = useDatabase()
const migrate = (options: Parameters<typeof Fencepost.migrate>[0] = {}) =>
  Fencepost.migrate({ connectionString: database.url, ...options })

const migrations = [
  '0001_leases_and_fence',
  '0002_hold_term',
  '0003_protected_tables',
  '0004_resources',
  '0005_acquire_all',
  '0006_waiting',
  '0007_operators',
  '0008_plain_path',
  '0009_cheaper_fence',
  '0010_faster_hand_over',
  '0011_clock_sequence',
]

/** Takes migration after migration back, and tells which. */
async function uninstall(): Promise<string[]> {
  const removed: string[] = []
  for (;;) {
    const [name] = (await migrate({ direction: 'down' })).migrations
    if (name === undefined) return removed
    removed.push(name)
  }
}

const [app, stranger] = [`app_${process.pid}`, `stranger_${process.pid}`]

beforeAll(async () => {
  for (const role of [app, stranger])
    await database.query(`create role ${role} login password 'secret-of-${role}'`)
})

afterAll(async () => {
  const client = new Client({ connectionString: database.url })
  await client.connect()
  for (const role of [app, stranger]) await client.query(`drop owned by ${role}; drop role ${role}`)
  await client.end()
})

describe('migrate', () => {
  test('by a role that may not create says so, and leaves nothing behind', async () => {
    const refused = migrate({ connectionString: database.urlAs(stranger, `secret-of-${stranger}`) })
    await expect(refused).rejects.toMatchObject({ code: 'PERMISSION_DENIED', sqlState: '42501' })
    expect(await database.query(`select from pg_namespace where nspname = 'fencepost'`)).toEqual([])
  })

  test('without a schema, open names the command', async () => {
    await expect(database.open()).rejects.toMatchObject({
      code: 'SCHEMA_MISSING',
      message: expect.stringContaining('fencepost migrate') as string,
    })
  })

  test('of 20 processes at once, one works and the others find nothing to do', async () => {
    const results = await Promise.all(Array.from({ length: 20 }, () => migrate()))
    expect(results.flatMap((result) => result.migrations)).toEqual(migrations)
    expect(new Set(results.map((result) => result.schemaVersion))).toEqual(new Set([requiredSchemaVersion]))
    expect(
      await database.query(`select from pg_locks where locktype = 'advisory'
      and database = (select oid from pg_database where datname = current_database())`),
    ).toEqual([])
  })

  test('is nothing to do for a role without any right, once it is installed', async () => {
    const result = await migrate({ connectionString: database.urlAs(stranger, `secret-of-${stranger}`) })
    expect(result).toEqual({ migrations: [], schemaVersion: requiredSchemaVersion })
  })

  test('a role without rights cannot use leases, and is told what to do', async () => {
    await expect(
      Fencepost.open({ connectionString: database.urlAs(stranger, `secret-of-${stranger}`) }),
    ).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
      message: expect.stringContaining('--grant-to') as string,
    })
  })

  test('--grant-to lets a role use leases, and gives it no right on the tables', async () => {
    await migrate({ grantTo: [app] })
    const connectionString = database.urlAs(app, `secret-of-${app}`)
    const fencepost = await database.open({ connectionString })
    const lease = await fencepost.acquire('granted')
    const pool = database.newPool({ connectionString })
    await lease.transaction(pool, (client) => client.query('select 1'))
    expect(await fencepost.leases()).toMatchObject([{ name: 'granted', state: 'held' }])
    await lease.release()
    for (const statement of [
      'select * from fencepost.holder',
      'select * from fencepost.lease',
      'update fencepost.token_sequence set last_token = 0',
      'delete from fencepost.lease',
      'create table fencepost.mine ()',
      `select fencepost.purge('0')`,
      `select fencepost.raise_token_floor('default', 1000)`,
    ]) {
      await expect(pool.query(statement)).rejects.toMatchObject({ code: '42501' })
    }
  })

  test('to a role that does not exist is refused, and changes nothing', async () => {
    await expect(migrate({ grantTo: ['nobody at all'] })).rejects.toMatchObject({ sqlState: '42704' })
  })

  test('down removes the schema’s functions and keeps the tokens; up goes on counting', async () => {
    const fencepost = await database.open()
    const before = await fencepost.acquire('counted')
    await expect(migrate({ direction: 'down' })).rejects.toMatchObject({
      sqlState: '55006',
      message: expect.stringContaining('leases are in use') as string,
    })
    await database.query('update fencepost.holder set ended_at = clock_timestamp()')
    expect(await uninstall()).toEqual(migrations.toReversed())
    await expect(database.open()).rejects.toMatchObject({ code: 'SCHEMA_OUTDATED' })
    expect((await migrate({ direction: 'down' })).migrations).toEqual([])
    await migrate()
    const again = await database.open()
    expect((await again.acquire('counted')).token).toBeGreaterThan(before.token)
  })

  test('an older schema than the library needs is named, with the command', async () => {
    await database.query(`create or replace function fencepost.schema_version() returns integer
      language sql immutable parallel safe as 'select 0'`)
    await expect(database.open()).rejects.toMatchObject({
      code: 'SCHEMA_OUTDATED',
      message: expect.stringContaining('fencepost migrate') as string,
    })
    await database.query(`create or replace function fencepost.schema_version() returns integer
      language sql immutable parallel safe as 'select ${requiredSchemaVersion}'`)
  })

  test('a schema that stops half-way is rolled back whole', async () => {
    await database.query('update fencepost.holder set ended_at = clock_timestamp()')
    await uninstall()
    await database.query('create table fencepost.lease (mine text)')
    await expect(migrate()).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '42P07' })
    expect(await database.query(`select from pg_class where relname = 'holder'`)).toEqual([])
    await database.query('drop table fencepost.lease')
    expect((await migrate()).migrations).toEqual(migrations)
  })

  test('down lets nobody join between its look and its work', async () => {
    await database.query('update fencepost.holder set ended_at = clock_timestamp()')
    const onlooker = await database.session()
    await onlooker.query('begin')
    await onlooker.query('select * from fencepost.leases')
    // Behind somebody who looks at the leases it does not wait, because heartbeats would wait behind it.
    await expect(migrate({ direction: 'down' })).rejects.toMatchObject({ sqlState: '55P03' })
    await onlooker.query('commit')
    // Who joins while it looks is seen: the second look is under the lock.
    const joining = await database.session()
    await joining.query('begin')
    await SqlHolder.join(joining)
    await expect(migrate({ direction: 'down' })).rejects.toMatchObject({ sqlState: '55P03' })
    await joining.query('commit')
    await expect(migrate({ direction: 'down' })).rejects.toMatchObject({ sqlState: '55006' })
  })

  test('adopts no schema and no table of another role, whose triggers would run with the installer’s rights', async () => {
    await database.query('update fencepost.holder set ended_at = clock_timestamp()')
    await uninstall()
    for (const [give, takeBack] of [
      [
        `alter table fencepost.token_sequence owner to ${stranger}`,
        'alter table fencepost.token_sequence owner to current_user',
      ],
      [`alter schema fencepost owner to ${stranger}`, 'alter schema fencepost owner to current_user'],
    ] as const) {
      await database.query(give)
      await expect(migrate()).rejects.toMatchObject({
        code: 'PERMISSION_DENIED',
        message: expect.stringContaining(stranger) as string,
      })
      await database.query(takeBack)
    }
    expect((await migrate()).migrations).toEqual(migrations)
  })

  test('refuses a direction it does not know', async () => {
    await expect(migrate({ direction: 'sideways' as 'up' })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
    })
  })
})

describe('a database that cannot be used', () => {
  const cases: [string, () => string, string][] = [
    ['an unreachable host', () => 'postgres://nobody@127.0.0.1:1/none', 'DATABASE_UNAVAILABLE'],
    [
      'a host that does not exist',
      () => 'postgres://nobody@no-such-host.invalid/none',
      'DATABASE_UNAVAILABLE',
    ],
    [
      'a database that does not exist',
      () => database.url.replace(/\/[^/]*$/, '/no_such_database'),
      'DATABASE_UNAVAILABLE',
    ],
    ['a wrong password', () => database.urlAs(app, 'wrong'), 'AUTHENTICATION_FAILED'],
  ]

  test.each(cases)('%s is named by open and by migrate, without the password', async (_, url, code) => {
    const connectionString = url()
    for (const attempt of [() => Fencepost.open({ connectionString }), () => migrate({ connectionString })]) {
      const failed = attempt()
      await expect(failed).rejects.toMatchObject({ code })
      await expect(failed).rejects.not.toThrow(/wrong/)
    }
  })

  test('a read-only server is named', async () => {
    const options = '-c default_transaction_read_only=on'
    await expect(database.open({ connection: { options } })).rejects.toMatchObject({
      code: 'READ_ONLY_SERVER',
    })
  })

  test('a server that accepts and never answers is given up in time', async () => {
    const { createServer } = await import('node:net')
    const server = createServer(() => {})
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    const connectionString = `postgres://nobody@127.0.0.1:${port}/none`
    await expect(Fencepost.open({ connectionString, requestTimeout: '300ms' })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
    server.close()
  })

  test('no database at all is an error that says how to name one', async () => {
    const { FENCEPOST_DATABASE_URL, DATABASE_URL } = process.env
    delete process.env['FENCEPOST_DATABASE_URL']
    delete process.env['DATABASE_URL']
    try {
      await expect(Fencepost.open()).rejects.toThrow(/FENCEPOST_DATABASE_URL, DATABASE_URL/)
      process.env['DATABASE_URL'] = database.url
      await (await Fencepost.open()).close()
    } finally {
      delete process.env['DATABASE_URL']
      if (FENCEPOST_DATABASE_URL !== undefined) process.env['FENCEPOST_DATABASE_URL'] = FENCEPOST_DATABASE_URL
      if (DATABASE_URL !== undefined) process.env['DATABASE_URL'] = DATABASE_URL
    }
  })
})

test('each migration is taken back exactly, and all are the same when they are applied again', async () => {
  await stepwise.query('create schema fencepost')
  const after: Record<string, string>[] = []
  for (const name of migrations) {
    const text = await readFile(new URL(`../../migrations/${name}.sql`, import.meta.url), 'utf8')
    await stepwise.query(text.split('-- Down Migration')[0]!)
    after.push(await schemaOf(stepwise))
  }
  expect(await schemaOf(whole)).toEqual(after.at(-1))
  // The first ones leave tokens behind, which must not be forgotten.
  for (let version = migrations.length - 1; version > 3; version -= 1) {
    const down = await Fencepost.migrate({ connectionString: whole.url, direction: 'down' })
    expect(down).toMatchObject({ schemaVersion: version, migrations: [migrations[version]] })
    expect(await schemaOf(whole)).toEqual(after[version - 1])
  }
  await Fencepost.migrate({ connectionString: whole.url })
  expect(await schemaOf(whole)).toEqual(after.at(-1))
})
