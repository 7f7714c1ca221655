import { describe, expect, test } from 'vitest'
import type { Connection } from '../../src/database/connection.ts'
import { RequestFailure } from '../../src/database/failure.ts'
import type { LossReason } from '../../src/errors.ts'
import { Holder } from '../../src/lease/holder.ts'
import type { Protocol, Unsettled } from '../../src/lease/protocol.ts'
import type { Token } from '../../src/lease/term.ts'
import { silent } from '../../src/logger.ts'
import { ManualClock, settled } from '../support/manual-clock.ts'

const ttlMs = 3000
const marginMs = 150
const everyMs = 1000

/** The database as one holder sees it: every beat waits until the test answers it, unless it is told to be prompt. */
class ScriptedDatabase {
  readonly clock = new ManualClock()
  readonly beatsAt: number[] = []
  readonly confirmedAt: number[] = []
  readonly ended: string[] = []
  readonly settled: Record<string, number>[] = []
  readonly pending: { answer(isAlive: boolean): void; fail(error: unknown): void }[] = []
  reply: 'later' | 'alive' | 'ended' | 'silence' = 'alive'
  mostInFlight = 0
  #inFlight = 0

  readonly protocol = {
    join: async () => {},
    beat: (): Promise<boolean> => {
      this.beatsAt.push(this.clock.monotonicMs())
      this.#inFlight += 1
      this.mostInFlight = Math.max(this.mostInFlight, this.#inFlight)
      const { promise, resolve, reject } = Promise.withResolvers<boolean>()
      const over = (): void => {
        this.#inFlight -= 1
      }
      if (this.reply === 'later') {
        this.pending.push({
          answer: (isAlive) => (over(), resolve(isAlive)),
          fail: (error) => (over(), reject(error)),
        })
      } else {
        over()
        if (this.reply === 'silence') reject(new RequestFailure('unknown', new Error('silence')))
        else resolve(this.reply === 'alive')
      }
      return promise
    },
    missing: async (_: unknown, _id: string, terms: readonly { readonly lease: string }[]) => {
      this.lookUps.push(terms.map(({ lease }) => lease))
      return new Map(
        terms.filter(({ lease }) => lease.startsWith('lost')).map(({ lease }) => [lease, undefined]),
      )
    },
    strays: async () => {
      throw new RequestFailure('refused', new Error('no right to ask'))
    },
    end: async (id: string) => {
      this.ended.push(id)
    },
    settle: async (_: string, attempts: readonly Unsettled[]) => {
      if (this.reply === 'silence') throw new RequestFailure('unknown', new Error('silence'))
      this.settled.push(Object.fromEntries(attempts.map(({ name, attempt }) => [name, attempt])))
    },
  } as unknown as Protocol

  readonly lookUps: string[][] = []

  async holder(): Promise<{ holder: Holder; risks: number[]; losses: LossReason[] }> {
    const identity = { id: 'holder', label: 'test', host: 'test', pid: 1, meta: {} }
    const holder = new Holder({
      identity,
      ttlMs,
      protocol: this.protocol,
      clock: this.clock,
      logger: silent,
      beats: { isOpen: true } as Connection,
      isSpare: () => false,
      onBeat: (sentAtMs) => this.confirmedAt.push(sentAtMs),
      onSettled: () => {},
      giveBack: () => {},
    })
    const risks: number[] = []
    const losses: LossReason[] = []
    holder.addListener({ atRisk: (leftMs) => risks.push(leftMs), lost: (reason) => losses.push(reason) })
    await holder.join()
    return { holder, risks, losses }
  }
}

describe('a holder', () => {
  test('beats every third of its TTL, and is trusted until a margin before its end', async () => {
    const database = new ScriptedDatabase()
    const { holder } = await database.holder()
    const start = database.clock.monotonicMs()
    await database.clock.advance(3 * everyMs)
    expect(database.beatsAt.map((at) => at - start)).toEqual([everyMs, 2 * everyMs, 3 * everyMs])
    expect(holder.trustLeftMs).toBe(ttlMs - marginMs)
  })

  test('never has two beats in flight, however long one takes', async () => {
    const database = new ScriptedDatabase()
    await database.holder()
    database.reply = 'later'
    await database.clock.advance(2500)
    expect(database.pending).toHaveLength(1)
    expect(database.mostInFlight).toBe(1)
  })

  test('counts trust from before the beat was sent, not from its answer', async () => {
    const database = new ScriptedDatabase()
    const { holder } = await database.holder()
    database.reply = 'later'
    await database.clock.advance(everyMs)
    await database.clock.advance(700)
    database.pending[0]!.answer(true)
    await settled()
    expect(holder.trustLeftMs).toBe(ttlMs - marginMs - 700)
  })

  test('that hears nothing is at risk, asks again, and is lost only at its deadline', async () => {
    const database = new ScriptedDatabase()
    const { holder, risks, losses } = await database.holder()
    database.reply = 'silence'
    await database.clock.advance(everyMs)
    expect(holder.isAtRisk).toBe(true)
    expect(holder.isTrusted).toBe(true)
    expect(risks).toEqual([ttlMs - marginMs - everyMs])
    await database.clock.advance(ttlMs - marginMs - everyMs - 1)
    expect(losses).toEqual([])
    expect(database.beatsAt.length).toBeGreaterThan(4)
    await database.clock.advance(1)
    expect(losses).toEqual(['expired'])
    expect(holder.isTrusted).toBe(false)
    expect(database.ended).toEqual(['holder'])
    expect(database.clock.timers).toBe(0)
  })

  test.each(['57014', '40001', '40P01', '53300', '57P01'])(
    'survives one failed beat with %s',
    async (code) => {
      const database = new ScriptedDatabase()
      const { holder, losses } = await database.holder()
      database.reply = 'later'
      await database.clock.advance(everyMs)
      database.pending[0]!.fail(new RequestFailure('refused', Object.assign(new Error('once'), { code })))
      database.reply = 'alive'
      await database.clock.advance(everyMs)
      expect(holder.isAtRisk).toBe(false)
      expect(losses).toEqual([])
    },
  )

  test('that the database says has ended is lost at once', async () => {
    const database = new ScriptedDatabase()
    const { losses } = await database.holder()
    database.reply = 'ended'
    await database.clock.advance(everyMs)
    expect(losses).toEqual(['ended'])
    expect(database.clock.timers).toBe(0)
  })

  test('whose event loop was blocked past the deadline knows it before any timer has run', async () => {
    const database = new ScriptedDatabase()
    const { holder, losses } = await database.holder()
    database.clock.block(ttlMs)
    expect(holder.isTrusted).toBe(false)
    expect(holder.isAlive).toBe(false)
    const beats = database.beatsAt.length
    await settled()
    expect(losses).toEqual(['expired'])
    await database.clock.advance(ttlMs)
    expect(database.beatsAt).toHaveLength(beats)
  })

  test('whose late timer runs first does not beat before it has looked at its deadline', async () => {
    const database = new ScriptedDatabase()
    const { losses } = await database.holder()
    database.clock.block(2 * ttlMs)
    await database.clock.advance(0)
    expect(database.beatsAt).toHaveLength(0)
    expect(losses).toEqual(['expired'])
  })

  test('is not brought back by an answer that comes after the deadline', async () => {
    const database = new ScriptedDatabase()
    const { holder, losses } = await database.holder()
    database.reply = 'later'
    await database.clock.advance(everyMs)
    database.clock.block(ttlMs)
    database.pending[0]!.answer(true)
    await settled()
    expect(losses).toEqual(['expired'])
    expect(holder.isTrusted).toBe(false)
  })

  test('asks the database at once when the wall clock has run away, and is at risk until it answers', async () => {
    const database = new ScriptedDatabase()
    const { holder, risks, losses } = await database.holder()
    database.reply = 'later'
    database.clock.stepWall(3_600_000)
    expect(holder.isTrusted).toBe(false)
    expect(holder.isAlive).toBe(true)
    await settled()
    expect(risks).toHaveLength(1)
    expect(database.pending).toHaveLength(1)
    database.pending[0]!.answer(true)
    await settled()
    expect(holder.isTrusted).toBe(true)
    expect(losses).toEqual([])
  })

  test('keeps its rhythm when the wall clock is set back and forth', async () => {
    const database = new ScriptedDatabase()
    const { losses } = await database.holder()
    const start = database.clock.monotonicMs()
    await database.clock.advance(500)
    database.clock.stepWall(-3_600_000)
    await database.clock.advance(2000)
    database.clock.stepWall(3_600_000)
    await database.clock.advance(2000)
    expect(database.beatsAt.map((at) => at - start)).toEqual([1000, 2000, 3000, 4000])
    expect(losses).toEqual([])
  })

  test('that is ended tells its leases, stops its timers and frees its row', async () => {
    const database = new ScriptedDatabase()
    const { holder, losses } = await database.holder()
    await holder.end()
    expect(losses).toEqual(['closed'])
    expect(database.ended).toEqual(['holder'])
    expect(database.clock.timers).toBe(0)
  })

  test('that is lost while a beat is in flight stays lost', async () => {
    const database = new ScriptedDatabase()
    const { holder, losses } = await database.holder()
    database.reply = 'later'
    await database.clock.advance(everyMs)
    await holder.end()
    database.pending[0]!.answer(true)
    await database.clock.advance(ttlMs)
    expect(losses).toEqual(['closed'])
    expect(database.clock.timers).toBe(0)
  })

  test('settles an unanswered attempt on its own, and keeps trying until it can', async () => {
    const database = new ScriptedDatabase()
    const { holder } = await database.holder()
    database.reply = 'silence'
    holder.leaveUnsettled(7, ['a'])
    await database.clock.advance(300)
    expect(database.settled).toEqual([])
    database.reply = 'alive'
    await database.clock.advance(1000)
    expect(database.settled).toEqual([{ a: 7 }])
  })

  test('settles each name with its own attempt, and does not forget one that came meanwhile', async () => {
    const database = new ScriptedDatabase()
    const { holder } = await database.holder()
    holder.leaveUnsettled(1, ['x'])
    holder.leaveUnsettled(2, ['y'])
    const first = holder.settle()
    // x is granted by a later attempt and is no question any more; z is a new one.
    holder.leaveUnsettled(4, ['z'])
    await Promise.all([first, holder.settle()])
    expect(database.settled[0]).toEqual({ x: 1, y: 2 })
    for (const attempts of database.settled.slice(1)) expect(attempts['x'] ?? 1).toBe(1)
    expect(database.settled.at(-1)).toMatchObject({ z: 4 })
    await holder.settle()
    expect(
      database.settled.flatMap((attempts) => Object.values(attempts)).every((attempt) => attempt <= 4),
    ).toBe(true)
  })
})

test('many terms are looked up by and by, and once, whatever becomes of the search for strays', async () => {
  const database = new ScriptedDatabase()
  const { holder } = await database.holder()
  const names = Array.from({ length: 1200 }, (_, at) => (at % 400 === 0 ? `lost ${at}` : `lease ${at}`))
  const lost: string[] = []
  for (const [at, lease] of names.entries()) {
    const term = { lease, token: BigInt(at) as Token, holderId: holder.id, sequence: 'default' }
    holder.addListener({ term, atRisk: () => {}, lost: () => void lost.push(lease) })
  }
  holder.lookUpTerms(new Error('moved'))
  await settled()
  await database.clock.advance(2000)
  expect(Math.max(...database.lookUps.map(({ length }) => length))).toBeLessThanOrEqual(500)
  expect(database.lookUps.flat()).toEqual(names)
  expect(lost).toEqual(['lost 0', 'lost 400', 'lost 800'])
})
