import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { Pool, type PoolConfig } from 'pg'
import { afterEach, beforeAll, expect, test } from 'vitest'
import {
  DatabaseError,
  Fencepost,
  type FencepostError,
  HolderExpiredError,
  type Lease,
  NotAcquiredError,
  OutcomeUnknownError,
  StaleTermError,
  fencedTransaction,
} from '../../src/index.ts'
import {
  type TestFencepost,
  type TestFencepostOptions,
  type TestKitError,
  lost,
  openTestFencepost,
} from '../../src/testing/index.ts'
import { useDatabase } from '../support/database.ts'
import { Program } from '../support/program.ts'
import { settled } from '../support/manual-clock.ts'

const database = useDatabase()
const opened: TestFencepost[] = []
const pools: Pool[] = []

beforeAll(async () => {
  await database.query('create table written (lease text not null, note text not null)')
})

afterEach(async () => {
  await Promise.all(pools.splice(0).map((pool) => pool.end()))
  await Promise.all(opened.splice(0).map((kit) => kit.close()))
})

async function openKit(options: TestFencepostOptions = {}): Promise<TestFencepost> {
  const kit = await openTestFencepost({ connectionString: database.url, ...options })
  opened.push(kit)
  return kit
}

function poolThrough(kit: TestFencepost, config: PoolConfig = {}): Pool {
  const pool = new Pool({ connectionString: kit.connectionString, max: 3, ...config })
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  pools.push(pool)
  return pool
}

function newName(): string {
  return `jobs/${randomUUID()}`
}

async function write(lease: Lease, pool: Pool, note: string): Promise<void> {
  await lease.transaction(pool, async (client) => {
    await client.query('insert into written (lease, note) values ($1, $2)', [lease.name, note])
  })
}

async function notesOf(lease: string): Promise<string[]> {
  const rows = await database.query<{ note: string }>('select note from written where lease = $1', [lease])
  return rows.map(({ note }) => note)
}

function codeOf(attempt: Promise<unknown>): Promise<string> {
  return attempt.then(
    () => 'none',
    (error: FencepostError | TestKitError) => error.code,
  )
}

test('without a fault nothing happens: the lease is held, renewed, written under and released', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  const renewed = new Promise((settle) => lease.on('renewed', settle))
  await kit.moveClock('10s')
  await renewed
  await write(lease, pool, 'well')
  expect({ isHeld: lease.isHeld, state: lease.state, aborted: lease.signal.aborted }).toEqual({
    isHeld: true,
    state: 'held',
    aborted: false,
  })
  expect(await notesOf(lease.name)).toEqual(['well'])
  expect(await lease.release()).toBe('released')
})

test('a stolen lease is another holder’s: its writes are refused as stale, and the fence tells it', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  const rival = await kit.steal(lease.name)
  expect(rival.token).toBeGreaterThan(lease.token)
  expect({ isHeld: lease.isHeld, aborted: lease.signal.aborted }).toEqual({ isHeld: true, aborted: false })
  const refusal: unknown = await write(lease, pool, 'stale').catch((error: unknown) => error)
  expect(refusal).toBeInstanceOf(StaleTermError)
  expect(refusal).toMatchObject({ token: lease.token, currentToken: rival.token })
  expect(await notesOf(lease.name)).toEqual([])
  expect(await lost(lease)).toMatchObject({ reason: 'taken' })
  expect(lease.isHeld).toBe(false)
})

test('the holder of a stolen lease is told by its next heartbeat, and of all leases that go with it', async () => {
  const kit = await openKit()
  const [lease, other] = await Promise.all([
    kit.fencepost.acquire(newName()),
    kit.fencepost.acquire(newName()),
  ])
  const apart = await kit.fencepost.acquire(newName(), { ttl: '40s' })
  await kit.steal(lease.name)
  await kit.moveClock('10s')
  expect(await lost(lease)).toMatchObject({ code: 'LEASE_LOST', reason: 'ended' })
  expect(await lost(other)).toMatchObject({ reason: 'ended' })
  expect(lease.signal.reason).toBe(lease.loss)
  expect(apart.isHeld).toBe(true)
  await kit.moveClock('4s')
  expect(apart.isHeld).toBe(true)
})

test('what was stolen can be had again when the rival gives it back', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  const rival = await kit.steal(lease.name)
  await kit.moveClock('10s')
  await lost(lease)
  const again = kit.fencepost.acquire(lease.name)
  await kit.untilWaiting(lease.name)
  await rival.release()
  expect((await again).token).toBeGreaterThan(rival.token)
  await rival.release()
  expect((await again).isHeld).toBe(true)
})

test('a lease with a grace, a minimum hold and a sequence of its own is stolen at once', async () => {
  const kit = await openKit()
  const options = { graceAfterCrash: '1h', minHold: '1h', sequence: `s-${randomUUID()}` } as const
  const lease = await kit.fencepost.acquire(newName(), options)
  const rival = await kit.steal(lease.name)
  expect(rival.token).toBe(lease.token + 1n)
})

test('stealing cuts off the fenced transaction that is open', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  const inside = Promise.withResolvers<void>()
  const stolen = Promise.withResolvers<void>()
  const writing = fencedTransaction(lease, pool, async (client) => {
    await client.query(`insert into written values ($1, 'cut off')`, [lease.name])
    inside.resolve()
    await stolen.promise
    await client.query(`insert into written values ($1, 'and more')`, [lease.name])
  })
  await inside.promise
  await kit.steal(lease.name)
  stolen.resolve()
  expect(await codeOf(writing)).toBe('TRANSACTION_CUT_OFF')
  expect(await notesOf(lease.name)).toEqual([])
})

test('stealing gets in between fenced transactions that overlap all the time', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit, { max: 8 })
  const lease = await kit.fencepost.acquire(newName())
  const began = Promise.withResolvers<void>()
  const writers = Array.from({ length: 4 }, async () => {
    let codes = 'none'
    while (codes === 'none') {
      codes = await codeOf(
        lease.transaction(pool, async (client) => {
          began.resolve()
          await client.query('select pg_sleep(0.05)')
        }),
      )
    }
    return codes
  })
  await began.promise
  const rival = await kit.steal(lease.name)
  expect(rival.token).toBeGreaterThan(lease.token)
  for (const code of await Promise.all(writers)) {
    expect([
      'STALE_TERM',
      'HOLDER_EXPIRED',
      'LEASE_LOST',
      'TRANSACTION_CUT_OFF',
      'DATABASE_UNAVAILABLE',
    ]).toContain(code)
  }
})

test('a lease whose row somebody keeps locked cannot be stolen', async () => {
  const kit = await openKit({ requestTimeout: '600ms' })
  const lease = await kit.fencepost.acquire(newName())
  const session = await database.session()
  await session.query('begin')
  await session.query('select from fencepost.lease where name = $1 for update', [lease.name])
  await expect(kit.steal(lease.name)).rejects.toMatchObject({ code: 'STILL_IN_USE', lease: lease.name })
  await session.query('rollback')
  expect(lease.isHeld).toBe(true)
  expect((await kit.steal(lease.name)).token).toBeGreaterThan(lease.token)
})

test('the rival passes those in line, who get the lease when he gives it back', async () => {
  const kit = await openKit()
  const successor = await database.open()
  const lease = await kit.fencepost.acquire(newName())
  const next = successor.acquire(lease.name)
  await kit.untilWaiting(lease.name)
  const rival = await kit.steal(lease.name)
  expect(await successor.inspect(lease.name)).toMatchObject({ state: 'held', token: rival.token })
  await rival.release()
  expect((await next).token).toBeGreaterThan(rival.token)
})

test('what else a holder had goes to those who wait for it when one of its leases is stolen', async () => {
  const kit = await openKit({ ttl: '10m' })
  const successor = await database.open()
  const [lease, other] = [await kit.fencepost.acquire(newName()), await kit.fencepost.acquire(newName())]
  const next = successor.acquire(other.name)
  await kit.untilWaiting(other.name)
  await kit.steal(lease.name)
  expect((await next).token).toBeGreaterThan(other.token)
})

test('an expired lease with a grace stays closed, and can be stolen', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName(), { graceAfterCrash: '1h' })
  kit.pause()
  await kit.expire(lease.name)
  await expect(kit.hold(lease.name)).rejects.toBeInstanceOf(NotAcquiredError)
  expect((await kit.steal(lease.name)).token).toBeGreaterThan(lease.token)
  kit.resume()
})

test('an expired holder begins no transaction, and is back with its next heartbeat', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  await kit.expire(lease.name)
  expect(lease.isHeld).toBe(true)
  const refusal: unknown = await write(lease, pool, 'expired').catch((error: unknown) => error)
  expect(refusal).toBeInstanceOf(HolderExpiredError)
  const renewed = new Promise((settle) => lease.on('renewed', settle))
  await kit.moveClock('10s')
  await renewed
  await write(lease, pool, 'back')
  expect(await notesOf(lease.name)).toEqual(['back'])
})

test('whoever waits for an expired lease gets it without waiting for a TTL', async () => {
  const kit = await openKit({ ttl: '10m' })
  const successor = await database.open()
  const lease = await kit.fencepost.acquire(newName())
  const next = successor.acquire(lease.name)
  await kit.untilWaiting(lease.name)
  kit.pause()
  await kit.expire(lease.name)
  expect((await next).token).toBeGreaterThan(lease.token)
  kit.resume()
  await kit.moveClock('4m')
  expect(await lost(lease)).toMatchObject({ reason: 'ended' })
})

test('a holder that was paused for longer than its TTL finds its lease lost, and its write refused', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  kit.pause()
  const writing = write(lease, pool, 'late')
  await kit.steal(lease.name)
  kit.resume()
  await expect(writing).rejects.toBeInstanceOf(StaleTermError)
  expect(await notesOf(lease.name)).toEqual([])
})

test('a pause holds requests back and loses none', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  await pool.query('select 1')
  kit.pause()
  const onOld = write(lease, pool, 'old connection')
  const onNew = poolThrough(kit).query(`insert into written values ($1, 'new connection')`, [lease.name])
  // What does not go through the kit gets there and back meanwhile.
  for (let round = 0; round < 20; round += 1) await database.query('select 1')
  expect(await notesOf(lease.name)).toEqual([])
  kit.resume()
  await Promise.all([onOld, onNew])
  expect((await notesOf(lease.name)).toSorted()).toEqual(['new connection', 'old connection'])
  expect(lease.isHeld).toBe(true)
})

test('a heartbeat that does not get through makes the lease at risk, and the end of trust makes it lost', async () => {
  const kit = await openKit({ ttl: '2s' })
  const lease = await kit.fencepost.acquire(newName())
  const risk = new Promise((settle) => lease.on('at-risk', settle))
  kit.pause()
  await kit.moveClock(700)
  await risk
  expect(lease.state).toBe('at-risk')
  await kit.moveClock('2s')
  expect(lease.signal.aborted).toBe(true)
  expect(await lost(lease)).toMatchObject({ reason: 'expired' })
})

test('while the database is away nothing can be acquired, and afterwards it can', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  await kit.cut()
  expect(await codeOf(kit.fencepost.tryAcquire(newName()))).toBe('DATABASE_UNAVAILABLE')
  const risk = new Promise<{ cause: unknown }>((settle) => lease.on('at-risk', settle))
  await kit.moveClock('10s')
  expect((await risk).cause).toBeInstanceOf(Error)
  expect(lease.isHeld).toBe(true)
  kit.resume()
  const renewed = new Promise((settle) => lease.on('renewed', settle))
  await kit.moveClock('5s')
  await renewed
  expect(lease.state).toBe('held')
  expect(await kit.fencepost.tryAcquire(newName())).not.toBeNull()
})

test('a cut takes the fenced transaction with it that is open', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName())
  const writing = fencedTransaction(lease, pool, async (client) => {
    await client.query(`insert into written values ($1, 'cut')`, [lease.name])
    await kit.cut()
    kit.resume()
    await client.query('select 1')
  })
  expect(await codeOf(writing)).toBe('TRANSACTION_CUT_OFF')
  await write(lease, pool, 'again')
  expect(await notesOf(lease.name)).toEqual(['again'])
})

test('with the reply to acquire dropped nobody knows, and the lease is given back', async () => {
  const kit = await openKit()
  const name = newName()
  const drop = kit.dropNextReply('acquire')
  const refusal: unknown = await kit.fencepost.tryAcquire(name).catch((error: unknown) => error)
  await drop.dropped
  expect(refusal).toBeInstanceOf(DatabaseError)
  expect(refusal).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  const [{ token } = {}] = await database.query<{ token: string }>(
    'select token from fencepost.leases where name = $1',
    [name],
  )
  // The database had granted it.
  expect(Number(token)).toBeGreaterThan(0)
  const lease = await kit.fencepost.acquire(name)
  expect(lease.token).toBeGreaterThan(BigInt(token!))
})

test('with the reply to a heartbeat dropped the lease is at risk, and the next one renews it', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  const risk = new Promise((settle) => lease.on('at-risk', settle))
  const drop = kit.dropNextReply('beat')
  await kit.moveClock('10s')
  await drop.dropped
  await risk
  expect({ state: lease.state, isHeld: lease.isHeld }).toEqual({ state: 'at-risk', isHeld: true })
  const renewed = new Promise((settle) => lease.on('renewed', settle))
  await kit.moveClock('3s')
  await renewed
  expect(lease.state).toBe('held')
})

test('with the reply to release dropped the lease is released all the same', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  const drop = kit.dropNextReply('release')
  expect(await lease.release()).toBe('released')
  await drop.dropped
  expect((await kit.fencepost.inspect(lease.name))?.state).toBe('free')
})

test.each(['pg', 'parsed'])(
  'with the reply to COMMIT dropped the outcome is unknown, and it is written (%s)',
  async (way) => {
    const kit = await openKit()
    const pool = poolThrough(kit)
    const lease = await kit.fencepost.acquire(newName())
    const drop = kit.dropNextReply('commit')
    if (way === 'pg') {
      await expect(write(lease, pool, 'unknown')).rejects.toBeInstanceOf(OutcomeUnknownError)
    } else {
      const client = await pool.connect()
      await client.query('begin')
      await client.query(lease.fenceSql())
      await client.query(`insert into written values ('${lease.name}', 'unknown')`)
      await expect(client.query({ text: 'commit', name: 'done' })).rejects.toThrow(/ECONNRESET|terminated/)
      client.release(true)
    }
    await drop.dropped
    expect(await notesOf(lease.name)).toEqual(['unknown'])
    expect(lease.isHeld).toBe(true)
    await write(lease, pool, 'known')
    expect(await notesOf(lease.name)).toEqual(['unknown', 'known'])
  },
)

test('the reply to any statement can be dropped; a drop that was cancelled drops nothing', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit, { max: 1 })
  const name = newName()
  const insert = (note: string): Promise<unknown> =>
    pool.query('insert into written (lease, note) values ($1, $2)', [name, note])
  const cancelled = kit.dropNextReply(/insert into written/g)
  cancelled.cancel()
  await insert('first')
  const drop = kit.dropNextReply(/insert into written/g)
  await pool.query('select 1')
  await expect(insert('second')).rejects.toThrow(/ECONNRESET|terminated/)
  await drop.dropped
  await insert('third')
  expect(await notesOf(name)).toEqual(['first', 'second', 'third'])
})

test('two drops take two replies', async () => {
  const kit = await openKit()
  const drops = [kit.dropNextReply('acquire'), kit.dropNextReply('acquire')]
  expect(await codeOf(kit.fencepost.tryAcquire(newName()))).toBe('OUTCOME_UNKNOWN')
  expect(await codeOf(kit.fencepost.tryAcquire(newName()))).toBe('OUTCOME_UNKNOWN')
  await Promise.all(drops.map(({ dropped }) => dropped))
  expect(await kit.fencepost.tryAcquire(newName())).not.toBeNull()
})

test('a clock that jumps over the TTL loses the lease at once; one that jumps less does not', async () => {
  const kit = await openKit()
  const pool = poolThrough(kit)
  const lease = await kit.fencepost.acquire(newName(), { ttl: '30s' })
  await kit.moveClock('28s')
  expect(lease.isHeld).toBe(true)
  await new Promise((settle) => lease.on('renewed', settle))
  const { signal } = lease
  await kit.moveClock('31s')
  expect({ isHeld: lease.isHeld, aborted: signal.aborted }).toEqual({ isHeld: false, aborted: true })
  expect(signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired' })
  expect(await codeOf(write(lease, pool, 'lost'))).toBe('LEASE_LOST')
  expect(await notesOf(lease.name)).toEqual([])
})

test('a moved clock ends a maximum hold, and lets an election rest', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName(), { maxHold: '5s' })
  await kit.moveClock('5s')
  expect(await lost(lease)).toMatchObject({ reason: 'overdue' })

  const leases: Lease[] = []
  const [first, second] = [Promise.withResolvers<Lease>(), Promise.withResolvers<Lease>()]
  const election = kit.fencepost.elect(newName(), { retryDelay: '10m' }, (term) => {
    leases.push(term)
    ;(leases.length === 1 ? first : second).resolve(term)
  })
  const term = await first.promise
  await new Promise((settle) => term.on('released', settle))
  await settled()
  // It rests for 10 to 15 minutes.
  await kit.moveClock('9m')
  expect(leases).toHaveLength(1)
  await kit.moveClock('6m')
  expect((await second.promise).token).toBeGreaterThan(term.token)
  await election.stop()
})

test('a lease that somebody else holds is not granted, until he gives it back', async () => {
  const kit = await openKit()
  const name = newName()
  const rival = await kit.hold(name)
  expect(await kit.fencepost.tryAcquire(name)).toBeNull()
  const refusal: unknown = await kit.fencepost.acquire(name, { wait: 0 }).catch((error: unknown) => error)
  expect(refusal).toBeInstanceOf(NotAcquiredError)
  expect(refusal).toMatchObject({ contender: { label: 'a rival (fencepost/testing)' } })
  await rival.release()
  expect((await kit.fencepost.acquire(name, { wait: 0 })).token).toBeGreaterThan(rival.token)
})

test('the rival takes nothing that somebody holds', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  await expect(kit.hold(lease.name)).rejects.toBeInstanceOf(NotAcquiredError)
  const own = await kit.fencepost.acquire(newName(), { sequence: 'of its own' })
  await own.release()
  expect(await codeOf(kit.hold(own.name))).toBe('SEQUENCE_MISMATCH')
  expect((await kit.hold(own.name, { sequence: 'of its own' })).token).toBe(own.token + 1n)
})

test('no fault meets the rival', async () => {
  const kit = await openKit()
  const held = await kit.hold(newName())
  await kit.cut()
  await kit.moveClock('1d')
  const other = await database.open()
  expect(await other.tryAcquire(held.name)).toBeNull()
  kit.resume()
})

test('an application that opens its own Fencepost through the kit is under test as well', async () => {
  const kit = await openKit()
  await using own = await Fencepost.open({ connectionString: kit.connectionString, ttl: '2s' })
  const lease = await own.acquire(newName())
  const rival = await kit.steal(lease.name)
  expect(rival.token).toBeGreaterThan(lease.token)
  expect(await lost(lease)).toMatchObject({ reason: 'ended' })
})

test('and so is one in a process of its own', async () => {
  const kit = await openKit()
  const name = newName()
  const child = new Program(
    [process.execPath, fileURLToPath(new URL('children/holder.ts', import.meta.url)), name],
    {
      env: { PATH: process.env['PATH'], DATABASE_URL: kit.connectionString },
    },
  )
  await child.says('held')
  await kit.steal(name)
  expect(await child.closed).toMatchObject({ code: 0, stdout: 'held\nlost: ended\n' })
})

test('leases of others are left alone', async () => {
  const kit = await openKit()
  const neighbour = await openKit()
  const outsider = await database.open()
  const leases = [await outsider.acquire(newName()), await neighbour.fencepost.acquire(newName())]
  for (const lease of leases) {
    const refusals = [codeOf(kit.steal(lease.name)), codeOf(kit.expire(lease.name))]
    expect(await Promise.all(refusals)).toEqual(['FOREIGN_HOLDER', 'FOREIGN_HOLDER'])
  }
  await kit.cut()
  await kit.moveClock('1h')
  for (const lease of leases) {
    await expect(
      lease.transaction(database.pool, (client) => client.query('select 1')),
    ).resolves.toBeDefined()
    expect(lease.isHeld).toBe(true)
  }
})

test('misuse is told by a code', async () => {
  const kit = await openKit()
  const lease = await kit.fencepost.acquire(newName())
  await lease.release()
  const codes = async (work: (kit: TestFencepost) => Promise<unknown>): Promise<string> => codeOf(work(kit))
  expect(await codes((the) => the.steal(newName()))).toBe('UNKNOWN_LEASE')
  expect(await codes((the) => the.expire(newName()))).toBe('UNKNOWN_LEASE')
  expect(await codes((the) => the.steal(lease.name))).toBe('NOT_HELD')
  expect(await codes((the) => the.expire(lease.name))).toBe('NOT_HELD')
  expect(await codes((the) => the.untilWaiting(lease.name, { within: 10 }))).toBe('NOBODY_WAITS')
  expect(await codes((the) => the.steal(''))).toBe('INVALID_ARGUMENT')
  expect(await codes((the) => the.moveClock(0))).toBe('INVALID_ARGUMENT')
  expect(await codes((the) => the.moveClock('30' as '30s'))).toBe('INVALID_ARGUMENT')
  expect(await codes(async (the) => the.dropNextReply('rollback' as 'commit'))).toBe('NO_SUCH_REPLY')
  const waiting = codeOf(kit.untilWaiting(lease.name, { within: '1h' }))
  const drop = kit.dropNextReply('commit')
  await kit.close()
  expect(await waiting).toBe('KIT_CLOSED')
  expect(await codeOf(drop.dropped)).toBe('KIT_CLOSED')
  const afterwards: ((the: TestFencepost) => unknown)[] = [
    (the) => the.steal(lease.name),
    (the) => the.expire(lease.name),
    (the) => the.hold(lease.name),
    (the) => the.moveClock('1s'),
    (the) => the.untilWaiting(lease.name),
    (the) => the.pause(),
    (the) => the.cut(),
    (the) => the.resume(),
    (the) => the.dropNextReply('commit'),
  ]
  for (const work of afterwards) expect(await codes(async (the) => work(the))).toBe('KIT_CLOSED')
})

test('it does not open in production', async () => {
  const before = process.env['NODE_ENV']
  process.env['NODE_ENV'] = 'production'
  try {
    expect(await codeOf(openTestFencepost({ connectionString: 'postgres://127.0.0.1:1/none' }))).toBe(
      'IN_PRODUCTION',
    )
  } finally {
    process.env['NODE_ENV'] = before
  }
})

test('a database that cannot be used is told as by Fencepost.open', async () => {
  expect(await codeOf(openTestFencepost({ connectionString: 'postgres://127.0.0.1:1/none' }))).toBe(
    'DATABASE_UNAVAILABLE',
  )
  expect(await codeOf(openTestFencepost({ connectionString: 'mysql://' }))).toBe('INVALID_ARGUMENT')
  expect(await codeOf(openTestFencepost({ connectionString: database.url, ttl: 1 }))).toBe('INVALID_ARGUMENT')
})

test('closing leaves nothing behind: no lease that is held or withheld, no session, no place in line', async () => {
  const kit = await openKit()
  const name = newName()
  await kit.fencepost.acquire(name, { graceAfterCrash: '1h', minHold: '1h' })
  const stolen = await kit.fencepost.acquire(newName())
  await kit.steal(stolen.name)
  const held = await kit.hold(newName())
  kit.pause()
  const rest = codeOf(kit.fencepost.acquire(held.name))
  await kit.close()
  expect(['CLOSED', 'DATABASE_UNAVAILABLE']).toContain(await rest)
  const names = [name, stolen.name, held.name]
  const states = await database.query('select name, state from fencepost.leases where name = any ($1)', [
    names,
  ])
  expect(states.map(({ state }) => state)).toEqual(['free', 'free', 'free'])
  await kit.close()
  expect(
    await database.query(
      `select application_name from pg_stat_activity where datname = current_database() and application_name like 'fencepost testing%'`,
    ),
  ).toEqual([])
})
