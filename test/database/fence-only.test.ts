import { readFile } from 'node:fs/promises'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { fenceOnlySchemaVersion as version } from '../../src/database/migration-files.ts'
import { requiredSchemaVersion } from '../../src/database/schema.ts'
import { Fencepost, fencedTransaction } from '../../src/index.ts'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

// A database that only guards data, as an installation. What it does about writes is in test/fence/announce.test.ts.

const leases = useDatabase()
const data = useDatabase({ migrated: false })
const other = useDatabase({ migrated: false })

const migrate = (options: Parameters<typeof Fencepost.migrate>[0] = {}) =>
  Fencepost.migrate({ connectionString: data.url, fenceOnly: true, ...options })
const migrations = ['0001_highest_tokens', '0003_protected_tables', '0004_resources']
const app = `app_${process.pid}_data`

beforeAll(() => data.query(`create role ${app} login password 'secret-of-${app}'`))

afterAll(async () => {
  const client = new Client({ connectionString: data.url })
  await client.connect()
  await client.query(`drop owned by ${app}; drop role ${app}`)
  await client.end()
})

describe('migrate with fenceOnly', () => {
  test('of 20 at once, one installs the fence without the leases, and the others find nothing to do', async () => {
    const results = await Promise.all(Array.from({ length: 20 }, () => migrate()))
    expect(results.flatMap((result) => result.migrations)).toEqual(migrations)
    expect(new Set(results.map((result) => result.schemaVersion))).toEqual(new Set([version]))
    expect(
      await data.query(`select proname from pg_proc where pronamespace = 'fencepost'::regnamespace
        and proname in ('acquire', 'beat', 'release', 'purge', 'raise_token_floor')`),
    ).toEqual([])
  })

  test('has all that the shared migrations rely on, with the same signatures', async () => {
    const look = `select p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ') ' || pg_get_function_result(p.oid) as it
      from pg_proc p where p.pronamespace = 'fencepost'::regnamespace and p.proname = any ($1) order by 1`
    const own = await readFile(new URL('../../migrations/0002_hold_term.sql', import.meta.url), 'utf8')
    const names = [...own.matchAll(/^create function fencepost\.(\w+)/gm)].map((match) => match[1])
    const needed = [...names, 'fence_key', 'refuse_stale', 'schema_version']
    expect(names).toContain('hold_term')
    expect(await data.query(look, [needed])).toEqual(await leases.query(look, [needed]))
  })

  test('open says that the leases live elsewhere', async () => {
    await expect(data.open()).rejects.toMatchObject({
      code: 'SCHEMA_FENCE_ONLY',
      message: expect.stringContaining('the leases live in another one') as string,
    })
  })

  test.each(['up', 'down'] as const)(
    'refuses to go %s on a database of the other kind',
    async (direction) => {
      await expect(migrate({ direction, fenceOnly: false })).rejects.toMatchObject({
        code: 'SCHEMA_FENCE_ONLY',
      })
      await expect(migrate({ direction, connectionString: leases.url })).rejects.toMatchObject({
        code: 'SCHEMA_WITH_LEASES',
      })
      const look = 'select fencepost.schema_version() as version'
      expect(await data.query(look)).toEqual([{ version }])
      expect(await leases.query(look)).toEqual([{ version: requiredSchemaVersion }])
    },
  )

  test('of two kinds at once, one is installed and the other refused', async () => {
    const connectionString = other.url
    const both = await Promise.allSettled([
      migrate({ connectionString }),
      migrate({ connectionString, fenceOnly: false }),
    ])
    expect(both.map((each) => each.status).toSorted()).toEqual(['fulfilled', 'rejected'])
    expect(both.find((each) => each.status === 'rejected')!.reason).toMatchObject({
      code: expect.stringMatching(/^SCHEMA_(FENCE_ONLY|WITH_LEASES)$/) as string,
    })
  })

  test('--grant-to lets a role write under a lease, and gives it no right on the tables', async () => {
    await data.query('create table written (token bigint)')
    await migrate({ grantTo: [app] })
    await data.query(`grant insert on written to ${app}`)
    const lease = await (await leases.open()).acquire('granted')
    const pool = data.newPool({ connectionString: data.urlAs(app, `secret-of-${app}`) })
    await lease.transaction(pool, (client) => client.query('insert into written values ($1)', [lease.token]))
    expect((await pool.query('select lease, token from fencepost.announced_terms')).rows).toEqual([
      { lease: 'granted', token: lease.token.toString() },
    ])
    for (const statement of [
      'select holder_id from fencepost.highest_token',
      'update fencepost.highest_token set token = 1',
      'delete from fencepost.resource',
      `select * from fencepost.hold_term('x', 1, gen_random_uuid(), false)`,
    ]) {
      await expect(pool.query(statement)).rejects.toMatchObject({ code: '42501' })
    }
  })

  test('down takes migration after migration back, and what was refused stays refused', async () => {
    const pool = data.pool
    const fencepost = await leases.open()
    const first = await fencepost.acquire('survives')
    await first.release()
    const second = await fencepost.acquire('survives')
    await second.transaction(pool, async () => {})
    const removed: string[] = []
    for (;;) {
      const [name] = (await migrate({ direction: 'down' })).migrations
      if (name === undefined) break
      removed.push(name)
    }
    expect(removed).toEqual(migrations.toReversed())
    expect(
      await data.query(
        `select proname from pg_proc where pronamespace = (select oid from pg_namespace where nspname = 'fencepost')`,
      ),
    ).toEqual([])
    expect((await migrate()).migrations).toEqual(migrations)
    await expect(fencedTransaction({ term: first.term }, pool, async () => {})).rejects.toMatchObject({
      code: 'STALE_TERM',
      currentToken: second.token,
    })
    await second.transaction(pool, async () => {})
  })

  test('takes nothing but true and false', async () => {
    await expect(migrate({ fenceOnly: 'yes' as unknown as boolean })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument: 'fenceOnly',
    })
  })
})

test('the command line installs and removes it with --fence-only, and refuses the other kind', async () => {
  const url = data.url
  expect(await runCli(['migrate', '--fence-only'], { url })).toMatchObject({
    code: 0,
    stdout: `nothing to do: the schema has version ${version}\n`,
  })
  const refused = await runCli(['migrate'], { url })
  expect(refused).toMatchObject({ code: 69, stdout: '' })
  expect(refused.stderr).toContain('--fence-only')
  expect(await runCli(['migrate', '--fence-only', '--down'], { url })).toMatchObject({
    code: 0,
    stdout: 'removed 0004_resources\n',
  })
  expect(await runCli(['migrate', '--fence-only'], { url })).toMatchObject({
    code: 0,
    stdout: 'applied 0004_resources\n',
  })
})
