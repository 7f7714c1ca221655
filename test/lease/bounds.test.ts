import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { type AcquireOptions, InvalidArgumentError } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { Log, expire, takenOverAfterMs, untilExpired, untilInLine } from '../support/line.ts'
import { WaiterProcess } from '../support/waiter-process.ts'

const database = useDatabase()
let names = 0
const uniqueName = (): string => `bounds-${(names += 1)}`
const long = '60s'
const soonMs = 10_000

/** Milliseconds from the grant of the lease's term with this token until the next one's, by the database's clock. */
async function watchGrants(): Promise<(lease: string) => Promise<number[]>> {
  await database.query(`
    create table granted (name text, token bigint, at timestamptz);
    create function note_grant() returns trigger language plpgsql as
      'begin insert into public.granted values (new.name, new.token, new.granted_at); return null; end';
    create trigger note_grant after update on fencepost.lease for each row
      when (new.token <> old.token) execute function note_grant()`)
  return async (lease) => {
    const rows = await database.query<{ ms: number }>(
      'select extract(epoch from at)::float * 1000 as ms from granted where name = $1 order by token',
      [lease],
    )
    return rows.map(({ ms }) => ms)
  }
}
let grantsOf: (lease: string) => Promise<number[]>
const gapMs = async (lease: string): Promise<number> => {
  grantsOf ??= await watchGrants()
  const grants = await grantsOf(lease)
  return grants.at(-1)! - grants.at(-2)!
}

function aborted(signal: AbortSignal): Promise<unknown> {
  const { promise, resolve } = Promise.withResolvers<unknown>()
  if (signal.aborted) resolve(signal.reason)
  signal.addEventListener('abort', () => resolve(signal.reason))
  return promise
}

describe('a minimum hold', () => {
  test('keeps a lease from others although it was released, and the first in line gets it then', async () => {
    grantsOf ??= await watchGrants()
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long, minHold: '700ms' })
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('released')
    expect(await waiter.tryAcquire(name)).toBeNull()
    expect(await holder.tryAcquire(name)).toBeNull()
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(await gapMs(name)).toBeGreaterThanOrEqual(700)
    expect(await gapMs(name)).toBeLessThan(soonMs)
  })

  test('runs short work once, although its starts are skewed, and also when the first one dies', async () => {
    const other = await database.open()
    const job = uniqueName()
    await using first = await WaiterProcess.start(database.url, { ttl: '200ms', label: 'dies' })
    first.send({ do: 'try', id: 1, name: job, options: { minHold: '1500ms' } })
    await first.did(1, 'get')
    const startedMs = performance.now()
    await first.kill()
    await untilExpired(database, 'dies')
    const second = await other.tryAcquire(job, { minHold: '1500ms' })
    // Unless this machine was so busy that the minimum is over.
    if (performance.now() - startedMs < 1000) expect(second).toBeNull()
    await expect.poll(() => other.tryAcquire(job), { timeout: 20_000 }).not.toBeNull()
  })

  test('holds for a term that came by waiting, too', async () => {
    grantsOf ??= await watchGrants()
    const [holder, waiter, last] = [await database.open(), await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long })
    const waiting = waiter.acquire(name, { ttl: long, minHold: '700ms' })
    await untilInLine(database, name, 1)
    const lasting = last.acquire(name, { ttl: long })
    await untilInLine(database, name, 2)
    await lease.release()
    await (await waiting).release()
    await lasting
    expect(await gapMs(name)).toBeGreaterThanOrEqual(700)
    expect(await gapMs(name)).toBeLessThan(soonMs)
  })
})

describe('a maximum hold', () => {
  test.each(['at once', 'by waiting'])('ends a term that is renewed well, granted %s', async (how) => {
    grantsOf ??= await watchGrants()
    const logger = new Log()
    const [holder, waiter] = [await database.open({ logger }), await database.open()]
    const name = uniqueName()
    const before = how === 'by waiting' ? await waiter.acquire(name) : undefined
    const acquiring = holder.acquire(name, { ttl: '500ms', maxHold: '1500ms' })
    if (before !== undefined) {
      await untilInLine(database, name, 1)
      // So that it is a wake-up that brings the grant.
      await logger.untilListening()
      await before.release()
    }
    const lease = await acquiring
    expect(lease.isHeld).toBe(true)
    expect(lease.expiresInMs).toBeLessThanOrEqual(500)
    const events: string[] = []
    const waiting = waiter.acquire(name, { ttl: long }).then((got) => {
      events.push('granted to another')
      return got
    })
    const reason = await aborted(lease.signal)
    events.push('lost here')
    expect(reason).toMatchObject({ code: 'LEASE_LOST', reason: 'overdue', lease: name })
    expect(lease).toMatchObject({ state: 'lost', isHeld: false, expiresInMs: 0 })
    expect((await waiting).token).toBe(lease.token + 1n)
    expect(events).toEqual(['lost here', 'granted to another'])
    // By the database's clock neither before the maximum nor a TTL later.
    expect(await gapMs(name)).toBeGreaterThanOrEqual(1500)
    expect(await gapMs(name)).toBeLessThan(soonMs)
    expect(await lease.release()).toBe('not-held')
  })

  test('counts in what `expiresInMs` says, and costs the other leases of the process nothing', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: long, maxHold: '1s' })
    const other = await fencepost.acquire(uniqueName(), { ttl: long })
    expect(lease.expiresInMs).toBeLessThanOrEqual(1000)
    expect(other.expiresInMs).toBeGreaterThan(30_000)
    await aborted(lease.signal)
    expect(other.isHeld).toBe(true)
    expect(await other.release()).toBe('released')
  })

  test('is noticed in the same step after a blocked event loop, before any timer', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: long, maxHold: '1s' })
    const losses: unknown[] = []
    lease.on('lost', ({ reason }) => losses.push(reason))
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1200)
    expect(lease).toMatchObject({ isHeld: false, state: 'lost', expiresInMs: 0 })
    expect(() => lease.assertHeld()).toThrow(expect.objectContaining({ code: 'LEASE_LOST' }))
    await Promise.resolve()
    await Promise.resolve()
    expect(losses).toEqual(['overdue'])
    expect(lease.signal.reason).toMatchObject({ reason: 'overdue' })
    expect(await lease.release()).toBe('not-held')
    expect((await other.acquire(name, { wait: '20s' })).token).toBeGreaterThan(lease.token)
  })

  test('is refused to a write by the database as well', async () => {
    await database.query('create table noted (text text)')
    const fencepost = await database.open()
    const lease = await fencepost.acquire(uniqueName(), { ttl: long, maxHold: '1s' })
    await aborted(lease.signal)
    await sleep(200)
    const session = await database.session()
    await session.query('begin')
    const { term } = lease
    await expect(
      session.query('select fencepost.fence($1, $2, $3)', [term.lease, term.token.toString(), term.holderId]),
    ).rejects.toMatchObject({ code: /^FP00[12]$/ })
    await session.query('rollback')
  })

  test('that is not reached changes nothing about a release', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long, maxHold: '1h' })
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    expect((await waiting).isHeld).toBe(true)
    expect(lease.signal.aborted).toBe(false)
  })
})

describe('a grace after a crash', () => {
  test('keeps the lease closed after a holder was killed, and the first in line gets it then', async () => {
    const name = uniqueName()
    await using dead = await WaiterProcess.start(database.url, { ttl: long, label: name })
    const waiter = await database.open()
    dead.send({ do: 'acquire', id: 1, name, options: { graceAfterCrash: '1500ms' } })
    await dead.did(1, 'get')
    await dead.kill()
    await expire(database, name)
    const waiting = waiter.acquire(name, { ttl: long })
    await untilInLine(database, name, 1)
    expect(await waiter.tryAcquire(name)).toBeNull()
    await waiting
    const lateMs = await takenOverAfterMs(database, name, name)
    expect(lateMs).toBeGreaterThanOrEqual(1500)
    expect(lateMs).toBeLessThan(1500 + soonMs)
  })

  test('keeps it closed after a term that was held for too long', async () => {
    grantsOf ??= await watchGrants()
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long, maxHold: '500ms', graceAfterCrash: '800ms' })
    const waiting = waiter.acquire(name, { ttl: long })
    await aborted(lease.signal)
    await waiting
    expect(await gapMs(name)).toBeGreaterThanOrEqual(1300)
    expect(await gapMs(name)).toBeLessThan(soonMs)
  })

  test('counts for a lease that is still held when the Fencepost is closed', async () => {
    const [holder, other] = [await database.open(), await database.open()]
    const name = uniqueName()
    await holder.acquire(name, { ttl: long, graceAfterCrash: '1h' })
    await holder.close()
    expect(await other.tryAcquire(name)).toBeNull()
    expect((await other.inspect(name))?.state).toBe('withheld')
  })

  test('does not count after a release', async () => {
    const [holder, waiter] = [await database.open(), await database.open()]
    const name = uniqueName()
    const lease = await holder.acquire(name, { ttl: long, graceAfterCrash: '1h' })
    const waiting = waiter.acquire(name, { ttl: long, graceAfterCrash: '1h' })
    await untilInLine(database, name, 1)
    expect(await lease.handOver()).toBe('handed-over')
    const taken = await waiting
    expect(await taken.release()).toBe('released')
    expect(await holder.tryAcquire(name)).not.toBeNull()
  })
})

describe('a bound that makes no sense', () => {
  test.each([
    ['minHold', -1],
    ['minHold', Number.NaN],
    ['minHold', '2d'],
    ['minHold', '5'],
    ['minHold', null],
    ['maxHold', 0],
    ['maxHold', '0s'],
    ['maxHold', '10ms'],
    ['maxHold', '367d'],
    ['maxHold', Number.POSITIVE_INFINITY],
    ['maxHold', 2 ** 60],
    ['graceAfterCrash', -1],
    ['graceAfterCrash', '25h'],
    ['graceAfterCrash', 1e308],
    ['barge', 'yes'],
    ['barge', 1],
    ['wait', -1],
    ['wait', '400d'],
  ])('is refused before anything is asked: %s of %s', async (option, value) => {
    const fencepost = await database.open()
    const name = uniqueName()
    const options = { [option]: value } as AcquireOptions
    const refusals = [
      fencepost.acquire(name, options),
      fencepost.acquireAll([name], options),
      fencepost.withLease(name, options, async () => {}),
      ...(option === 'wait'
        ? []
        : [fencepost.tryAcquire(name, options), fencepost.acquireMany([name], options)]),
    ]
    await Promise.all(
      refusals.map(async (refused) => {
        await expect(refused).rejects.toBeInstanceOf(InvalidArgumentError)
        await expect(refused).rejects.toMatchObject({
          code: 'INVALID_ARGUMENT',
          argument: option,
          message: expect.stringContaining(option) as string,
        })
      }),
    )
    expect(await database.query('select from fencepost.lease where name = $1', [name])).toEqual([])
    await fencepost.close()
  })

  test('such as a maximum below the minimum is refused, and names the bound', async () => {
    const fencepost = await database.open()
    await expect(fencepost.acquire(uniqueName(), { minHold: '10s', maxHold: '5s' })).rejects.toMatchObject({
      argument: 'maxHold',
      message: expect.stringContaining('10s') as string,
    })
  })

  test('is not one where it is just within', async () => {
    const fencepost = await database.open()
    const bounds = { minHold: '1d', maxHold: '366d', graceAfterCrash: '1d' } as const
    expect((await fencepost.acquire(uniqueName(), bounds)).isHeld).toBe(true)
    expect((await fencepost.acquire(uniqueName(), { minHold: 0, graceAfterCrash: 0 })).isHeld).toBe(true)
  })
})
