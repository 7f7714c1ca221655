import { createServer } from 'node:net'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { Log, listeners, untilInLine, untilLeft } from '../support/line.ts'
import { embeddedVersion } from '../support/embedded.ts'
import { OwnServer } from '../support/own-server.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
let proxy: TcpProxy
let names = 0
const uniqueName = (): string => `queue-fault-${(names += 1)}`

beforeEach(async () => {
  proxy = await TcpProxy.start(database.url)
})
afterEach(() => proxy.stop())

/** So long a waiter sleeps by itself only where nothing here may last so long. */
const long = '60s'
const soonMs = 25_000

/** One term after another goes to who waits, each by a wake-up: far sooner than a waiter with such a TTL would ask. */
async function expectWakeUps(
  holder: Awaited<ReturnType<typeof database.open>>,
  waiter: Awaited<ReturnType<typeof database.open>>,
  at: Parameters<typeof untilInLine>[0] = database,
): Promise<void> {
  for (let turn = 0; turn < 3; turn += 1) {
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(at, name, 1)
    const startedMs = performance.now()
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(performance.now() - startedMs).toBeLessThan(soonMs)
    await (await waiting).release()
  }
}

describe('a session that listens', () => {
  test('and is ended by the server is replaced, and what was missed is found out', async () => {
    const logger = new Log()
    const [holder, waiter] = [await database.open(), await database.open({ logger })]
    const before = await listeners(database)
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    await expect.poll(() => listeners(database), { timeout: 10_000 }).toHaveLength(before.length + 1)
    const first = await listeners(database)
    await database.query('select pg_terminate_backend(pid) from unnest($1::integer[]) pid', [first])
    const startedMs = performance.now()
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(performance.now() - startedMs).toBeLessThan(soonMs)
    await expect.poll(() => logger.deafness.length, { timeout: 10_000 }).toBe(1)
    const again = waiter.acquire((await holder.acquire(uniqueName())).name, { wait: '20s' })
    again.catch(() => {})
    await expect.poll(() => listeners(database), { timeout: 10_000 }).toHaveLength(before.length + 1)
    await expectWakeUps(holder, waiter)
    expect(logger.deafness).toHaveLength(1)
    await waiter.close()
    await again.catch(() => {})
  })

  test('and is cut off without a word is noticed by its probe, and the lease is not waited for any longer', async () => {
    const logger = new Log()
    const [holder, waiter] = [
      await database.open(),
      await database.open({ logger, connectionString: proxy.url }),
    ]
    await expectWakeUps(holder, waiter)
    proxy.loseThoseOf('fencepost listener')
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    const startedMs = performance.now()
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(performance.now() - startedMs).toBeLessThan(soonMs)
    expect(logger.deafness).toHaveLength(1)
    proxy.loseThoseOf(undefined)
    const other = waiter.acquire((await holder.acquire(uniqueName())).name)
    other.catch(() => {})
    await expectWakeUps(holder, waiter)
    expect(logger.deafness).toHaveLength(1)
    await waiter.close()
  })
})

const noPooler = pgbouncerReason()
describe.skipIf(noPooler !== undefined)('behind PgBouncer in transaction mode', () => {
  test.each([
    ['as it comes', 2, '0'],
    ['taking its sessions in turn', 2, '1'],
    ['of one session', 1, '0'],
  ])(
    '(%s) leases are got by asking about once a second, with one warning and nothing left in the sessions',
    async (_, size, inTurn) => {
      const settings = { default_pool_size: String(size), server_round_robin: inTurn }
      await using bouncer = await PgBouncer.start(database.url, settings)
      const logger = new Log()
      const connectionString = bouncer.url
      const [holder, waiter] = [
        await database.open({ connectionString }),
        await database.open({ connectionString, logger }),
      ]
      // The first wait outlives the time in which it notices that it is deaf.
      const name = uniqueName()
      const lease = await holder.acquire(name, { ttl: long })
      const waiting = waiter.acquire(name, { ttl: long })
      await untilInLine(database, name, 1)
      await expect.poll(() => logger.deafness.length, { timeout: 10_000 }).toBe(1)
      expect(await lease.handOver()).toBe('handed-over')
      expect((await waiting).token).toBe(lease.token + 1n)
      await expectWakeUps(holder, waiter)
      expect(logger.deafness).toHaveLength(1)
      await Promise.all([holder.close(), waiter.close()])
      // All sessions of the pool at the same time.
      const pool = database.newPool({ connectionString, max: size })
      const clients = await Promise.all(Array.from({ length: size }, () => pool.connect()))
      try {
        await Promise.all(clients.map((client) => client.query('begin')))
        const found = await Promise.all(
          clients.map((client) => client.query('select pg_listening_channels()')),
        )
        expect(found.flatMap(({ rows }) => rows)).toEqual([])
        expect(
          await database.query(`select from pg_locks where locktype = 'advisory'
            and database = (select oid from pg_database where datname = current_database())`),
        ).toEqual([])
        await Promise.all(clients.map((client) => client.query('rollback')))
      } finally {
        for (const client of clients) client.release()
      }
    },
  )
})

test.skipIf(noPooler !== undefined)('behind PgBouncer in session mode wake-ups come', async () => {
  await using bouncer = await PgBouncer.start(database.url, { pool_mode: 'session', default_pool_size: '20' })
  const logger = new Log()
  const connectionString = bouncer.url
  const [holder, waiter] = [
    await database.open({ connectionString }),
    await database.open({ connectionString, logger }),
  ]
  await expectWakeUps(holder, waiter)
  expect(logger.deafness).toEqual([])
  await Promise.all([holder.close(), waiter.close()])
})

describe('a queue of notifications that is full', () => {
  test('makes no release fail, and the waiter finds out by asking; when it drains, wake-ups come again', async ({
    skip,
  }) => {
    skip(embeddedVersion < 17, 'the size of the queue can be set from PostgreSQL 17 on')
    await using server = await OwnServer.start({ max_notify_queue_pages: '64' })
    const logger = new Log()
    const [holder, waiter] = [await server.open({ logger }), await server.open()]
    await expectWakeUps(holder, waiter, server)
    const blocker = await server.session()
    await blocker.query('listen fencepost_fill')
    await blocker.query('begin')
    await blocker.query('select 1')
    const filler = await server.session()
    const fill = `select pg_notify('fencepost_fill', repeat('x', 7000) || n) from generate_series(1, 10) n`
    let refused = ''
    while (refused === '') {
      refused = await filler.query(fill).then(
        () => '',
        (error: Error) => error.message,
      )
    }
    expect(refused).toMatch(/too many notifications/)
    while ((await filler.query(`select pg_notify('fencepost_fill', 'x')`).catch(() => 'full')) !== 'full');

    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: '1s' })
    await untilInLine(server, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    const taken = await waiting
    expect(taken.token).toBe(lease.token + 1n)
    expect(logger.warnings.filter((message) => message.includes('wake-ups cannot be sent'))).toHaveLength(1)
    expect(await taken.release()).toBe('released')
    // Nobody waits, so nobody is to be told.
    expect(await (await holder.acquire(uniqueName())).handOver()).toBe('released')

    await blocker.query('rollback')
    await blocker.end()
    await filler.end()
    await expectWakeUps(holder, waiter, server)
  })
})

describe('a limit of a wait', () => {
  /** Not "held": nobody knows. Where a request had been sent, not even whether it was granted, until it is undone. */
  const unavailable = { code: expect.stringMatching(/^(DATABASE_UNAVAILABLE|OUTCOME_UNKNOWN)$/) as string }
  /** Far from the 30 s that a request may take. */
  async function soon<T>(promise: Promise<T>): Promise<T> {
    const startedMs = performance.now()
    try {
      return await promise
    } finally {
      expect(performance.now() - startedMs).toBeLessThan(10_000)
    }
  }

  test('holds when a connection gets no answer, and nobody says that the lease is held', async () => {
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '30s' })
    proxy.drop()
    proxy.cut()
    await expect(soon(fencepost.acquire(uniqueName(), { wait: '300ms' }))).rejects.toMatchObject(unavailable)
    await expect(
      soon(fencepost.acquireAll([uniqueName(), uniqueName()], { wait: '300ms' })),
    ).rejects.toMatchObject(unavailable)
  })

  test('holds when the server accepts connections and never speaks', async () => {
    const relay = await TcpProxy.start(database.url)
    const fencepost = await database.open({ connectionString: relay.url, requestTimeout: '30s' })
    const { port } = new URL(relay.url)
    await relay.stop()
    const silent = createServer()
    await new Promise<void>((resolve) => silent.listen(Number(port), '127.0.0.1', resolve))
    try {
      await expect(soon(fencepost.acquire(uniqueName(), { wait: '300ms' }))).rejects.toMatchObject(
        unavailable,
      )
    } finally {
      silent.close()
    }
  })

  test('holds when the server is frozen, is down, or freezes while one waits', async () => {
    await using server = await OwnServer.start()
    const [holder, waiter] = [
      await server.open({ requestTimeout: '30s' }),
      await server.open({ requestTimeout: '30s' }),
    ]
    const [held, free] = [uniqueName(), uniqueName()]
    await holder.acquire(held, { ttl: long })
    await expect(soon(waiter.acquire(held, { ttl: long, wait: '300ms' }))).rejects.toMatchObject({
      code: 'NOT_ACQUIRED',
    })
    await untilInLine(server, held, 0)
    // In line, and the server has said who holds it. What it would say now, nobody knows.
    const waiting = waiter.acquire(held, { ttl: long, wait: '2s' })
    waiting.catch(() => {})
    await untilInLine(server, held, 1)
    await server.freeze()
    await expect(soon(waiting)).rejects.toMatchObject({ code: 'NOT_ACQUIRED' })
    await expect(soon(waiter.acquire(free, { ttl: '3s', wait: '300ms' }))).rejects.toMatchObject(unavailable)
    await server.thaw()
    await untilInLine(server, held, 0)
    await server.stop('immediate')
    await expect(soon(waiter.acquire(free, { ttl: '3s', wait: '300ms' }))).rejects.toMatchObject(unavailable)
    await expect(soon(waiter.acquireAll([free, held], { wait: '300ms' }))).rejects.toMatchObject(unavailable)
    await server.startAgain()
    await untilLeft(server, free)
  })

  test('holds when somebody keeps the lease locked, be it held or free', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const [held, free] = [uniqueName(), uniqueName()]
    const lease = await holder.acquire(held)
    await (await holder.acquire(free)).release()
    const blocker = await database.session()
    await blocker.query('begin')
    await blocker.query('select from fencepost.lease where name = any ($1) for update', [[held, free]])
    for (const name of [held, free]) {
      await expect(soon(waiter.acquire(name, { wait: '300ms' }))).rejects.toMatchObject({
        code: 'NOT_ACQUIRED',
      })
    }
    await blocker.query('rollback')
    await lease.release()
    for (const name of [held, free]) await untilLeft(database, name)
  })

  test('holds when somebody keeps the process’s own row locked', async () => {
    const waiter = await database.open({ requestTimeout: '30s' })
    const own = await waiter.acquire(uniqueName(), { ttl: long })
    const name = uniqueName()
    const holder = await database.open()
    const lease = await holder.acquire(name)
    const blocker = await database.session()
    await blocker.query('begin')
    await blocker.query('select from fencepost.holder where id = $1 for update', [own.term.holderId])
    await expect(soon(waiter.acquire(name, { ttl: long, wait: '300ms' }))).rejects.toMatchObject(unavailable)
    await blocker.query('rollback')
    await untilInLine(database, name, 0)
    await lease.release()
    await untilLeft(database, name)
    expect(own.isHeld).toBe(true)
  })
})

describe('an answer that is lost', () => {
  /** Swallows the first answers to what contains one of these. */
  function swallow(marker: string, times = 1): { count: number; passed: number; done: Promise<void> } {
    const { promise, resolve } = Promise.withResolvers<void>()
    const swallowed = { count: 0, passed: 0, done: promise }
    proxy.onReply((_, sent) => {
      if (!sent.includes(marker)) return 'pass'
      if (swallowed.count >= times) {
        swallowed.passed += 1
        return 'pass'
      }
      swallowed.count += 1
      if (swallowed.count === times) resolve()
      return 'swallow'
    })
    return swallowed
  }
  const faulty = { requestTimeout: '400ms' } as const

  test('to the call that stands in line leaves one place, and the lease comes', async () => {
    const [holder, waiter] = [
      await database.open(),
      await database.open({ ...faulty, connectionString: proxy.url }),
    ]
    await waiter.acquire(uniqueName(), { ttl: long })
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const { done } = swallow(name)
    const waiting = waiter.acquire(name, { ttl: long })
    await done
    // By the place that the waiter does not know of.
    expect(await lease.handOver()).toBe('handed-over')
    const taken = await waiting
    expect(taken.isHeld).toBe(true)
    expect(taken.token).toBeGreaterThan(lease.token)
    await untilInLine(database, name, 0)
    expect(await holder.tryAcquire(name)).toBeNull()
    expect(await taken.release()).toBe('released')
    await untilLeft(database, name)
  })

  test('to the call that stands in line, of one who gives up, goes on to the next in line', async () => {
    const [holder, waiter, next] = [
      await database.open(),
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    await waiter.acquire(uniqueName(), { ttl: long })
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const { done } = swallow(name)
    const abort = new AbortController()
    const waiting = waiter.acquire(name, { ttl: long, signal: abort.signal })
    waiting.catch(() => {})
    await done
    const getting = next.acquire(name, { ttl: long })
    await untilInLine(database, name, 2)
    abort.abort(new Error('enough'))
    await expect(waiting).rejects.toThrow('enough')
    expect(await lease.handOver()).toBe('handed-over')
    const startedMs = performance.now()
    expect((await getting).isHeld).toBe(true)
    expect(performance.now() - startedMs).toBeLessThan(soonMs)
    await (await getting).release()
    await untilLeft(database, name)
  })

  test('to a question with a ticket is asked for again, and the grant is the same', async () => {
    const [holder, waiter] = [
      await database.open(),
      await database.open({ ...faulty, connectionString: proxy.url }),
    ]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: long, maxHold: '1h' })
    await untilInLine(database, name, 1)
    const swallowed = swallow('fencepost_ask_again', 2)
    expect(await lease.handOver()).toBe('handed-over')
    const taken = await waiting
    expect(taken.token).toBe(lease.token + 1n)
    expect(swallowed.count).toBe(2)
    expect(await taken.release()).toBe('released')
    await untilLeft(database, name)
  })

  test('to a release loses nothing where the lease was waited for before: the wake-up has been sent', async () => {
    const [holder, waiter] = [
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    await expectWakeUps(holder, waiter)
    const name = uniqueName()
    const first = await waiter.acquire(name, { ttl: long })
    const getting = holder.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    await first.release()
    const lease = await getting
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    const swallowed = swallow('fencepost_hand_over')
    const startedMs = performance.now()
    expect(await lease.release()).toBe('released')
    expect(swallowed.count).toBe(1)
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(performance.now() - startedMs).toBeLessThan(soonMs)
    expect(lease.state).toBe('released')
    await (await waiting).release()
    await untilLeft(database, name)
  })

  test('to the first release that somebody waits for loses the wake-up only: the waiter finds out by asking', async () => {
    const [holder, waiter] = [
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: '2s' })
    const waiting = waiter.acquire(name, { ttl: '2s' })
    await untilInLine(database, name, 1)
    const swallowed = swallow('fencepost_release')
    expect(await lease.release()).toBe('released')
    expect(swallowed.count).toBe(1)
    expect((await waiting).token).toBe(lease.token + 1n)
    await (await waiting).release()
    await untilLeft(database, name)
  })

  test('to a release of several loses the wake-ups only: the waiters find out by asking', async () => {
    const [holder, waiter] = [
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    const both = [uniqueName(), uniqueName()]
    const leases = await Promise.all(both.map((name) => holder.acquire(name, { ttl: '2s' })))
    const waiting = both.map((name) => waiter.acquire(name, { ttl: '2s' }))
    for (const name of both) await untilInLine(database, name, 1)
    const swallowed = swallow('fencepost_release')
    expect(await Promise.all(leases.map((lease) => lease.release()))).toEqual(['released', 'released'])
    expect(swallowed.count).toBe(1)
    for (const [index, granted] of (await Promise.all(waiting)).entries()) {
      expect(granted.token).toBeGreaterThan(leases[index]!.token)
      await granted.release()
    }
    for (const name of both) await untilLeft(database, name)
  })

  test('to the sending of a wake-up sends no wrong one', async () => {
    const [holder, waiter] = [
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    const both = [uniqueName(), uniqueName()]
    const leases = await Promise.all(both.map((name) => holder.acquire(name, { ttl: long })))
    const waiting = both.map((name) => waiter.acquire(name, { ttl: long }))
    for (const name of both) await untilInLine(database, name, 1)
    const swallowed = swallow('fencepost_wake')
    // Only what several leases have to tell goes in a statement of its own.
    const handed = await Promise.all(leases.map((lease) => lease.handOver()))
    expect(handed).toEqual(['handed-over', 'handed-over'])
    const taken = await Promise.all(waiting)
    for (const [index, { token }] of taken.entries()) expect(token).toBeGreaterThan(leases[index]!.token)
    await expect.poll(() => swallowed.count, { timeout: 10_000 }).toBe(1)
    await expectWakeUps(holder, waiter)
    for (const lease of taken) expect(lease.isHeld).toBe(true)
  })

  test('to the leaving of a place is asked again until the place is left', async () => {
    const logger = new Log()
    const [holder, waiter, next] = [
      await database.open(),
      await database.open({ ...faulty, logger, connectionString: proxy.url }),
      await database.open(),
    ]
    for (const releasesFirst of [false, true]) {
      const name = uniqueName()
      const lease = await holder.acquire(name, { ttl: long })
      const abort = new AbortController()
      const waiting = waiter.acquire(name, { ttl: long, signal: abort.signal })
      waiting.catch(() => {})
      await untilInLine(database, name, 1)
      const getting = next.acquire(name, { ttl: '2s' })
      await untilInLine(database, name, 2)
      // From now on it asks only when its TTL is nearly over, and so it leaves in its sleep.
      await logger.untilListening()
      const swallowed = swallow('fencepost.leave', 2)
      if (releasesFirst) {
        // The wake-up does not reach it, so it leaves a place that has been granted the lease.
        proxy.loseThoseOf('fencepost listener')
        expect(await lease.handOver()).toBe('handed-over')
      }
      abort.abort(new Error('enough'))
      await expect(waiting).rejects.toThrow('enough')
      if (!releasesFirst) await lease.release()
      const taken = await getting
      expect(taken.isHeld).toBe(true)
      // The third answer comes, so nothing of this turn is asked in the next.
      await expect.poll(() => swallowed.passed).toBe(1)
      expect(swallowed.count).toBe(2)
      await untilInLine(database, name, 0)
      await taken.release()
      await untilLeft(database, name)
      proxy.loseThoseOf(undefined)
    }
  })

  test('to what undoes an attempt is asked again until nothing of it is left', async () => {
    const [holder, waiter, next] = [
      await database.open(),
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    await waiter.acquire(uniqueName(), { ttl: long })
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    let answers = 0
    const swallowed = { attempts: 0, undone: 0 }
    proxy.onReply((_, sent) => {
      answers += 1
      if (swallowed.attempts < 1 && sent.includes(name)) {
        swallowed.attempts += 1
        return 'swallow'
      }
      if (swallowed.undone < 2 && sent.includes('fencepost.give_back')) {
        swallowed.undone += 1
        return 'swallow'
      }
      return 'pass'
    })
    const waiting = waiter.acquire(name, { ttl: long, wait: '100ms' })
    await expect(waiting).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    // Whom to wake was in the answers that were lost, so it asks.
    const getting = next.acquire(name, { ttl: '2s' })
    await lease.release()
    const taken = await getting
    expect(taken.isHeld).toBe(true)
    await expect.poll(() => swallowed.undone, { timeout: 20_000 }).toBe(2)
    expect(answers).toBeGreaterThan(3)
    await taken.release()
    await untilLeft(database, name)
  })

  test('to the end of a holder in front leaves nobody waiting for longer than its TTL', async () => {
    const [holder, waiter, next] = [
      await database.open(),
      await database.open({ ...faulty, connectionString: proxy.url }),
      await database.open(),
    ]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: '2s' })
    const waiting = waiter.acquire(name, { ttl: '2s' })
    waiting.catch(() => {})
    await untilInLine(database, name, 1)
    const getting = next.acquire(name, { ttl: long })
    await untilInLine(database, name, 2)
    const swallowed = swallow('fencepost.end_holder')
    await waiter.close()
    expect(swallowed.count).toBe(1)
    await expect(waiting).rejects.toMatchObject({ code: 'CLOSED' })
    expect(await lease.handOver()).toBe('handed-over')
    expect((await getting).token).toBe(lease.token + 1n)
    await untilInLine(database, name, 0)
  })
})
