import { inspect } from 'node:util'
import { describe, expect, test } from 'vitest'
import { FencepostError, InvalidArgumentError, LeaseLostError, NotAcquiredError } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()

let names = 0
function uniqueName(): string {
  names += 1
  return `lease-${names}`
}

describe('acquire', () => {
  test('grants a lease with a token, held and trusted, and release gives it back', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '5s' })
    expect(lease).toMatchObject({ name, state: 'held', isHeld: true })
    expect(typeof lease.token).toBe('bigint')
    expect(lease.expiresInMs).toBeGreaterThan(4000)
    expect(lease.expiresInMs).toBeLessThan(5000)
    expect(lease.signal.aborted).toBe(false)
    expect(await lease.release()).toBe('released')
    expect(lease).toMatchObject({ state: 'released', isHeld: false, expiresInMs: 0 })
    expect(lease.signal.aborted).toBe(false)
    expect(await lease.release()).toBe('released')
    expect(() => lease.assertHeld()).toThrow(expect.objectContaining({ code: 'LEASE_RELEASED' }))
    const next = await fencepost.acquire(name)
    expect(next.token).toBeGreaterThan(lease.token)
  })

  test('with `await using` gives the lease back at the end of the block', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    {
      await using lease = await fencepost.acquire(name)
      expect(lease.isHeld).toBe(true)
    }
    const other = await database.open()
    await using lease = await other.acquire(name, { wait: 0 })
    expect(lease.isHeld).toBe(true)
  })

  test('keeps a lease alive far beyond its TTL, and loses it neither early nor late', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: '300ms' })
    const beats = async (): Promise<Date> => {
      const [row] = await database.query<{ expires_at: Date }>(
        'select expires_at from fencepost.holder where id = $1',
        [lease.term.holderId],
      )
      return row!.expires_at
    }
    const first = await beats()
    await expect.poll(beats, { timeout: 10_000 }).not.toEqual(first)
    await expect
      .poll(async () => (await beats()).getTime() - first.getTime(), { timeout: 10_000 })
      .toBeGreaterThan(600)
    expect(lease.isHeld).toBe(true)
  })

  test('of a thousand leases renews them all with one row', async () => {
    const fencepost = await database.open()
    const prefix = uniqueName()
    const leases = await Promise.all(
      Array.from({ length: 1000 }, (_, index) => fencepost.acquire(`${prefix}/${index}`)),
    )
    expect(new Set(leases.map((lease) => lease.term.holderId)).size).toBe(1)
    expect(new Set(leases.map((lease) => lease.token)).size).toBe(1000)
    expect(await Promise.all(leases.map((lease) => lease.release()))).toEqual(leases.map(() => 'released'))
  })

  test('waits for another process to let go', async () => {
    const [mine, theirs] = [await database.open(), await database.open()]
    const name = uniqueName()
    const held = await theirs.acquire(name)
    const waiting = mine.acquire(name, { ttl: '2s' })
    await held.release()
    expect((await waiting).token).toBeGreaterThan(held.token)
  })

  test('takes over from a holder that stopped beating, when its TTL is over', async () => {
    const dead = await SqlHolder.join(database.pool, 400)
    const name = uniqueName()
    const token = await dead.take(name)
    const fencepost = await database.open()
    const lease = await fencepost.acquire(name, { wait: '10s' })
    expect(lease.token).toBeGreaterThan(token)
    expect(await dead.beat()).toBe(false)
  })

  test('of one process queues in the order of asking', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const order: number[] = []
    const first = await fencepost.acquire(name)
    const others = [1, 2, 3, 4, 5].map(async (number) => {
      await using lease = await fencepost.acquire(name)
      order.push(number)
      expect(lease.isHeld).toBe(true)
    })
    await first.release()
    await Promise.all(others)
    expect(order).toEqual([1, 2, 3, 4, 5])
  })

  test('ends at its limit with who holds the lease', async () => {
    const [mine, theirs] = [await database.open(), await database.open({ label: 'their worker' })]
    const name = uniqueName()
    await theirs.acquire(name)
    for (const wait of [0, '50ms'] as const) {
      const refused = mine.acquire(name, { wait })
      await expect(refused).rejects.toThrow(NotAcquiredError)
      await expect(refused).rejects.toMatchObject({
        code: 'NOT_ACQUIRED',
        lease: name,
        contender: { label: 'their worker', pid: process.pid },
      })
    }
  })

  test('of a free lease is granted however short the limit is', async () => {
    const fencepost = await database.open()
    for (let turn = 0; turn < 20; turn += 1) {
      const lease = await fencepost.acquire(uniqueName(), { wait: 1 })
      expect(lease.isHeld).toBe(true)
    }
  })

  test('stops with the signal’s reason, and leaves nothing behind', async () => {
    const [mine, theirs] = [await database.open(), await database.open()]
    const name = uniqueName()
    const held = await theirs.acquire(name)
    const abort = new AbortController()
    const waiting = mine.acquire(name, { signal: abort.signal })
    waiting.catch(() => {})
    abort.abort(new Error('changed my mind'))
    await expect(waiting).rejects.toThrow('changed my mind')
    await expect(mine.acquire(name, { signal: abort.signal })).rejects.toThrow('changed my mind')
    await held.release()
    expect((await theirs.acquire(name, { wait: '10s' })).isHeld).toBe(true)
  })

  test('that is aborted while the request is on the wire gives back what it was granted', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    await fencepost.acquire(`${name}/warm`)
    const abort = new AbortController()
    const waiting = fencepost.acquire(name, { signal: abort.signal })
    waiting.catch(() => {})
    await Promise.resolve()
    abort.abort(new Error('too late'))
    await expect(waiting).rejects.toThrow('too late')
    await using lease = await fencepost.acquire(name, { wait: '5s' })
    expect(lease.isHeld).toBe(true)
  })

  test('in another sequence than the lease’s own is refused with its name', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { sequence: 'payouts' })
    await lease.release()
    await expect(fencepost.acquire(name)).rejects.toMatchObject({
      code: 'SEQUENCE_MISMATCH',
      expected: 'default',
      actual: 'payouts',
    })
    expect((await fencepost.acquire(name, { sequence: 'payouts' })).token).toBeGreaterThan(lease.token)
  })
})

describe('tryAcquire', () => {
  test('is null when another process or this one holds the lease', async () => {
    const [mine, theirs] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await theirs.acquire(name)
    expect(await mine.tryAcquire(name)).toBeNull()
    expect(await theirs.tryAcquire(name)).toBeNull()
    await lease.release()
    expect(await mine.tryAcquire(name)).toMatchObject({ isHeld: true })
  })

  test('of 50 processes at once on a new name is granted to one', async () => {
    const all = await Promise.all(Array.from({ length: 20 }, () => database.open()))
    for (let round = 0; round < 5; round += 1) {
      const name = uniqueName()
      const leases = await Promise.all(all.map((fencepost) => fencepost.tryAcquire(name)))
      expect(leases.filter((lease) => lease !== null)).toHaveLength(1)
    }
    await Promise.all(all.map((fencepost) => fencepost.close()))
  })
})

describe('withLease', () => {
  test('gives the lease back when the work has settled, and returns its result', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    expect(await fencepost.withLease(name, { ttl: '2s' }, async (lease) => lease.isHeld)).toBe(true)
    await expect(
      fencepost.withLease(name, {}, () => Promise.reject(new Error('the work failed'))),
    ).rejects.toThrow('the work failed')
    expect(await fencepost.tryAcquire(name)).not.toBeNull()
  })

  test('rejects when the lease was lost although the work settled well', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const working = fencepost.withLease(name, { ttl: '300ms' }, async (lease) => {
      await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
      await new Promise((resolve) => lease.signal.addEventListener('abort', resolve))
      return 'done'
    })
    // Which of them depends on when the heartbeat that finds out is answered.
    const reason = expect.stringMatching(/^(ended|expired)$/) as string
    await expect(working).rejects.toMatchObject({ code: 'LEASE_LOST', lease: name, reason })
  })
})

test('withLease rejects when the lease was taken over, although no heartbeat has met it yet', async () => {
  const fencepost = await database.open()
  const name = uniqueName()
  const working = fencepost.withLease(name, { ttl: '30s' }, async (lease) => {
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    await (await SqlHolder.join(database.pool)).take(name)
    return lease.state
  })
  await expect(working).rejects.toMatchObject({ code: 'LEASE_LOST', lease: name, reason: 'ended' })
})

describe('a lost lease', () => {
  test('aborts the signal with its reason, tells its listeners, and a throwing one hurts no other', async () => {
    const errors: string[] = []
    const logger = { debug() {}, info() {}, warn() {}, error: (message: string) => errors.push(message) }
    const fencepost = await database.open({ logger })
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '300ms' })
    const heard: unknown[] = []
    lease.on('lost', () => {
      throw new Error('a listener of mine')
    })
    lease.on('lost', () => Promise.reject(new Error('an async listener of mine')))
    lease.on('lost', (error) => heard.push(error))
    lease.on('lost', () => heard.push('removed'))()
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    await new Promise((resolve) => lease.signal.addEventListener('abort', resolve))
    expect(lease.signal.reason).toBeInstanceOf(LeaseLostError)
    expect(heard).toEqual([lease.signal.reason])
    await expect.poll(() => errors.length).toBe(2)
    expect(lease).toMatchObject({ state: 'lost', isHeld: false, expiresInMs: 0 })
    expect(await lease.release()).toBe('not-held')
    // The next lease joins anew.
    const again = await fencepost.acquire(name, { ttl: '300ms' })
    expect(again.term.holderId).not.toBe(lease.term.holderId)
    expect(again.token).toBeGreaterThan(lease.token)
  })

  test('is lost for every lease of its holder, and of no other', async () => {
    const fencepost = await database.open()
    const [a, b] = [
      await fencepost.acquire(uniqueName(), { ttl: '300ms' }),
      await fencepost.acquire(uniqueName(), { ttl: '300ms' }),
    ]
    const other = await fencepost.acquire(uniqueName(), { ttl: '10s' })
    await database.query('select fencepost.end_holder($1)', [a.term.holderId])
    await Promise.all(
      [a, b].map((lease) => new Promise((resolve) => lease.signal.addEventListener('abort', resolve))),
    )
    expect(other.isHeld).toBe(true)
  })

  test('may be stolen in the database: the next heartbeat notices, and the old handle frees nothing', async () => {
    const fencepost = await database.open()
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '300ms' })
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    const thief = await SqlHolder.join(database.pool)
    const token = await thief.take(name)
    await new Promise((resolve) => lease.signal.addEventListener('abort', resolve))
    for (let turn = 0; turn < 10; turn += 1) expect(await lease.release()).toBe('not-held')
    expect(await thief.release(name, token)).toBe('released')
  })
})

test('a grant whose answer comes after the trust has ended is not handed out as held', async () => {
  const fencepost = await database.open()
  const warm = await fencepost.acquire(uniqueName(), { ttl: '200ms' })
  const acquiring = fencepost.acquire(uniqueName(), { ttl: '200ms', wait: '20s' })
  // The request leaves, and its answer waits behind the blocked loop.
  await new Promise((resolve) => setImmediate(resolve))
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400)
  const lease = await acquiring
  expect(lease.isHeld).toBe(true)
  expect(lease.term.holderId).not.toBe(warm.term.holderId)
  expect(warm.state).toBe('lost')
})

test('a lease lost by a blocked event loop and released in the same tick is lost, and says so', async () => {
  const fencepost = await database.open()
  const lease = await fencepost.acquire(uniqueName(), { ttl: '200ms' })
  const losses: unknown[] = []
  lease.on('lost', (error) => losses.push(error))
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400)
  expect(await lease.release()).toBe('not-held')
  expect(lease.signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired' })
  await expect.poll(() => losses).toEqual([lease.signal.reason])
})

test('a TTL that is no longer used keeps neither a holder nor a connection', async () => {
  const fencepost = await database.open({ label: 'many ttls' })
  for (let turn = 0; turn < 20; turn += 1) {
    const lease = await fencepost.acquire(uniqueName(), { ttl: 300 + turn })
    await lease.release()
  }
  const kept = await fencepost.acquire(uniqueName(), { ttl: '2s' })
  const living = () =>
    database.query(`select from fencepost.holder where label = 'many ttls' and ended_at is null`)
  await expect.poll(async () => (await living()).length, { timeout: 10_000 }).toBe(1)
  expect(kept.isHeld).toBe(true)
  expect((await fencepost.acquire(uniqueName(), { ttl: 305 })).isHeld).toBe(true)
})

describe('close', () => {
  test('frees every lease at once, loses those still held, and refuses those who wait and what comes after', async () => {
    const fencepost = await database.open()
    const other = await database.open()
    const [name, theirs] = [uniqueName(), uniqueName()]
    const lease = await fencepost.acquire(name)
    await other.acquire(theirs)
    const waiting = fencepost.acquire(theirs)
    waiting.catch(() => {})
    await fencepost.close()
    await fencepost.close()
    expect(lease.state).toBe('lost')
    expect(lease.signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'closed' })
    await expect(waiting).rejects.toMatchObject({ code: 'CLOSED' })
    expect(await other.tryAcquire(name)).not.toBeNull()
    for (const late of [
      () => fencepost.acquire(name),
      () => fencepost.tryAcquire(name),
      () => fencepost.leases(),
      () => fencepost.purge({ olderThan: '1d' }),
    ]) {
      await expect(late()).rejects.toMatchObject({ code: 'CLOSED' })
    }
  })

  test('during acquires in flight leaves nobody hanging', async () => {
    const fencepost = await database.open()
    const asking = Array.from({ length: 50 }, () => fencepost.acquire(uniqueName()))
    const outcomes = Promise.allSettled(asking)
    await fencepost.close()
    for (const outcome of await outcomes) {
      if (outcome.status === 'fulfilled') expect(outcome.value.state).toBe('lost')
      else expect(outcome.reason).toMatchObject({ code: 'CLOSED' })
    }
    expect(
      await database.query(`select from fencepost.leases where state = 'held' and holder = 'x'`),
    ).toEqual([])
  })

  test('of a Fencepost in an `await using` block happens at its end', async () => {
    const name = uniqueName()
    {
      await using fencepost = await database.open()
      await fencepost.acquire(name)
    }
    const other = await database.open()
    expect(await other.tryAcquire(name)).not.toBeNull()
  })
})

describe('bad input', () => {
  test.each([
    ['ttl', { ttl: 0 }],
    ['ttl', { ttl: -1 }],
    ['ttl', { ttl: Number.NaN }],
    ['ttl', { ttl: '99ms' }],
    ['ttl', { ttl: '2d' }],
    ['ttl', { ttl: '5' as '5s' }],
    ['ttl', { ttl: null as unknown as number }],
    ['wait', { wait: -1 }],
    ['wait', { wait: Number.POSITIVE_INFINITY }],
    ['sequence', { sequence: '' }],
  ] as const)('%s in %o is refused before any SQL', async (argument, options) => {
    const fencepost = await database.open()
    const before = await database.query('select count(*) from fencepost.holder')
    await expect(fencepost.acquire(uniqueName(), options)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument,
    })
    expect(await database.query('select count(*) from fencepost.holder')).toEqual(before)
  })

  test.each(['', 'x'.repeat(513), 'a\nb', '\ud800'])('the name %j is refused, not busy', async (name) => {
    const fencepost = await database.open()
    await expect(fencepost.tryAcquire(name)).rejects.toThrow(InvalidArgumentError)
  })

  test.each([
    [{ ttl: '0s' }, 'ttl'],
    [{ minTtl: '10ms' }, 'minTtl'],
    [{ requestTimeout: 0 }, 'requestTimeout'],
    [{ label: '' }, 'label'],
    [{ meta: 7 as unknown as Record<string, unknown> }, 'meta'],
    [{ meta: { big: 1n } }, 'meta'],
    [{ connectionString: 'localhost/app' }, 'connectionString'],
    [{ connectionString: 'postgres://user:secret@[bad/app' }, 'connectionString'],
  ] as const)('open refuses %o', async (options, argument) => {
    await expect(database.open(options)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', argument })
  })

  test('a TTL below one second needs minTtl', async () => {
    const fencepost = await database.open({ minTtl: undefined })
    await expect(fencepost.acquire(uniqueName(), { ttl: '999ms' })).rejects.toThrow(
      /ttl must be between 1s and 1d/,
    )
  })
})

describe('the database clock', () => {
  test.each([300_000, -300_000])('alone decides, although this process is %i ms off', async (offset) => {
    const now = Date.now
    Date.now = () => now() + offset
    try {
      const fencepost = await database.open()
      const name = uniqueName()
      const lease = await fencepost.acquire(name, { ttl: '10s' })
      const sql = `select extract(epoch from remaining)::float as left from fencepost.leases where name = $1`
      const [row] = await database.query<{ left: number }>(sql, [name])
      expect(row!.left).toBeGreaterThan(9)
      expect(row!.left).toBeLessThanOrEqual(10)
      expect(lease.isHeld).toBe(true)
      await lease.release()
    } finally {
      Date.now = now
    }
  })
})

test('leases lists what the view shows, with exact tokens', async () => {
  const fencepost = await database.open({ label: 'lister' })
  const name = uniqueName()
  await database.query(`select fencepost.raise_token_floor('exact', 9007199254740993)`)
  const lease = await fencepost.acquire(name, { sequence: 'exact' })
  expect(lease.token).toBe(9007199254740994n)
  expect((await fencepost.leases()).find((info) => info.name === name)).toMatchObject({
    token: 9007199254740994n,
    state: 'held',
    holder: 'lister',
    pid: process.pid,
    sequence: 'exact',
  })
})

test('a lease shows itself without its secret', async () => {
  const fencepost = await database.open()
  const lease = await fencepost.acquire(uniqueName())
  expect(inspect(lease)).toBe(`Lease { name: "${lease.name}", token: ${lease.token}n, state: 'held' }`)
  expect(inspect({ nested: lease }, { depth: 10, showHidden: true })).not.toContain(lease.term.holderId)
})

test('withLease takes its work alone, and nothing that is no function', async () => {
  const fencepost = await database.open()
  expect(await fencepost.withLease(uniqueName(), async (lease) => lease.isHeld)).toBe(true)
  const wrong = fencepost.withLease(uniqueName(), {}, undefined as unknown as () => Promise<void>)
  await expect(wrong).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'work' })
})

test('the errors have one base class', () => {
  expect(new NotAcquiredError('x', 1, undefined)).toBeInstanceOf(FencepostError)
})
