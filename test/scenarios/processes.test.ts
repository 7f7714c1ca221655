import { execFile } from 'node:child_process'
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { WriterProcess } from '../support/writer-process.ts'

const database = useDatabase()
const running: WriterProcess[] = []
let names = 0
let name = ''

async function writer(): Promise<WriterProcess> {
  const started = await WriterProcess.start(database.url)
  running.push(started)
  return started
}

const acquire = (of: WriterProcess, ttl = 30_000) => of.order({ do: 'acquire', name, ttl, wait: 30_000 })
const written = async (): Promise<unknown[]> =>
  (await database.query('select text from written order by place')).map((row) => row['text'])

beforeAll(() =>
  database.query(
    'create table written (place bigserial primary key, token bigint not null, text text not null)',
  ),
)
beforeEach(async () => {
  name = `process-${(names += 1)}`
  await database.query('truncate written')
})
afterEach(async () => {
  await Promise.all(running.splice(0).map((each) => each.kill()))
})

describe('a paused process', () => {
  test('is succeeded, and when it wakes its write is refused and its signal has aborted', async () => {
    const [a, b] = [await writer(), await writer()]
    const tokenA = BigInt((await acquire(a, 2000)).token!)
    expect(await a.order({ do: 'write', text: 'a' })).toEqual({})
    a.signal('SIGSTOP')
    const tokenB = BigInt((await acquire(b)).token!)
    expect(tokenB).toBeGreaterThan(tokenA)
    expect(await b.order({ do: 'write', text: 'b' })).toEqual({})
    a.signal('SIGCONT')
    expect(await a.order({ do: 'write', text: 'stale' })).toMatchObject({ code: 'LEASE_LOST', isHeld: false })
    expect(await a.order({ do: 'look' })).toEqual({ isHeld: false, isAborted: true, state: 'lost' })
    expect(await a.order({ do: 'write', text: 'stale and careless', isCareless: true })).toMatchObject({
      code: 'STALE_TERM',
    })
    expect(await a.order({ do: 'release' })).toEqual({ outcome: 'not-held' })
    expect(await b.order({ do: 'look' })).toMatchObject({ isHeld: true })
    expect(await written()).toEqual(['a', 'b'])
  })

  test('inside a fenced transaction is cut off by the server, and nothing of it stays', async () => {
    const [a, b] = [await writer(), await writer()]
    await acquire(a, 2000)
    a.send({ do: 'begin', text: 'half-way' })
    expect(await a.report()).toEqual({ state: 'inside' })
    a.signal('SIGSTOP')
    await acquire(b)
    expect(await b.order({ do: 'write', text: 'b' })).toEqual({})
    a.signal('SIGCONT')
    a.send({ do: 'look' })
    expect(await a.report()).toMatchObject({ isAborted: true })
    expect(await written()).toEqual(['b'])
  })

  test('that nobody succeeded does not go on under the old claim either', async () => {
    const a = await writer()
    await acquire(a, 300)
    a.signal('SIGSTOP')
    await expect
      .poll(
        async () =>
          (await database.query(`select from fencepost.leases where name = $1 and state = 'expired'`, [name]))
            .length,
        { timeout: 10_000 },
      )
      .toBe(1)
    a.signal('SIGCONT')
    expect(await a.order({ do: 'write', text: 'late' })).toMatchObject({ code: 'LEASE_LOST' })
    expect(await written()).toEqual([])
  })
})

test('a killed process is succeeded without anybody cleaning up', async () => {
  const [a, b] = [await writer(), await writer()]
  const tokenA = BigInt((await acquire(a, 1000)).token!)
  a.send({ do: 'begin', text: 'never committed' })
  await a.report()
  await a.kill()
  expect(BigInt((await acquire(b)).token!)).toBeGreaterThan(tokenA)
  expect(await written()).toEqual([])
})

test('a process killed while a statement of it runs does not keep the lease until the statement ends', async (context) => {
  const [server] = await database.query<{ major: number }>(
    `select current_setting('server_version_num')::integer / 10000 as major`,
  )
  context.skip(server!.major < 14, 'PostgreSQL 13 does not look whether its client is still there')
  const [a, b] = [await writer(), await writer()]
  const tokenA = BigInt((await acquire(a, 1000)).token!)
  a.send({ do: 'hang' })
  await a.report()
  await expect
    .poll(
      async () =>
        (
          await database.query(
            `select from pg_stat_activity where query like '%pg_sleep(3600)%' and pid <> pg_backend_pid()`,
          )
        ).length,
    )
    .toBe(1)
  await a.kill()
  expect(BigInt((await acquire(b)).token!)).toBeGreaterThan(tokenA)
})

test('a Kysely whose pool listens to no errors survives a fenced transaction that is cut off', async () => {
  const script = `
    import { Kysely, PostgresDialect, sql } from 'kysely'
    import { Pool } from 'pg'
    import { FencedRepository, Fencepost } from '${new URL('../../src/index.ts', import.meta.url).href}'
    const connectionString = process.env.FENCEPOST_DATABASE_URL
    const db = new Kysely({ dialect: new PostgresDialect({ pool: new Pool({ connectionString }) }) })
    const fencepost = await Fencepost.open({ connectionString })
    const lease = await fencepost.acquire('bare')
    const cutOff = lease.transaction(db, async (tx) => {
      await sql\`select 1\`.execute(tx)
      await new Promise((resolve) => setTimeout(resolve, 1000))
      await sql\`select 1\`.execute(tx)
    }, { idleTimeout: '100ms' })
    console.log(await cutOff.then(() => 'committed', (error) => error.code))
    const accounts = new FencedRepository(db, 'bare', { key: 'id' })
    await sql\`create table bare (id integer primary key, fence_token bigint not null default 0)\`.execute(db)
    await sql\`create function end_session() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); return new; end'\`.execute(db)
    await sql\`create trigger end_session before insert on bare for each row execute function end_session()\`.execute(db)
    console.log(await accounts.insert(lease, { id: 1 }).then(() => 'written', (error) => error.code))
    console.log((await sql\`select 1 as one\`.execute(db)).rows[0].one)
    await fencepost.close()
    await db.destroy()`
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], {
    cwd: fileURLToPath(new URL('../..', import.meta.url)),
    env: { ...process.env, FENCEPOST_DATABASE_URL: database.url },
  })
  expect(stdout).toBe('TRANSACTION_CUT_OFF\nOUTCOME_UNKNOWN\n1\n')
})

test('a Kysely with another copy of pg is warned of, once', async () => {
  const root = fileURLToPath(new URL('../..', import.meta.url))
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-other-pg-'))
  try {
    await mkdir(join(directory, 'node_modules'))
    for (const installed of await readdir(join(root, 'node_modules'))) {
      if (installed === 'pg')
        await cp(join(root, 'node_modules', installed), join(directory, 'node_modules', installed), {
          recursive: true,
        })
      else await symlink(join(root, 'node_modules', installed), join(directory, 'node_modules', installed))
    }
    const script = `
      import { Kysely, PostgresDialect } from 'kysely'
      import { Pool } from 'pg'
      import { Fencepost } from '${new URL('../../src/index.ts', import.meta.url).href}'
      const connectionString = process.env.FENCEPOST_DATABASE_URL
      const db = new Kysely({ dialect: new PostgresDialect({ pool: new Pool({ connectionString }) }) })
      const fencepost = await Fencepost.open({ connectionString })
      const lease = await fencepost.acquire('other copy')
      for (let turn = 0; turn < 3; turn += 1) await lease.transaction(db, async () => {})
      await fencepost.close()
      await db.destroy()`
    await writeFile(join(directory, 'script.mjs'), script)
    const { stderr } = await promisify(execFile)(process.execPath, ['script.mjs'], {
      cwd: directory,
      env: { ...process.env, FENCEPOST_DATABASE_URL: database.url },
    })
    expect(stderr.match(/FENCEPOST_OTHER_PG/g)).toHaveLength(1)
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
})

test('a process whose event loop is blocked beyond its TTL answers rightly in the same tick', async () => {
  const [a, b] = [await writer(), await writer()]
  await acquire(a, 200)
  a.send({ do: 'block', ms: 1000 })
  await acquire(b)
  expect(await a.report()).toEqual({ isHeld: false, state: 'lost' })
  expect(await a.order({ do: 'write', text: 'stale', isCareless: true })).toMatchObject({
    code: 'STALE_TERM',
  })
})

test('sessions that are ended and rejections that nobody awaits do not end a process', async () => {
  const a = await writer()
  await acquire(a, 2000)
  for (let turn = 0; turn < 3; turn += 1) {
    await database.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and application_name like 'fencepost%'`,
    )
    expect((await a.order({ do: 'look' })).isHeld).toBe(true)
  }
  expect(await a.order({ do: 'release' })).toEqual({ outcome: 'released' })
  expect(a.isGone).toBe(false)
  expect(a.stderr).toBe('')
})
