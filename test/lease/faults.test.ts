import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Generated, Kysely, PostgresDialect } from 'kysely'
import { Client, Pool } from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { FencedRepository, Fencepost, type Lease, type Logger } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { eventually } from '../support/cli.ts'
import { awaitStandby, cancelWaits } from '../support/standby.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { startEmbedded } from '../support/embedded.ts'

const database = useDatabase()
let proxy: TcpProxy
let names = 0
const uniqueName = (): string => `fault-${(names += 1)}`

beforeEach(async () => {
  proxy = await TcpProxy.start(database.url)
})
afterEach(() => proxy.stop())

function lost(lease: Lease): Promise<unknown> {
  const { promise, resolve } = Promise.withResolvers<unknown>()
  if (lease.signal.aborted) resolve(lease.signal.reason)
  lease.signal.addEventListener('abort', () => resolve(lease.signal.reason))
  return promise
}

function atRisk(lease: Lease): Promise<{ expiresInMs: number; cause: unknown }> {
  const { promise, resolve } = Promise.withResolvers<{ expiresInMs: number; cause: unknown }>()
  lease.on('at-risk', resolve)
  return promise
}

/** How often the database has seen a heartbeat of the lease's holder, as far as its expiry tells. */
async function expiry(lease: Lease): Promise<number> {
  const [row] = await database.query<{ at: number }>(
    'select extract(epoch from expires_at)::float * 1000 as at from fencepost.holder where id = $1',
    [lease.term.holderId],
  )
  return row!.at
}

describe('the network', () => {
  test('that is gone for a moment costs no lease: it is at risk, and then held again', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '3s' })
    const before = await expiry(lease)
    proxy.drop()
    const risk = await atRisk(lease)
    expect(risk.expiresInMs).toBeGreaterThan(0)
    expect(lease.state).toBe('at-risk')
    expect(lease.isHeld).toBe(true)
    proxy.restore()
    await expect.poll(() => lease.state, { timeout: 5000, interval: 10 }).toBe('held')
    expect(await expiry(lease)).toBeGreaterThan(before)
    expect(lease.signal.aborted).toBe(false)
  })

  test('that resets connections costs no lease', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '1500ms' })
    for (let turn = 0; turn < 3; turn += 1) {
      const before = await expiry(lease)
      proxy.cut()
      await expect.poll(() => expiry(lease), { timeout: 5000 }).toBeGreaterThan(before)
    }
    expect(lease.isHeld).toBe(true)
    expect(await lease.release()).toBe('released')
  })

  test('that has vanished loses the lease here before anybody else can be granted it', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    const other = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '800ms' })
    const events: string[] = []
    const taking = other.acquire(name).then((taken) => {
      events.push('granted to another')
      return taken
    })
    proxy.drop()
    const reason = await lost(lease)
    events.push('lost here')
    expect(reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired' })
    expect(lease.isHeld).toBe(false)
    expect((await taking).token).toBeGreaterThan(lease.token)
    expect(events).toEqual(['lost here', 'granted to another'])
    expect(await lease.release()).toBe('not-held')
  })

  test('that swallows the answer to an acquire leaves no lease behind: the next one of this process gets it', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const other = await database.open()
    const name = uniqueName()
    await fencepost.acquire(`${name}/warm`)
    let swallowed = 0
    proxy.onReply((_, sent) => {
      if (!sent.includes(name) || swallowed > 0) return 'pass'
      swallowed += 1
      return 'swallow'
    })
    await expect(fencepost.tryAcquire(name)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(swallowed).toBe(1)
    const lease = await fencepost.acquire(name, { wait: '5s' })
    expect(lease.isHeld).toBe(true)
    expect(await other.tryAcquire(name)).toBeNull()
    // Nothing that the lost request did comes back later.
    expect(await lease.release()).toBe('released')
    expect(await other.tryAcquire(name)).not.toBeNull()
  })

  test('that swallows the answer to an acquire nobody asks for again frees the lease all the same', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const name = uniqueName()
    const keeping = await fencepost.acquire(`${name}/kept`, { ttl: '60s' })
    let swallowed = 0
    proxy.onReply((_, sent) => (sent.includes(name) && (swallowed += 1) === 1 ? 'swallow' : 'pass'))
    await expect(fencepost.tryAcquire(name, { ttl: '60s' })).rejects.toMatchObject({
      code: 'OUTCOME_UNKNOWN',
    })
    const other = await database.open()
    await using lease = await other.acquire(name, { wait: '30s' })
    expect(lease.isHeld).toBe(true)
    expect(keeping.isHeld).toBe(true)
  })

  test('that swallows the answer to a release is asked again until it is known', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '30s' })
    let swallowed = 0
    proxy.onReply((_, sent) =>
      sent.includes('fencepost_release') && (swallowed += 1) === 1 ? 'swallow' : 'pass',
    )
    // The first request has done it, and the second one finds the lease no longer held: that was this release.
    expect(await lease.release()).toBe('released')
    expect(swallowed).toBeGreaterThan(1)
  })

  test('that has vanished does not keep a caller waiting beyond its limit', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    await fencepost.acquire(uniqueName())
    proxy.drop()
    const started = performance.now()
    await expect(fencepost.acquire(uniqueName(), { wait: '200ms' })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
    // Far from the ten seconds that a request may take.
    expect(performance.now() - started).toBeLessThan(5000)
    const abort = new AbortController()
    const waiting = fencepost.acquire(uniqueName(), { signal: abort.signal })
    waiting.catch(() => {})
    abort.abort(new Error('enough'))
    await expect(waiting).rejects.toThrow('enough')
  })

  test('that has vanished makes nobody of this process believe that the lease is held', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '30s' })
    await fencepost.acquire(uniqueName())
    const name = uniqueName()
    proxy.drop()
    const unavailable = { code: 'DATABASE_UNAVAILABLE' }
    await Promise.all([
      expect(fencepost.acquire(name, { wait: '1500ms' })).rejects.toMatchObject(unavailable),
      expect(fencepost.acquire(name, { wait: '1600ms' })).rejects.toMatchObject(unavailable),
    ])
    await expect(fencepost.tryAcquire(name)).rejects.toMatchObject(unavailable)
    proxy.cut()
  })

  test('that comes back lets the process take leases again', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const name = uniqueName()
    for (let turn = 0; turn < 3; turn += 1) {
      const lease = await fencepost.acquire(name, { ttl: '400ms', wait: '20s' })
      proxy.drop()
      await lost(lease)
      proxy.restore()
    }
    expect((await fencepost.acquire(name, { ttl: '400ms', wait: '20s' })).isHeld).toBe(true)
  })
})

describe('the server', () => {
  test('may end any of the process’s sessions at any time', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '1500ms' })
    for (let turn = 0; turn < 4; turn += 1) {
      const before = await expiry(lease)
      await database.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and application_name like 'fencepost%'`,
      )
      const other = await fencepost.acquire(uniqueName(), { wait: '10s' })
      expect(await other.release()).toBe('released')
      await expect.poll(() => expiry(lease), { timeout: 5000 }).toBeGreaterThan(before)
    }
    expect(lease.isHeld).toBe(true)
  })

  test('that has become a read-only standby is left for the new primary', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '600ms' })
    const name = new URL(database.url).pathname.slice(1)
    await database.query(`alter database ${name} set default_transaction_read_only = on`)
    proxy.cut()
    expect(await lost(lease)).toMatchObject({ reason: 'expired' })
    await expect(fencepost.tryAcquire(uniqueName())).rejects.toMatchObject({ code: 'READ_ONLY_SERVER' })
    await database.query(
      `set default_transaction_read_only = off; alter database ${name} reset default_transaction_read_only`,
    )
    expect((await fencepost.acquire(uniqueName(), { wait: '10s' })).isHeld).toBe(true)
  })

  test('that somebody keeps a lease row locked on delays neither heartbeats nor other leases', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '600ms' })
    const blocker = await database.session()
    await blocker.query('begin')
    await blocker.query('select from fencepost.lease where name = $1 for update', [name])
    const before = await expiry(lease)
    await expect.poll(() => expiry(lease), { timeout: 5000 }).toBeGreaterThan(before + 400)
    const other = await fencepost.acquire(uniqueName(), { wait: '5s' })
    expect(other.isHeld).toBe(true)
    const releasing = lease.release()
    await blocker.query('commit')
    expect(await releasing).toBe('released')
  })

  test('that is frozen, thawed, crashed and restarted ends no process and hangs no waiter', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-crash-'))
    const start = (port?: number): Promise<EmbeddedServer> =>
      startEmbedded({ directory, ...(port === undefined ? {} : { port }), settings: { fsync: 'off' } })
    let server = await start()
    try {
      await Fencepost.migrate({ connectionString: server.url })
      await using fencepost = await Fencepost.open({
        connectionString: server.url,
        minTtl: '100ms',
        requestTimeout: '500ms',
      })
      const lease = await fencepost.acquire('frozen', { ttl: '500ms' })
      await server.freeze()
      expect(await lost(lease)).toMatchObject({ reason: 'expired' })
      const waiting = fencepost.acquire('frozen', { ttl: '500ms', wait: '60s' })
      await server.thaw()
      const again = await waiting
      expect(again.token).toBeGreaterThan(lease.token)

      const across = fencepost.acquire('crashed', { ttl: '500ms', wait: '60s' })
      await server.stop('immediate')
      const { port } = server
      const later = fencepost.acquire('after the crash', { ttl: '500ms', wait: '60s' })
      server = await start(port)
      const tokens = [(await across).token, (await later).token]
      for (const token of tokens) expect(token).toBeGreaterThan(again.token)
    } finally {
      await server.stop('immediate')
      await rm(directory, { recursive: true, force: true })
    }
  })

  test('that crashes after a grant hands out no token twice, whatever its settings', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-durable-'))
    const settings = { synchronous_commit: 'off', wal_writer_delay: '10s' }
    let server = await startEmbedded({ directory, settings })
    try {
      await Fencepost.migrate({ connectionString: server.url })
      const tokens: bigint[] = []
      for (let turn = 0; turn < 5; turn += 1) {
        const fencepost = await Fencepost.open({ connectionString: server.url, minTtl: '100ms' })
        const lease = await fencepost.acquire('durable', { ttl: '200ms', wait: '30s' })
        tokens.push(lease.token)
        await server.stop('immediate')
        await fencepost.close()
        server = await startEmbedded({ directory, port: server.port, settings })
      }
      expect(new Set(tokens).size).toBe(5)
      expect(tokens).toEqual(tokens.toSorted((a, b) => (a < b ? -1 : 1)))
    } finally {
      await server.stop('immediate')
      await rm(directory, { recursive: true, force: true })
    }
  })
})

describe('a crash of the server', () => {
  test('that undoes a release does not leave the lease with a holder that lives on', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const name = uniqueName()
    const kept = await fencepost.acquire(uniqueName(), { ttl: '600ms' })
    const lease = await fencepost.acquire(name, { ttl: '600ms' })
    expect(await lease.release()).toBe('released')
    // What a crash leaves that came between the answer and the disk.
    await database.query('update fencepost.lease set holder_id = $1, token = $2 where name = $3', [
      lease.term.holderId,
      lease.token.toString(),
      name,
    ])
    const taken = await other.acquire(name, { wait: '30s' })
    expect(taken.token).toBeGreaterThan(lease.token)
    // Its holder was alive all the time, so it was not the TTL that freed the lease.
    expect(kept.isHeld).toBe(true)
  })

  test('that takes a synchronous standby along leaves a commit in doubt, and it is reported so', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-standby-'))
    const server = await startEmbedded({ directory, settings: { fsync: 'off' } })
    try {
      await Fencepost.migrate({ connectionString: server.url })
      const pool = new Pool({ connectionString: server.url })
      const watcher = new Client({ connectionString: server.url })
      await watcher.connect()
      await watcher.query('set synchronous_commit = local')
      await watcher.query('create table notes (id integer, fence_token bigint)')
      const db = new Kysely<{ notes: { id: number; fence_token: Generated<string> } }>({
        dialect: new PostgresDialect({ pool }),
      })
      const fencepost = await Fencepost.open({ connectionString: server.url })
      const repository = new FencedRepository(db, 'notes', { key: 'id' })
      const lease = await fencepost.acquire('standby', { ttl: '10m' })
      await awaitStandby(watcher, server.url)
      for (const write of [
        () => lease.transaction(db, (tx) => tx.insertInto('notes').values({ id: 1 }).execute()),
        () => lease.transaction(pool, (client) => client.query('insert into notes values (1)')),
        () => repository.insert(lease, { id: 2 }),
        () => fencepost.tryAcquire('another'),
      ]) {
        const writing = write()
        writing.catch(() => {})
        await eventually(() => cancelWaits(watcher))
        await expect(writing).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      }
      await watcher.query('alter system reset synchronous_standby_names')
      await watcher.query('select pg_reload_conf()')
      await fencepost.close()
      await db.destroy()
      await watcher.end()
    } finally {
      await server.stop('immediate')
      await rm(directory, { recursive: true, force: true })
    }
  })
})

describe('this process', () => {
  test('keeps a lease while a join and the heartbeats of another TTL hang', async () => {
    const fencepost = await database.open({ connectionString: proxy.url })
    const long = await fencepost.acquire(uniqueName(), { ttl: '60s' })
    const short = await fencepost.acquire(uniqueName(), { ttl: '1500ms' })
    proxy.drop()
    await atRisk(short)
    // A join of a third TTL hangs at the same time.
    const joining = fencepost.tryAcquire(uniqueName(), { ttl: '7s' })
    joining.catch(() => {})
    proxy.restore()
    await expect.poll(() => short.state, { timeout: 5000, interval: 10 }).toBe('held')
    expect(long.isHeld).toBe(true)
  })

  test('whose pool is busy keeps its lease: heartbeats have connections of their own', async () => {
    const fencepost = await database.open()
    const pool = database.newPool({ max: 1 })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    const before = await expiry(lease)
    await pool.query('select pg_sleep(1)')
    expect(lease.isHeld).toBe(true)
    expect(await expiry(lease)).toBeGreaterThan(before + 500)
  })

  test('whose event loop was blocked beyond the TTL knows it in the same tick, and its write is refused', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '200ms' })
    const pool = database.newPool()
    await pool.query('select 1')
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400)
    expect(lease.isHeld).toBe(false)
    expect(lease.state).toBe('lost')
    await expect(lease.transaction(pool, async () => {})).rejects.toMatchObject({ code: 'LEASE_LOST' })
    await lost(lease)
  })

  test('survives a logger that throws', async () => {
    const logger = Object.fromEntries(
      ['debug', 'info', 'warn', 'error'].map((level) => [
        level,
        () => {
          throw new Error('the logger is full')
        },
      ]),
    ) as unknown as Logger
    const fencepost = await database.open({ connectionString: proxy.url, logger })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '1500ms' })
    const before = await expiry(lease)
    proxy.cut()
    await expect.poll(() => expiry(lease), { timeout: 5000 }).toBeGreaterThan(before)
  })

  test('leaves no session, holder or timer behind when it closes in the middle of everything', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, label: 'tidy' })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    const working = lease.release()
    await fencepost.close()
    await working
    await expect.poll(() => proxy.connections, { timeout: 5000 }).toBe(0)
    const rows = await database.query(
      `select from fencepost.holder where label = 'tidy' and ended_at is null`,
    )
    expect(rows).toEqual([])
  })

  test('that closes while the database is gone does not hang', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    proxy.drop()
    await fencepost.close()
    expect(lease.state).toBe('lost')
  })
})

test('the test’s own client sees what it must', async () => {
  // A guard for this file: without the proxy's help a lease outlives many TTLs.
  const client = new Client({ connectionString: proxy.url })
  client.on('error', () => {})
  await client.connect()
  expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
  proxy.drop()
  expect(await Promise.race([client.query('select 1'), sleep(100, 'silence')])).toBe('silence')
  client.end().catch(() => {})
})
