import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { AcquireOptions, Lease } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { listeners, untilInLine, untilLeft } from '../support/line.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
let names = 0
const uniqueName = (): string => `queue-${(names += 1)}`

/** Bounds of the lease's present term as the database keeps them. */
async function bounds(lease: string): Promise<Record<string, unknown>> {
  const [row] = await database.query<Record<string, unknown>>(
    `select l.ticket, extract(epoch from nullif(l.deadline, 'infinity') - l.granted_at)::float * 1000 as max_hold_ms,
            extract(epoch from nullif(l.available_at, '-infinity') - l.granted_at)::float * 1000 as min_hold_ms,
            extract(epoch from l.grace)::float * 1000 as grace_ms, extract(epoch from h.ttl)::float * 1000 as ttl_ms
       from fencepost.lease l left join fencepost.holder h on h.id = l.holder_id where l.name = $1`,
    [lease],
  )
  return row!
}

async function tickets(lease: string): Promise<string[]> {
  const rows = await database.query<{ ticket: string }>(
    'select ticket from fencepost.waiter where lease = $1 order by ticket',
    [lease],
  )
  return rows.map(({ ticket }) => ticket)
}

/** The minimum hold of a lease that was given back is over. */
async function holdIsOver(name: string): Promise<void> {
  await database.query(`update fencepost.lease set available_at = '-infinity' where name = $1`, [name])
}

test('a hand-over is heard by nobody but the process that is granted the lease, and by that one at once', async () => {
  const [holder, waiter] = [await database.open(), await database.open()]
  const bystander = await database.session()
  const heard: string[] = []
  bystander.on('notification', ({ payload }) => heard.push(payload!))
  await bystander.query('listen fencepost')
  const name = uniqueName()
  const lease = await holder.acquire(name, { ttl: '10m' })
  const waiting = waiter.acquire(name, { ttl: '10m' })
  await untilInLine(database, name, 1)
  // Until it listens to itself it asks once a second; from then on it would not for minutes.
  await expect.poll(() => heard.length, { timeout: 10_000 }).toBe(1)
  expect(heard).toEqual([expect.stringMatching(/^echo /)])
  await expect.poll(() => listeners(database)).toHaveLength(1)
  expect(await lease.handOver()).toBe('handed-over')
  expect((await waiting).token).toBe(lease.token + 1n)
  await bystander.query('select 1')
  expect(heard).toHaveLength(1)
  await Promise.all([holder.close(), waiter.close()])
})

describe('the line', () => {
  test('is not passed by who asks once, who is told who is first in it', async () => {
    const [holder, waiter, other] = [await database.open(), await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { minHold: '1h' })
    // Its owner has stopped, so it does not take what is free.
    const stopped = await SqlHolder.join(database.pool, 30_000, 'the first in line')
    await stopped.ask([name], { stand: true })
    const waiting = waiter.acquire(name)
    await untilInLine(database, name, 2)
    // Nobody has it now, but it is not free before its minimum hold is over.
    await lease.release()
    await holdIsOver(name)
    expect(await other.tryAcquire(name)).toBeNull()
    await expect(other.acquire(name, { wait: 0 })).rejects.toMatchObject({
      code: 'NOT_ACQUIRED',
      contender: { isInLine: true, label: 'the first in line' },
    })
    expect(await other.tryAcquireAll([name, `${name}/other`])).toBeNull()
    await database.query('select fencepost.end_holder($1)', [stopped.id])
    await database.query('select fencepost.wake(array(select fencepost.hand_on($1)))', [stopped.id])
    expect((await waiting).token).toBe(lease.token + 1n)
  })

  test('is passed by who barges, and keeps its order', async () => {
    const [holder, waiter, other] = [await database.open(), await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { minHold: '1h' })
    // Its owner has stopped, so it does not take what is free.
    const stopped = await SqlHolder.join(database.pool, 30_000)
    await database.query('select * from fencepost.acquire(array[$1], $2, p_stand => true)', [
      name,
      stopped.id,
    ])
    await untilInLine(database, name, 1)
    await lease.release()
    const waiting = waiter.acquire(name)
    await untilInLine(database, name, 2)
    await holdIsOver(name)
    expect(await other.tryAcquire(name)).toBeNull()
    const barged = await other.tryAcquire(name, { barge: true })
    expect(barged!.token).toBe(lease.token + 1n)
    await untilInLine(database, name, 2)
    expect(await barged!.handOver()).toBe('handed-over')
    expect(await bounds(name)).toMatchObject({ ttl_ms: 30_000 })
    await database.query('select fencepost.end_holder($1)', [stopped.id])
    await database.query('select fencepost.wake(array(select fencepost.hand_on($1)))', [stopped.id])
    expect((await waiting).isHeld).toBe(true)
  })

  test('is not passed by several leases together, which get theirs when the line is empty', async () => {
    const [holder, waiter, other] = [await database.open(), await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name)
    const waiting = waiter.acquire(name)
    await untilInLine(database, name, 1)
    const order: string[] = []
    const all = other.acquireAll([name, `${name}/b`]).then((leases) => {
      order.push('all')
      return leases
    })
    all.catch(() => {})
    void waiting.then(() => order.push('one'))
    await lease.release()
    const one = await waiting
    expect(await other.tryAcquire(`${name}/b`)).not.toBeNull()
    await one.release()
    await other.close()
    await expect(all).rejects.toMatchObject({ code: 'CLOSED' })
    expect(order).toEqual(['one'])
    await using together = await holder.acquireAll([name, `${name}/b`], { wait: '20s' })
    expect(together.get(name).isHeld).toBe(true)
  })

  test('is stood in once for a process, however many of its callers wait', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name)
    const order: number[] = []
    const waiting = Array.from({ length: 20 }, async (_, number) => {
      await using taken = await waiter.acquire(name, { ttl: number % 2 === 0 ? '30s' : '20s' })
      order.push(number)
      expect(taken.isHeld).toBe(true)
    })
    await untilInLine(database, name, 1)
    expect(await waiter.tryAcquire(name)).toBeNull()
    expect(await tickets(name)).toHaveLength(1)
    await lease.release()
    await Promise.all(waiting)
    expect(order).toEqual([...Array(20).keys()])
    await untilLeft(database, name)
  })
})

describe('who barges', () => {
  test('twice in one moment of one process is granted the lease once', async () => {
    const fencepost = await database.open()
    for (let turn = 0; turn < 5; turn += 1) {
      const name = uniqueName()
      const taken = await Promise.all(
        Array.from({ length: 5 }, () => fencepost.tryAcquire(name, { barge: true })),
      )
      expect(taken.filter((lease) => lease !== null)).toHaveLength(1)
    }
  })
})

describe('the next caller of the process', () => {
  const first = { ttl: '30s', maxHold: '1h', minHold: 0, graceAfterCrash: 0 } as const

  async function takesTurn(
    second: AcquireOptions,
    when: 'before' | 'while',
  ): Promise<[Lease, string, string[]]> {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name)
    const abort = new AbortController()
    const giving = waiter.acquire(name, { ...first, signal: abort.signal })
    giving.catch(() => {})
    await untilInLine(database, name, 1)
    const places = await tickets(name)
    const next = waiter.acquire(name, second)
    if (when === 'before') {
      abort.abort(new Error('enough'))
      await expect(giving).rejects.toThrow('enough')
      await lease.release()
    } else {
      // The lease has been granted for the first one's place, and the wake-up is on its way.
      const released = lease.release()
      await expect
        .poll(async () => (await bounds(name))['ticket'], { timeout: 10_000, interval: 1 })
        .not.toBeNull()
        .catch(() => {})
      abort.abort(new Error('enough'))
      await Promise.all([
        released,
        giving.then(
          (got) => got.release(),
          () => {},
        ),
      ])
    }
    const taken = await next
    await holder.close()
    return [taken, name, places]
  }

  test('keeps the place of one who gave up, when it wants the same', async () => {
    const [taken, name, places] = await takesTurn(first, 'before')
    expect(await bounds(name)).toMatchObject({ ticket: places[0], max_hold_ms: 3_600_000 })
    expect(taken.isHeld).toBe(true)
    await taken.release()
    await untilLeft(database, name)
  })

  test.each([
    ['another TTL', { ...first, ttl: '20s' }, { ttl_ms: 20_000, max_hold_ms: 3_600_000 }],
    ['another maximum', { ttl: '30s' }, { max_hold_ms: null }],
    ['another minimum', { ...first, minHold: '50ms' }, { min_hold_ms: 50 }],
    ['another grace', { ...first, graceAfterCrash: '70ms' }, { grace_ms: 70 }],
  ] as const)('gets what it asked for and not what the one before did: %s', async (_, second, expected) => {
    for (const when of ['before', 'while'] as const) {
      // oxlint-disable-next-line no-await-in-loop
      const [taken, name, places] = await takesTurn(second, when)
      // oxlint-disable-next-line no-await-in-loop
      const found = await bounds(name)
      expect(found).toMatchObject(expected)
      expect(found['ticket']).not.toBe(places[0])
      // oxlint-disable-next-line no-await-in-loop
      await taken.release()
      // oxlint-disable-next-line no-await-in-loop
      await untilLeft(database, name)
    }
  })

  test('of another sequence is refused, and the one after it is served', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name)
    const abort = new AbortController()
    const giving = waiter.acquire(name, { signal: abort.signal })
    giving.catch(() => {})
    await untilInLine(database, name, 1)
    const wrong = waiter.acquire(name, { sequence: 'other' })
    wrong.catch(() => {})
    const right = waiter.acquire(name)
    abort.abort(new Error('enough'))
    await expect(wrong).rejects.toMatchObject({ code: 'SEQUENCE_MISMATCH' })
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    expect((await right).token).toBe(lease.token + 1n)
  })
})

describe('a wait that is aborted', () => {
  let proxy: TcpProxy
  beforeEach(async () => {
    proxy = await TcpProxy.start(database.url)
  })
  afterEach(() => proxy.stop())

  /** Leaves nothing behind, or has a lease that was given back. */
  async function expectNothingLeft(name: string, waiting: Promise<Lease>): Promise<'granted' | 'aborted'> {
    const outcome = await waiting.then(
      async (lease) => {
        await lease.release()
        return 'granted' as const
      },
      (error: unknown) => {
        expect(error).toMatchObject({ message: 'enough' })
        return 'aborted' as const
      },
    )
    await untilLeft(database, name)
    return outcome
  }

  test('at any answer of the database leaves neither a place nor a lease', async () => {
    const outcomes: string[] = []
    // With a maximum, the wake-up is followed by a question: one more moment.
    for (const options of [{}, { maxHold: '1h' }] as const) {
      for (let moment = 1; moment <= 8; moment += 1) {
        const name = uniqueName()
        const [holder, waiter] = [await database.open(), await database.open({ connectionString: proxy.url })]
        const lease = await holder.acquire(name)
        const abort = new AbortController()
        let answers = 0
        proxy.onReply(() => {
          answers += 1
          if (answers === moment) abort.abort(new Error('enough'))
          return 'pass'
        })
        const waiting = waiter.acquire(name, { ...options, signal: abort.signal })
        waiting.catch(() => {})
        await Promise.race([
          untilInLine(database, name, 1),
          new Promise((resolve) => abort.signal.addEventListener('abort', resolve)),
        ])
        await lease.release()
        outcomes.push(await expectNothingLeft(name, waiting))
        proxy.onReply(undefined)
        await Promise.all([holder.close(), waiter.close()])
      }
    }
    expect(outcomes).toContain('aborted')
  })

  test('at any time around the hand-over leaves neither a place nor a lease', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const outcomes: string[] = []
    for (let turn = 0; turn < 60; turn += 1) {
      const name = uniqueName()
      const lease = await holder.acquire(name)
      const abort = new AbortController()
      const waiting = waiter.acquire(name, { signal: abort.signal })
      waiting.catch(() => {})
      await untilInLine(database, name, 1)
      const released = lease.release()
      for (let step = 0; step < turn % 20; step += 1) await new Promise((resolve) => setImmediate(resolve))
      if (turn >= 20) await sleep((turn - 20) / 8)
      abort.abort(new Error('enough'))
      outcomes.push(await expectNothingLeft(name, waiting))
      await released
    }
    expect(outcomes).toContain('aborted')
  })

  test('while the lease is locked by somebody leaves neither a place nor a lease', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const blocker = await database.session()
    for (const locksFirst of [true, false]) {
      const name = uniqueName()
      const lease = await holder.acquire(name)
      const abort = new AbortController()
      const lock = async (): Promise<void> => {
        await blocker.query('begin')
        await blocker.query('select from fencepost.lease where name = $1 for update', [name])
      }
      if (locksFirst) await lock()
      const waiting = waiter.acquire(name, { signal: abort.signal })
      waiting.catch(() => {})
      if (!locksFirst) {
        await untilInLine(database, name, 1)
        await lock()
      }
      const released = lease.release()
      abort.abort(new Error('enough'))
      await expect(waiting).rejects.toThrow('enough')
      await blocker.query('commit')
      await released
      await untilLeft(database, name)
    }
  })

  test('in front of others hands what it was granted on to the next process', async () => {
    const [holder, waiter, next] = [await database.open(), await database.open(), await database.open()]
    for (let turn = 0; turn < 20; turn += 1) {
      const name = uniqueName()
      const lease = await holder.acquire(name)
      const abort = new AbortController()
      const waiting = waiter.acquire(name, { signal: abort.signal })
      waiting.catch(() => {})
      await untilInLine(database, name, 1)
      const getting = next.acquire(name)
      await untilInLine(database, name, 2)
      const released = lease.release()
      for (let step = 0; step < turn; step += 1) await new Promise((resolve) => setImmediate(resolve))
      abort.abort(new Error('enough'))
      void waiting.then((got) => got.release()).catch(() => {})
      // Its own question would come only after most of 30 s: it is told.
      const startedMs = performance.now()
      expect((await getting).isHeld).toBe(true)
      expect(performance.now() - startedMs).toBeLessThan(15_000)
      await released
      await (await getting).release()
      await untilLeft(database, name)
    }
  })
})

/** Those of earlier tests may end at any time. */
async function listenersFromNowOn(): Promise<() => Promise<number[]>> {
  const before = await listeners(database)
  return async () => (await listeners(database)).filter((pid) => !before.includes(pid))
}

describe('the session that listens', () => {
  test('is there while somebody waits, once for a process, and not before', async () => {
    const name = new URL(database.url).pathname
    const [holder, waiter] = [await database.open(), await database.open()]
    const newListeners = await listenersFromNowOn()
    const leases = await Promise.all(
      Array.from({ length: 30 }, (_, index) => holder.acquire(`${name}/${index}`)),
    )
    expect(await waiter.tryAcquire(`${name}/0`)).toBeNull()
    expect(await newListeners()).toEqual([])
    const waiting = leases.map((lease) => waiter.acquire(lease.name))
    await Promise.all(leases.map((lease) => untilInLine(database, lease.name, 1)))
    await expect.poll(newListeners, { timeout: 10_000 }).toHaveLength(1)
    await Promise.all(leases.map((lease) => lease.release()))
    await Promise.all(waiting)
    expect(await newListeners()).toHaveLength(1)
    await waiter.close()
    await expect.poll(newListeners, { timeout: 10_000 }).toEqual([])
  })

  test('is not there with `listen: false`, and the lease is got by asking', async () => {
    const [holder, waiter] = [await database.open(), await database.open({ listen: false })]
    const newListeners = await listenersFromNowOn()
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: '60s' })
    const waiting = waiter.acquire(name, { ttl: '60s' })
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(await newListeners()).toEqual([])
  })
})
