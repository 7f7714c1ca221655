import { fc, test as property } from '@fast-check/vitest'
import { describe, expect, test } from 'vitest'
import { FencepostError, InvalidArgumentError, LeaseLostError, StaleTermError } from '../../src/errors.ts'
import { Line } from '../../src/lease/line.ts'
import { Election, type StopOutcome } from '../../src/roles/election.ts'
import type { Leader } from '../../src/roles/leader-watch.ts'
import { isBrief, lookEveryMs, restMs } from '../../src/roles/rest.ts'
import { settled } from '../support/manual-clock.ts'
import { Candidate } from './candidate.ts'
import { FakeDatabase, type FakeLease, ttlMs } from './fake-electorate.ts'

const stopTimeoutMs = 30_000
const retryMs = 1000

async function elected(
  options: ConstructorParameters<typeof Candidate>[1] = {},
): Promise<{ database: FakeDatabase; a: Candidate }> {
  const database = new FakeDatabase()
  const a = new Candidate(database, options)
  await settled()
  return { database, a }
}

/** The promise's value, if it has one by now. */
async function now<T>(promise: Promise<T>): Promise<T | 'pending'> {
  const later = new Promise<'pending'>((resolve) => setImmediate(() => resolve('pending')))
  return Promise.race([promise, later])
}

describe('an elected process', () => {
  test('leads under the lease, for as long as lead runs, however long that is', async () => {
    const { database, a } = await elected()
    expect(a.events).toEqual(['elected 1'])
    expect(a.leads).toHaveLength(1)
    expect(a.last.lease).toBe(database.holder)
    expect(a.election.lease).toBe(a.last.lease)
    expect(a.election.isLeader).toBe(true)
    await database.clock.advance(100 * ttlMs)
    expect(a.events).toEqual(['elected 1'])
    expect(a.leads).toHaveLength(1)
    expect(database.clock.timers).toBe(0)
  })

  test('whose lead returns gives the lease up, rests, and stands again', async () => {
    const { database, a } = await elected()
    a.last.returns()
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 returned'])
    expect(a.errors).toEqual([undefined])
    expect(database.terms[0]!.state).toBe('released')
    expect(a.election.lease).toBeUndefined()
    expect(a.election.isLeader).toBe(false)
    await database.clock.advance(retryMs - 1)
    expect(database.asked).toBe(1)
    await database.clock.advance(1)
    expect(a.events).toEqual(['elected 1', 'ended 1 returned', 'elected 2'])
  })

  test('whose lead throws says so, and stands again', async () => {
    const { database, a } = await elected()
    const error = new Error('out of paper')
    a.last.throws(error)
    await database.clock.advance(retryMs)
    expect(a.events).toEqual(['elected 1', 'failed 1 out of paper', 'ended 1 failed', 'elected 2'])
    expect(a.errors).toEqual([error])
    expect(database.log).toEqual([expect.stringContaining('out of paper')])
  })

  test('whose lead throws before it has returned a promise is no other case', async () => {
    const database = new FakeDatabase()
    const events: string[] = []
    const election = new Election(
      'scheduler',
      {},
      () => {
        throw new Error('at once')
      },
      database.electorate(),
    )
    election.on('ended', ({ reason }) => events.push(reason))
    await settled()
    expect(events).toEqual(['failed'])
    expect(await election.stop()).toBe('not-leading')
  })

  test('tells that its term has ended before anybody else may be granted the lease', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    const order: string[] = []
    a.election.on('ended', () => order.push(`a ended, ${database.terms.length} granted`))
    b.election.on('elected', () => order.push('b elected'))
    a.last.returns()
    await settled()
    expect(order).toEqual(['a ended, 1 granted', 'b elected'])
    expect(b.events).toEqual(['elected 2'])
  })

  test('whose lead returns again and again at once does not spin, and is forgiven after a long term', async () => {
    const { database, a } = await elected()
    const rests: number[] = []
    for (let term = 0; term < 9; term += 1) {
      a.last.returns()
      await settled()
      const from = database.clock.monotonicMs()
      while (a.leads.length < term + 2) await database.clock.advance(500)
      rests.push(database.clock.monotonicMs() - from)
    }
    expect(rests).toEqual([1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000, 32_000])
    await database.clock.advance(10 * retryMs)
    a.last.returns()
    await database.clock.advance(retryMs)
    expect(a.leads).toHaveLength(11)
  })
})

describe('a lost lease', () => {
  test('ends the term at once, is told by the signal, and lead is waited for before standing again', async () => {
    const { database, a } = await elected()
    database.holder!.lose()
    await settled()
    expect(a.last.lease.signal.reason).toBeInstanceOf(LeaseLostError)
    expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
    expect(a.errors[0]).toBe(a.last.lease.signal.reason)
    expect(a.election.lease).toBeUndefined()
    await database.clock.advance(10 * ttlMs)
    expect(database.asked).toBe(1)
    a.last.returns()
    await database.clock.advance(retryMs)
    expect(a.events).toEqual(['elected 1', 'ended 1 lost', 'elected 2'])
    expect(a.mostAtOnce).toBe(1)
    // There was nothing left to give up.
    expect(database.terms[0]!.givenUp).toBe(0)
  })

  test('goes to another process while the first one still drains', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    await settled()
    database.holder!.lose()
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
    expect(b.events).toEqual(['elected 2'])
  })

  test('leads back, ten times in a row, with growing tokens and no two leads at once', async () => {
    const { database, a } = await elected()
    for (let term = 0; term < 10; term += 1) {
      database.holder!.lose()
      await database.clock.advance(500)
      a.last.returns()
      await database.clock.advance(100_000)
    }
    expect(a.events.filter((event) => event.startsWith('elected'))).toEqual(
      Array.from({ length: 11 }, (_, index) => `elected ${index + 1}`),
    )
    expect(a.events.filter((event) => event.endsWith('lost'))).toHaveLength(10)
    expect(a.mostAtOnce).toBe(1)
  })

  test.each([
    ['the reason of its signal', (lease: FakeLease) => lease.signal.reason as unknown],
    ['an AbortError', () => new DOMException('aborted', 'AbortError')],
    ['an error caused by it', (lease: FakeLease) => new Error('gave up', { cause: lease.signal.reason })],
    ['that a write was refused', () => new StaleTermError('scheduler', 1n, 2n)],
  ])('is no failure of a lead that throws %s', async (_, error) => {
    const { database, a } = await elected()
    database.holder!.lose()
    a.last.throws(error(a.last.lease))
    await database.clock.advance(retryMs)
    expect(a.events).toEqual(['elected 1', 'ended 1 lost', 'elected 2'])
    expect(database.log).toEqual([])
  })

  test('does not hide another error of lead', async () => {
    const { database, a } = await elected()
    database.holder!.lose()
    a.last.throws(new Error('could not clean up'))
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 lost', 'failed 1 could not clean up'])
  })

  test('that nobody has told of when lead settles is a loss all the same', async () => {
    const { database, a } = await elected()
    // As after a blocked event loop: the arithmetic knows, the timers have not run.
    a.last.lease.state = 'lost'
    a.last.throws(new LeaseLostError('scheduler', 1n, 'expired'))
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
    expect(a.errors[0]).toBeInstanceOf(LeaseLostError)
    expect(database.terms[0]!.givenUp).toBe(0)
  })

  test('whose lead does not listen is reported, once', async () => {
    const { database, a } = await elected()
    database.holder!.lose()
    await database.clock.advance(10 * stopTimeoutMs)
    expect(database.log).toEqual([expect.stringContaining('lead is still running')])
    a.last.returns()
    await settled()
    expect(await a.election.stop()).toBe('not-leading')
    expect(database.clock.timers).toBe(0)
  })

  test('on arrival is no term', async () => {
    const database = new FakeDatabase()
    const electorate = database.electorate()
    const lost: FakeLease[] = []
    const a = new Election(
      'scheduler',
      {},
      () => {
        throw new Error('must not lead')
      },
      {
        ...electorate,
        acquire: async (signal) => {
          const lease = await electorate.acquire(signal)
          lease.lose()
          lost.push(lease)
          return lease
        },
      },
    )
    const events: unknown[] = []
    a.on('elected', (event) => events.push(event))
    a.on('failed', (event) => events.push(event))
    await database.clock.advance(3 * retryMs)
    expect(lost).toHaveLength(3)
    expect(events).toEqual([])
    await a.stop()
  })
})

describe('stop', () => {
  test('asks lead to stop, waits for it, and only then hands over', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    await settled()
    const stopped = a.election.stop()
    expect(a.last.lease.signal.reason).toMatchObject({ code: 'ELECTION_STOPPED' })
    await database.clock.advance(stopTimeoutMs - 1)
    expect(await now(stopped)).toBe('pending')
    expect(a.last.lease.isHeld).toBe(true)
    expect(a.election.isLeader).toBe(true)
    expect(b.events).toEqual([])
    a.last.returns()
    expect(await stopped).toBe('handed-over')
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 stopped'])
    expect(b.events).toEqual(['elected 2'])
    expect(database.clock.timers).toBe(0)
    await database.clock.advance(100_000)
    expect(a.leads).toHaveLength(1)
  })

  test('releases the lease when nobody waits for it', async () => {
    const { a } = await elected({ obeys: true })
    expect(await a.election.stop()).toBe('released')
    expect(a.events).toEqual(['elected 1', 'ended 1 stopped'])
  })

  test('reports what else lead throws on its way out', async () => {
    const { a } = await elected()
    const stopped = a.election.stop()
    a.last.throws(new Error('could not clean up'))
    expect(await stopped).toBe('released')
    expect(a.events).toEqual(['elected 1', 'failed 1 could not clean up', 'ended 1 stopped'])
  })

  test('twice is once', async () => {
    const { a } = await elected({ obeys: true })
    const first = a.election.stop()
    expect(a.election.stop()).toBe(first)
    expect(await first).toBe('released')
    expect(a.election.stop()).toBe(first)
    await a.election[Symbol.asyncDispose]()
    expect(a.last.lease.givenUp).toBe(1)
    expect(a.events).toEqual(['elected 1', 'ended 1 stopped'])
  })

  test('called again by what hears of it is the same', async () => {
    const { a } = await elected()
    const outcomes: Promise<StopOutcome>[] = []
    a.last.lease.signal.addEventListener('abort', () => outcomes.push(a.election.stop()))
    a.election.on('ended', () => outcomes.push(a.election.stop()))
    const stopped = a.election.stop()
    a.last.returns()
    expect(await stopped).toBe('released')
    expect(outcomes).toEqual([stopped, stopped])
    expect(a.last.lease.givenUp).toBe(1)
  })

  test('with a lead that never returns does not give the lease back, but lets it run out', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    await settled()
    const stopped = a.election.stop()
    await database.clock.advance(stopTimeoutMs)
    expect(await now(stopped)).toBe('abandoned')
    expect(a.last.lease.isLeftToExpire).toBe(true)
    expect(a.last.lease.givenUp).toBe(0)
    expect(a.events).toEqual(['elected 1'])
    await database.clock.advance(ttlMs - 1)
    expect(b.events).toEqual([])
    await database.clock.advance(1)
    expect(a.events).toEqual(['elected 1', 'ended 1 abandoned'])
    expect(b.events).toEqual(['elected 2'])
    // Long after, nothing more comes of it.
    a.last.returns()
    await database.clock.advance(100_000)
    expect(a.events).toHaveLength(2)
    expect(a.leads).toHaveLength(1)
    expect(a.last.lease.givenUp).toBe(0)
  })

  test('hands over at once when an abandoned lead settles before the lease has run out', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    await settled()
    const stopped = a.election.stop()
    await database.clock.advance(stopTimeoutMs + 5000)
    expect(await stopped).toBe('abandoned')
    a.last.returns()
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 stopped'])
    expect(b.events).toEqual(['elected 2'])
  })

  test('does not count the time of the hand-over against lead', async () => {
    const { database, a } = await elected({ obeys: true, stopTimeout: 0 })
    const { promise, resolve } = Promise.withResolvers<void>()
    database.handingOver = promise
    const stopped = a.election.stop()
    await database.clock.advance(ttlMs)
    expect(await now(stopped)).toBe('pending')
    resolve()
    expect(await stopped).toBe('released')
  })

  test('while it waits for the lease leaves the line', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    await settled()
    expect(await b.election.stop()).toBe('not-leading')
    a.last.returns()
    await database.clock.advance(100_000)
    expect(b.events).toEqual([])
    expect(database.terms).toHaveLength(2)
    expect(a.leads).toHaveLength(2)
  })

  test('in the very moment of the grant gives it back, and it was no term', async () => {
    const { database, a } = await elected()
    const b = new Candidate(database)
    const c = new Candidate(database)
    await settled()
    // Granted in this step, not yet known to the election, and stopped.
    database.holder!.lose()
    const { promise, resolve } = Promise.withResolvers<void>()
    database.handingOver = promise
    const stopped = b.election.stop()
    await settled()
    expect(await now(stopped)).toBe('pending')
    resolve()
    expect(await stopped).toBe('not-leading')
    await settled()
    expect(b.events).toEqual([])
    expect(database.terms[1]!.givenUp).toBe(1)
    expect(c.events).toEqual(['elected 3'])
    expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
  })

  test('before it has begun to stand is enough', async () => {
    const database = new FakeDatabase()
    const a = new Candidate(database)
    expect(await a.election.stop()).toBe('not-leading')
    await database.clock.advance(100_000)
    expect(a.leads).toHaveLength(0)
    expect(database.holder).toBeUndefined()
  })

  test('by a listener that hears of the election comes before lead', async () => {
    const database = new FakeDatabase()
    const a = new Candidate(database)
    a.election.on('elected', () => a.election.stop())
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 stopped'])
    expect(a.leads).toHaveLength(0)
    expect(await a.election.stop()).toBe('released')
  })

  test('while the lease is being handed over waits for that', async () => {
    const { database, a } = await elected()
    const { promise, resolve } = Promise.withResolvers<void>()
    database.handingOver = promise
    a.last.returns()
    await settled()
    expect(a.events).toEqual(['elected 1', 'ended 1 returned'])
    const stopped = a.election.stop()
    await settled()
    expect(await now(stopped)).toBe('pending')
    resolve()
    expect(await stopped).toBe('released')
    expect(a.last.lease.givenUp).toBe(1)
  })

  test('while it rests is over at once', async () => {
    const { database, a } = await elected()
    a.last.returns()
    await settled()
    expect(database.clock.timers).toBe(1)
    expect(await a.election.stop()).toBe('not-leading')
    expect(database.clock.timers).toBe(0)
    expect(a.leads).toHaveLength(1)
  })

  test.each(['returns in time', 'does not return'])(
    'while a lost lead drains waits for it, and it %s',
    async (how) => {
      const { database, a } = await elected()
      a.last.lease.lose()
      const stopped = a.election.stop()
      await database.clock.advance(stopTimeoutMs - 1)
      expect(await now(stopped)).toBe('pending')
      if (how === 'returns in time') a.last.returns()
      else await database.clock.advance(1)
      expect(await stopped).toBe(how === 'returns in time' ? 'not-held' : 'abandoned')
      expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
      expect(a.last.lease.isLeftToExpire).toBe(false)
    },
  )

  test('survives a loss while it waits for lead', async () => {
    const { database, a } = await elected()
    const stopped = a.election.stop()
    await database.clock.advance(1000)
    a.last.lease.lose()
    a.last.returns()
    expect(await stopped).toBe('not-held')
    expect(a.events).toEqual(['elected 1', 'ended 1 lost'])
  })
})

describe('a Fencepost that is closed', () => {
  test('ends the term of the leader, and the election for good', async () => {
    const { database, a } = await elected({ obeys: true })
    database.close()
    await database.clock.advance(100_000)
    expect(a.events).toEqual(['elected 1', 'ended 1 closed'])
    expect(a.errors[0]).toMatchObject({ code: 'LEASE_LOST', reason: 'closed' })
    expect(database.asked).toBe(1)
    expect(database.clock.timers).toBe(0)
    expect(await a.election.stop()).toBe('not-leading')
  })

  test('ends an election that waits, or rests, without a word', async () => {
    const { database, a } = await elected()
    const waiting = new Candidate(database)
    a.last.returns()
    await settled()
    database.close()
    waiting.last.returns()
    await database.clock.advance(100_000)
    expect(a.events).toEqual(['elected 1', 'ended 1 returned'])
    expect(waiting.events).toEqual(['elected 2', 'ended 2 closed'])
    expect(database.asked).toBe(2)
    expect(database.log).toEqual([])
  })

  test('leaves no timer, even while an election rests', async () => {
    const { database, a } = await elected()
    a.last.returns()
    await settled()
    expect(database.clock.timers).toBeGreaterThan(0)
    database.close()
    await settled()
    expect(database.clock.timers).toBe(0)
  })
})

describe('a candidacy that fails', () => {
  test('is told, and repeated ever more slowly until it succeeds', async () => {
    const database = new FakeDatabase()
    const refused = new FencepostError('PERMISSION_DENIED', 'no right')
    database.failures.push(refused, refused, refused)
    const a = new Candidate(database)
    await database.clock.advance(999)
    expect(a.events).toEqual(['failed standing PERMISSION_DENIED'])
    await database.clock.advance(1)
    expect(a.events).toHaveLength(2)
    await database.clock.advance(1999)
    expect(a.events).toHaveLength(2)
    await database.clock.advance(1)
    expect(a.events).toHaveLength(3)
    await database.clock.advance(4000)
    expect(a.events.at(-1)).toBe('elected 1')
    expect(database.log).toHaveLength(3)
  })

  test('never spins, however long it goes on', async () => {
    const database = new FakeDatabase()
    database.failures.push(...Array.from({ length: 1000 }, () => new Error('no')))
    const a = new Candidate(database)
    await database.clock.advance(3_600_000)
    expect(database.asked).toBeLessThan(130)
    expect(await a.election.stop()).toBe('not-leading')
    expect(database.clock.timers).toBe(0)
  })
})

describe('two elections of one name in one process', () => {
  test('never lead at once, also not while the first one drains', async () => {
    const database = new FakeDatabase()
    const line = new Line()
    const a = new Candidate(database, { line })
    const b = new Candidate(database, { line })
    await settled()
    a.last.lease.lose()
    await database.clock.advance(100_000)
    expect(b.events).toEqual([])
    a.last.returns()
    await settled()
    expect(b.events).toEqual(['elected 2'])
    expect(await a.election.stop()).toBe('not-leading')
    b.last.returns()
    await settled()
    expect(await b.election.stop()).toBe('not-leading')
  })

  test('stop independently of each other', async () => {
    const database = new FakeDatabase()
    const line = new Line()
    const a = new Candidate(database, { line, obeys: true })
    const b = new Candidate(database, { line, obeys: true })
    const c = new Candidate(database, { line, obeys: true })
    await settled()
    expect(await b.election.stop()).toBe('not-leading')
    expect(await a.election.stop()).toBe('released')
    await settled()
    expect(c.events).toEqual(['elected 2'])
  })
})

describe('who leads', () => {
  const tokens = (seen: (Leader | undefined)[]): (bigint | undefined)[] => seen.map((leader) => leader?.token)

  test('is asked of the database by anyone, also by one that is no candidate', async () => {
    const { database, a } = await elected()
    const watcher = new Election<FakeLease>(
      'scheduler',
      { candidate: false },
      undefined,
      database.electorate(),
    )
    expect(await watcher.leader()).toMatchObject({ token: 1n, holder: 'test' })
    a.last.returns()
    await settled()
    expect(await watcher.leader()).toBeUndefined()
    await database.clock.advance(100_000)
    expect(watcher.isCandidate).toBe(false)
    expect(watcher.isLeader).toBe(false)
    expect(watcher.lease).toBeUndefined()
    expect(await watcher.stop()).toBe('not-leading')
    expect(await watcher.leader()).toMatchObject({ token: 2n })
  })

  test('is told to listeners as it changes, and the database is asked only while there are any', async () => {
    const database = new FakeDatabase()
    const watcher = new Election<FakeLease>(
      'scheduler',
      { candidate: false },
      undefined,
      database.electorate(),
    )
    await database.clock.advance(10 * ttlMs)
    expect(database.looks).toBe(0)
    const seen: (Leader | undefined)[] = []
    const off = watcher.on('leader', (leader) => seen.push(leader))
    await settled()
    expect(tokens(seen)).toEqual([undefined])
    const term = database.takeAs('scheduler')
    await database.clock.advance(ttlMs / 2)
    expect(tokens(seen)).toEqual([undefined, 1n])
    await database.clock.advance(10 * ttlMs)
    expect(tokens(seen)).toEqual([undefined, 1n])
    expect(database.looks).toBeLessThanOrEqual(25)
    term.lose()
    await database.clock.advance(ttlMs / 2)
    expect(tokens(seen)).toEqual([undefined, 1n, undefined])
    off()
    off()
    const { looks } = database
    await database.clock.advance(10 * ttlMs)
    expect(database.looks).toBe(looks)
    expect(database.clock.timers).toBe(0)
  })

  test('is looked at once after this process was elected or has ended, not at the next turn', async () => {
    const database = new FakeDatabase()
    const a = new Candidate(database)
    const seen: (Leader | undefined)[] = []
    a.election.on('leader', (leader) => seen.push(leader))
    await settled()
    expect(tokens(seen).at(-1)).toBe(1n)
    a.last.returns()
    await settled()
    expect(tokens(seen).at(-1)).toBeUndefined()
    expect(seen.length).toBeGreaterThan(1)
    await a.election.stop()
    expect(database.clock.timers).toBe(0)
  })

  test('is never asked twice at once, and an answer to who has stopped listening is not heard', async () => {
    const { database } = await elected()
    const answers: ((leader: Leader | undefined) => void)[] = []
    const watcher = new Election<FakeLease>('scheduler', { candidate: false }, undefined, {
      ...database.electorate(),
      leader: () => new Promise((resolve) => answers.push(resolve)),
    })
    const seen: unknown[] = []
    const off = watcher.on('leader', () => seen.push('before'))
    await database.clock.advance(10 * ttlMs)
    expect(answers).toHaveLength(1)
    off()
    watcher.on('leader', (leader) => seen.push(leader))
    await settled()
    expect(answers).toHaveLength(1)
    answers[0]!({ holder: 'late', host: undefined, pid: undefined, token: 7n, since: undefined })
    await settled()
    expect(seen).toEqual([])
    expect(answers).toHaveLength(2)
    answers[1]!(undefined)
    await settled()
    expect(seen).toEqual([undefined])
    await watcher.stop()
    expect(database.clock.timers).toBe(0)
  })

  test('goes on being watched through errors, which are reported once', async () => {
    const database = new FakeDatabase()
    database.takeAs('scheduler')
    const watcher = new Election<FakeLease>(
      'scheduler',
      { candidate: false },
      undefined,
      database.electorate(),
    )
    const seen: (Leader | undefined)[] = []
    watcher.on('leader', (leader) => seen.push(leader))
    await settled()
    database.lookFailure = new Error('gone')
    await database.clock.advance(10 * ttlMs)
    expect(tokens(seen)).toEqual([1n])
    expect(database.log).toHaveLength(1)
    database.lookFailure = undefined
    database.takeAs('scheduler')
    await database.clock.advance(ttlMs)
    expect(tokens(seen)).toEqual([1n, 2n])
    await watcher.stop()
    expect(database.clock.timers).toBe(0)
    expect(watcher.on('leader', () => {})).toBeTypeOf('function')
    expect(database.clock.timers).toBe(0)
  })

  test('is watched no more when the Fencepost is closed', async () => {
    const database = new FakeDatabase()
    const watcher = new Election<FakeLease>(
      'scheduler',
      { candidate: false },
      undefined,
      database.electorate(),
    )
    watcher.on('leader', () => {})
    await settled()
    database.close()
    await settled()
    expect(database.clock.timers).toBe(0)
    watcher.on('leader', () => {})
    await settled()
    expect(database.clock.timers).toBe(0)
    expect(database.log).toEqual([])
  })
})

describe('listeners', () => {
  test('that throw or reject hurt neither the election nor each other', async () => {
    const database = new FakeDatabase()
    const a = new Candidate(database, { obeys: true })
    const heard: string[] = []
    a.election.on('elected', () => {
      throw new Error('bad listener')
    })
    a.election.on('elected', () => Promise.reject(new Error('bad promise')))
    a.election.on('elected', () => heard.push('elected'))
    a.election.on('ended', () => {
      throw new Error('bad listener')
    })
    await settled()
    expect(heard).toEqual(['elected'])
    expect(await a.election.stop()).toBe('released')
    expect(database.log).toHaveLength(3)
  })
})

describe('wrong arguments are refused at once, before anything is asked', () => {
  const create = (options: object, lead: unknown = () => {}): (() => unknown) => {
    const database = new FakeDatabase()
    return () => {
      try {
        return new Election('scheduler', options, lead as () => void, database.electorate())
      } finally {
        expect(database.asked).toBe(0)
      }
    }
  }

  test.each([
    ['stopTimeout', -1, '1d'],
    ['stopTimeout', '2d', '1d'],
    ['stopTimeout', Number.NaN, 'milliseconds'],
    ['stopTimeout', '30', 'unit'],
    ['retryDelay', 0, '10ms'],
    ['retryDelay', '11m', '10m'],
    ['retryDelay', Number.POSITIVE_INFINITY, 'milliseconds'],
    ['candidate', 'no', 'true or false'],
    ['candidate', null, 'true or false'],
  ])('%s: %s', (option, value, bound) => {
    const wrong = create({ [option]: value })
    expect(wrong).toThrow(InvalidArgumentError)
    expect(wrong).toThrow(new RegExp(`^${option} must .*${bound}`))
    expect(wrong).toThrow(expect.objectContaining({ argument: option, value }))
  })

  test.each([undefined, null, 'work', {}])('lead: %s', (lead) => {
    const database = new FakeDatabase()
    expect(() => new Election('scheduler', {}, lead as never, database.electorate())).toThrow(
      expect.objectContaining({ argument: 'lead', value: lead }),
    )
    expect(database.asked).toBe(0)
  })

  test('lead may be left out by one that is no candidate, but not be something else', () => {
    expect(create({ candidate: false }, 7)).toThrow(/^lead must be a function/)
  })
})

describe('the rest between two candidacies', () => {
  const delay = fc.integer({ min: 10, max: 600_000 })
  const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })

  property.prop([delay, fc.nat({ max: 10_000 }), random])(
    'is never shorter than the retry delay, never shrinks, and is bounded',
    (delayMs, inARow, dice) => {
      const rest = restMs(delayMs, inARow, dice)
      expect(rest).toBeGreaterThanOrEqual(delayMs)
      expect(rest).toBeLessThanOrEqual(1.5 * Math.max(60_000, delayMs))
      expect(rest).toBeLessThanOrEqual(1.5 * 32 * delayMs)
      expect(restMs(delayMs, inARow + 1, dice)).toBeGreaterThanOrEqual(rest)
    },
  )

  test('differs between processes', () => {
    expect(restMs(1000, 1, 0)).toBe(1000)
    expect(restMs(1000, 1, 0.5)).toBe(1250)
  })

  test('grows for a lead that lasted less than ten of them', () => {
    expect(isBrief(9999, 1000)).toBe(true)
    expect(isBrief(10_000, 1000)).toBe(false)
  })

  property.prop([random])('a look at the leader comes about twice per TTL', (dice) => {
    expect(lookEveryMs(10_000, dice)).toBeGreaterThanOrEqual(4500)
    expect(lookEveryMs(10_000, dice)).toBeLessThanOrEqual(5500)
  })
})

describe('whatever happens, in any order', () => {
  const step = fc.oneof(
    fc.record({ do: fc.constant('wait' as const), ms: fc.integer({ min: 0, max: 12_000 }) }),
    fc.record({
      do: fc.constantFrom('return', 'throw', 'stop', 'start', 'listen' as const),
      who: fc.nat({ max: 2 }),
    }),
    fc.record({ do: fc.constantFrom('lose', 'lose silently', 'fail to grant', 'close' as const) }),
    fc.record({ do: fc.constantFrom('slow hand-overs', 'quick hand-overs' as const) }),
  )

  property.prop(
    [
      fc.array(step, { minLength: 5, maxLength: 60, size: 'max' }),
      fc.infiniteStream(fc.double({ min: 0, max: 0.99, noNaN: true })),
    ],
    {
      numRuns: 150,
    },
  )(
    'each term starts once and ends once, tokens grow, and leads never overlap',
    async (steps, dice) => {
      const database = new FakeDatabase()
      const log: string[] = []
      const candidates: Candidate[] = []
      const inOffice: (Candidate | undefined)[] = [undefined, undefined, undefined]
      const stops: Promise<StopOutcome>[] = []
      let handOver: (() => void) | undefined
      const enter = (who: number): void => {
        const candidate = new Candidate(database, { stopTimeout: 5000, obeys: who === 0 })
        candidate.election.on('elected', ({ token }) => log.push(`${who} elected ${token}`))
        candidate.election.on('ended', ({ token }) => log.push(`${who} ended ${token}`))
        inOffice[who] = candidate
        candidates.push(candidate)
      }
      const quicken = (): void => {
        handOver?.()
        handOver = undefined
        database.handingOver = Promise.resolve()
      }
      for (const who of [0, 1, 2]) enter(who)

      for (const each of steps) {
        database.random = dice.next().value as number
        switch (each.do) {
          case 'wait':
            await database.clock.advance(each.ms)
            break
          case 'return':
            inOffice[each.who]!.leads.at(-1)?.returns()
            break
          case 'throw':
            inOffice[each.who]!.leads.at(-1)?.throws(new Error('dice'))
            break
          case 'stop':
            stops.push(inOffice[each.who]!.election.stop())
            break
          case 'start':
            stops.push(inOffice[each.who]!.election.stop())
            enter(each.who)
            break
          case 'listen':
            inOffice[each.who]!.election.on('leader', () => {})
            break
          case 'lose':
            database.holder?.lose()
            break
          case 'lose silently': {
            const { holder } = database
            if (holder?.isHeld !== true) break
            // Somebody else has been granted it only after the holder could know by its clock.
            holder.state = 'lost'
            queueMicrotask(() => {
              holder.state = 'held'
              holder.lose()
            })
            break
          }
          case 'fail to grant':
            database.failures.push(new Error('dice'))
            break
          case 'close':
            database.holder?.lose('closed')
            break
          case 'slow hand-overs':
            if (handOver === undefined) {
              const { promise, resolve } = Promise.withResolvers<void>()
              database.handingOver = promise
              handOver = resolve
            }
            break
          case 'quick hand-overs':
            quicken()
            break
        }
        if ((database.random * 10) % 2 < 1) await settled()
      }

      quicken()
      for (const candidate of candidates) stops.push(candidate.election.stop())
      await database.clock.advance(1_000_000)
      for (const candidate of candidates) for (const lead of candidate.leads) lead.returns()
      await settled()
      await Promise.all(stops)

      // One start and one end, by the same one, before the next start, with a greater token each time.
      let lastToken = 0n
      for (let at = 0; at < log.length; at += 2) {
        const [who, what, token] = log[at]!.split(' ')
        expect(what, log.join(', ')).toBe('elected')
        expect(BigInt(token!)).toBeGreaterThan(lastToken)
        expect(log[at + 1], log.join(', ')).toBe(`${who} ended ${token}`)
        lastToken = BigInt(token!)
      }
      for (const candidate of candidates) {
        expect(candidate.mostAtOnce).toBeLessThanOrEqual(1)
        for (const { isDone } of candidate.leads) expect(isDone).toBe(true)
      }
      // Every grant was given up once at most, and nothing is left behind.
      for (const term of database.terms) {
        expect(term.givenUp).toBeLessThanOrEqual(1)
        expect(term.isHeld).toBe(false)
      }
      expect(database.clock.timers).toBe(0)
    },
    60_000,
  )
})
