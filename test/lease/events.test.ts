import { beforeEach, describe, expect, test } from 'vitest'
import type { Connection } from '../../src/database/connection.ts'
import { RequestFailure } from '../../src/database/failure.ts'
import type { HandOverOutcome, Lease, Token } from '../../src/index.ts'
import { HeldLease } from '../../src/lease/held-lease.ts'
import { Holder } from '../../src/lease/holder.ts'
import type { Protocol } from '../../src/lease/protocol.ts'
import { useDatabase } from '../support/database.ts'
import { Log, untilInLine } from '../support/line.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { OwnServer } from '../support/own-server.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
let names = 0
const uniqueName = (): string => `events-${(names += 1)}`
let log: Log
beforeEach(() => {
  log = new Log()
})

function blockFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

const ttlMs = 3000

/** A lease of a holder whose time passes, and whose heartbeats are answered, as the test says. */
async function heldByHand(): Promise<{
  readonly clock: ManualClock
  readonly lease: HeldLease
  readonly answer: (beats: 'alive' | 'silence') => void
}> {
  const clock = new ManualClock()
  let isSilent = false
  const protocol = {
    join: async () => {},
    end: async () => {},
    beat: async () => {
      if (isSilent) throw new RequestFailure('unknown', new Error('silence'))
      return true
    },
  } as unknown as Protocol
  const holder = new Holder({
    identity: { id: 'holder', label: 'test', host: 'test', pid: 1, meta: {} },
    ttlMs,
    protocol,
    clock,
    logger: log,
    beats: { isOpen: true } as Connection,
    isSpare: () => false,
    onBeat: () => {},
    onSettled: () => {},
    giveBack: () => {},
  })
  await holder.join()
  const lease = new HeldLease({
    term: { lease: uniqueName(), token: 1n as Token, holderId: holder.id, sequence: 'default' },
    holder,
    clock,
    logger: log,
    deadlineMs: Number.POSITIVE_INFINITY,
    giveBack: async () => 'released',
    limit: async () => {},
    onOver: () => {},
  })
  return { clock, lease, answer: (beats) => (isSilent = beats === 'silence') }
}

/** Everything that is told of a lease, in order. */
function tellings(lease: Pick<HeldLease, 'on'>): string[] {
  const told: string[] = []
  lease.on('renewed', () => told.push('renewed'))
  lease.on('at-risk', () => told.push('at-risk'))
  lease.on('lost', ({ reason }) => told.push(`lost: ${reason}`))
  lease.on('released', ({ outcome }) => told.push(`released: ${outcome}`))
  return told
}

function once(lease: Lease, name: 'renewed' | 'at-risk' | 'lost' | 'released'): Promise<unknown> {
  return new Promise((resolve) => lease.on(name, resolve))
}

describe('a hand-over', () => {
  test('tells whether the lease went straight to the next in line, was released, or was not held', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name)
    const waiting = waiter.acquire(name)
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    expect(await lease.handOver()).toBe('handed-over')
    expect(await lease.release()).toBe('released')
    const next = await waiting
    expect(await next.handOver()).toBe('released')
    const stolen = await holder.acquire(name, { ttl: '20s' })
    await database.query('select fencepost.end_holder($1)', [stolen.term.holderId])
    await (await SqlHolder.join(database.pool)).take(name)
    expect(await stolen.handOver()).toBe('not-held')
  })

  test('whose answer does not come within the TTL is unknown', async () => {
    const proxy = await TcpProxy.start(database.url)
    try {
      const holder = await database.open({ connectionString: proxy.url, requestTimeout: '2s' })
      const lease = await holder.acquire(uniqueName(), { ttl: '1s' })
      const outcomes: HandOverOutcome[] = []
      lease.on('released', ({ outcome }) => outcomes.push(outcome))
      proxy.drop()
      expect(await lease.handOver()).toBe('unknown')
      expect(outcomes).toEqual(['unknown'])
      expect(lease.state).toBe('released')
    } finally {
      await proxy.stop()
    }
  })

  test('in one process goes to the next caller without a wake-up over the database', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name)
    const waiting = fencepost.acquire(name)
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).token).toBe(lease.token + 1n)
  })
})

describe('a lease that is let expire', () => {
  test('is lost a TTL later here and in the database, while the others of the process go on', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: '1s' })
    const other = await holder.acquire(uniqueName(), { ttl: '1s' })
    const waiting = waiter.acquire(name, { ttl: '60s' })
    await untilInLine(database, name, 1)
    const events: string[] = []
    void waiting.then(() => events.push('granted to another'))
    const lost = once(lease, 'lost').then(() => events.push('lost here'))
    await lease.letExpire()
    expect(lease.isHeld).toBe(true)
    await lease.letExpire()
    await lost
    expect(lease.loss).toMatchObject({ reason: 'expired' })
    const taken = await waiting
    expect(taken.token).toBeGreaterThan(lease.token)
    expect(events).toEqual(['lost here', 'granted to another'])
    expect(other.isHeld).toBe(true)
    expect(await lease.release()).toBe('not-held')
    await lease.letExpire()
  })

  test('can be released before, and goes straight to the next in line', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: '10s' })
    const waiting = waiter.acquire(name)
    await untilInLine(database, name, 1)
    await lease.letExpire()
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).isHeld).toBe(true)
    expect(lease.signal.aborted).toBe(false)
  })

  test('cannot be made to last longer than its maximum hold', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '30s', maxHold: '700ms' })
    await lease.letExpire()
    expect(await once(lease, 'lost')).toMatchObject({ reason: 'overdue' })
  })
})

describe('a lease that is asked to stop', () => {
  test('has its signal aborted with that reason, stays held, and still tells of its loss', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    const lost = once(lease, 'lost')
    lease.askToStop('please')
    expect(lease.signal).toMatchObject({ aborted: true, reason: 'please' })
    expect(lease).toMatchObject({ isHeld: true, state: 'held' })
    lease.askToStop('again')
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    expect(await lost).toMatchObject({ reason: 'ended' })
    expect(lease.signal.reason).toBe('please')
  })
})

describe('events', () => {
  test('come in the order in which things happened', async () => {
    const { clock, lease, answer } = await heldByHand()
    const told = tellings(lease)
    await clock.advance(ttlMs / 3)
    answer('silence')
    await clock.advance(ttlMs / 3)
    answer('alive')
    await clock.advance(ttlMs / 10)
    expect(await lease.release()).toBe('released')
    expect(told).toEqual(['renewed', 'at-risk', 'renewed', 'released: released'])
  })

  test('end with the loss, of which it is told once', async () => {
    const { clock, lease, answer } = await heldByHand()
    const told = tellings(lease)
    answer('silence')
    await clock.advance(2 * ttlMs)
    expect(told).toEqual(['at-risk', 'lost: expired'])
    expect(await lease.release()).toBe('not-held')
    answer('alive')
    await clock.advance(ttlMs)
    expect(told).toEqual(['at-risk', 'lost: expired'])
  })

  test('tell how long the lease is held, after each heartbeat', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '2s' })
    const { expiresInMs } = (await once(lease, 'renewed')) as { expiresInMs: number }
    expect(expiresInMs).toBeGreaterThan(0)
    expect(expiresInMs).toBeLessThanOrEqual(2000)
  })

  test('that a listener sets off come after what it was told, for every listener', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '400ms' })
    const told: string[] = []
    lease.on('renewed', () => {
      told.push('first: renewed')
      // In the middle of telling, it turns out to be lost.
      blockFor(600)
      void lease.release()
      told.push('first: released')
    })
    lease.on('lost', () => told.push('first: lost'))
    lease.on('renewed', () => told.push('second: renewed'))
    await once(lease, 'lost')
    expect(told).toEqual(['first: renewed', 'first: released', 'second: renewed', 'first: lost'])
  })

  test('of its end are told once to who listens late, or in the middle of it', async () => {
    const fencepost = await database.open()
    const [lost, released] = [
      await fencepost.acquire(uniqueName(), { ttl: '400ms' }),
      await fencepost.acquire(uniqueName(), { ttl: '30s' }),
    ]
    const told: string[] = []
    lost.on('renewed', () => {
      blockFor(600)
      void lost.release()
      // It is lost, and nobody has been told yet.
      lost.on('lost', () => told.push('in the middle'))
    })
    lost.on('lost', () => {
      told.push('early')
      lost.on('lost', () => told.push('while it is told'))
    })
    await once(lost, 'lost')
    await new Promise((resolve) => setImmediate(resolve))
    lost.on('lost', ({ reason }) => told.push(`late: ${reason}`))
    expect(told).not.toContain('late: expired')
    await new Promise((resolve) => setImmediate(resolve))
    expect(told.toSorted()).toEqual(['early', 'in the middle', 'late: expired', 'while it is told'])
    lost.on('released', () => told.push('never'))

    await released.release()
    const outcomes: string[] = []
    released.on('released', ({ outcome }) => outcomes.push(outcome))
    released.on('lost', () => outcomes.push('never'))
    released.on('released', () => outcomes.push('not any more'))()
    await new Promise((resolve) => setImmediate(resolve))
    expect(outcomes).toEqual(['released'])
    expect(told).not.toContain('never')
  })

  test('reach everybody although a listener throws or rejects, and each failure is reported', async () => {
    const fencepost = await database.open({ logger: log })
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '400ms' })
    const told: string[] = []
    for (const event of ['renewed', 'released'] as const) {
      lease.on(event, () => {
        throw new Error(`thrown in ${event}`)
      })
      lease.on(event, async () => {
        await Promise.resolve()
        throw new Error(`rejected in ${event}`)
      })
      lease.on(event, () => told.push(event))
    }
    await once(lease, 'renewed')
    expect(lease.isHeld).toBe(true)
    expect(await lease.release()).toBe('released')
    expect(told).toContain('renewed')
    expect(told.at(-1)).toBe('released')
    lease.on('released', () => {
      throw new Error('thrown late')
    })
    lease.on('released', () => {
      // oxlint-disable-next-line no-throw-literal -- Some do, and it cannot even be made a string.
      throw Object.create(null)
    })
    for (const failure of [
      'thrown in renewed',
      'rejected in renewed',
      'thrown in released',
      'rejected in released',
      'thrown late',
      'Object: null prototype',
    ]) {
      // oxlint-disable-next-line no-await-in-loop
      await expect.poll(() => log.errors.filter((error) => error.includes(failure)).length).toBeGreaterThan(0)
    }
    expect(await fencepost.tryAcquire(name)).not.toBeNull()
  })

  test('end for a listener that is taken away', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    let told = 0
    const stop = lease.on('renewed', () => {
      told += 1
      stop()
    })
    await once(lease, 'renewed')
    await once(lease, 'renewed')
    expect(told).toBe(1)
  })
})

test('renewals cost no statement more, be they listened to or not, and none for each lease', async () => {
  await using server = await OwnServer.start()
  const fencepost = await server.open()
  const leases = await Promise.all(
    Array.from({ length: 50 }, (_, index) => fencepost.acquire(`renewed/${index}`, { ttl: '600ms' })),
  )
  let told = 0
  for (const lease of leases) lease.on('renewed', () => (told += 1))
  await once(leases[0]!, 'renewed')
  await server.resetCalls()
  const before = told
  for (let turn = 0; turn < 3; turn += 1) await once(leases[0]!, 'renewed')
  // All that the server was asked: one heartbeat for each time that all of them were told.
  const statements = await server.calls('beat|acquire|release|limit_term|give_back')
  expect(statements).toBeGreaterThanOrEqual(3)
  expect(statements).toBeLessThanOrEqual((told - before) / leases.length + 1)
})
