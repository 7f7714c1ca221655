import { fc, test } from '@fast-check/vitest'
import { randomUUID } from 'node:crypto'
import { expect } from 'vitest'
import { useDatabase } from '../support/database.ts'

// What four holders do with three leases, at random, against a small model of it, step by step. Time is moved by hand: minutes pass
// in the rows, and no two moments that are compared ever fall together.

const database = useDatabase()
const leaseNames = ['a', 'b', 'c'] as const
const ttlMin = [4.5, 9.5, 14.5, 9.5]

interface Bounds {
  readonly min: number
  readonly max: number
  readonly grace: number
}

interface Place extends Bounds {
  readonly holder: number
  readonly ticket: number
}

interface Term {
  holder: number | undefined
  token: number
  ticket: number | undefined
  deadline: number
  availableAt: number
  grace: number
  line: Place[]
}

interface Life {
  id: string
  readonly ttl: number
  expiresAt: number
  endedAt: number
  /** What it has been told, by lease. */
  readonly tokens: Map<string, number>
  readonly tickets: Map<string, number>
}

class Model {
  now = 0
  lastToken: number
  readonly terms = new Map<string, Term>()
  readonly holders: Life[]

  constructor(lastToken: number) {
    this.lastToken = lastToken
    this.holders = ttlMin.map((ttl) => this.#born(ttl))
  }

  #born(ttl: number): Life {
    return {
      id: randomUUID(),
      ttl,
      expiresAt: this.now + ttl,
      endedAt: Number.POSITIVE_INFINITY,
      tokens: new Map(),
      tickets: new Map(),
    }
  }

  lives(holder: number): boolean {
    const { endedAt, expiresAt } = this.holders[holder]!
    return endedAt === Number.POSITIVE_INFINITY && expiresAt > this.now
  }

  freeAt(term: Term): number {
    if (term.holder === undefined) return term.availableAt
    const { expiresAt, endedAt } = this.holders[term.holder]!
    return Math.max(term.availableAt, Math.min(term.deadline, expiresAt, endedAt) + term.grace)
  }

  grant(name: string, holder: number, bounds: Bounds, ticket?: number): number {
    const term = this.terms.get(name)
    const former = term?.holder
    if (former !== undefined && this.holders[former]!.expiresAt <= this.now) {
      this.holders[former]!.endedAt = Math.min(this.holders[former]!.endedAt, this.now)
    }
    this.lastToken += 1
    this.terms.set(name, {
      holder,
      token: this.lastToken,
      ticket,
      deadline: this.now + bounds.max,
      availableAt: bounds.min > 0 ? this.now + bounds.min : Number.NEGATIVE_INFINITY,
      grace: bounds.grace,
      line: (term?.line ?? []).filter((place) => place.ticket !== ticket),
    })
    return this.lastToken
  }

  isQueued(name: string, holder: number): boolean {
    const line = this.terms.get(name)?.line ?? []
    const own = line.find((place) => place.holder === holder)?.ticket ?? Number.POSITIVE_INFINITY
    return line.some((place) => place.holder !== holder && this.lives(place.holder) && place.ticket < own)
  }

  /** The reason against a grant. */
  refusal(name: string, holder: number, barges: boolean): string | undefined {
    const term = this.terms.get(name)
    if (term === undefined) return undefined
    if (this.freeAt(term) > this.now) {
      return term.holder !== undefined && this.lives(term.holder) && term.deadline > this.now
        ? 'held'
        : 'not_yet'
    }
    return !barges && this.isQueued(name, holder) ? 'queued' : undefined
  }

  /** Whom to wake: with the token of a grant, or to ask. */
  letGo(name: string): { readonly ticket: number; readonly token?: number } | undefined {
    const term = this.terms.get(name)!
    const next = term.line.find((place) => this.lives(place.holder))
    if (next === undefined || term.availableAt > this.now) {
      term.holder = undefined
      return next
    }
    term.line = term.line.filter((place) => place.ticket >= next.ticket || this.lives(place.holder))
    term.holder = undefined
    const token = this.grant(name, next.holder, next, next.ticket)
    return { ticket: next.ticket, token }
  }
}

type Step =
  | { readonly do: 'acquire'; h: number; l: number; stands: boolean; barges: boolean; bounds: Bounds }
  | { readonly do: 'ask' | 'leave' | 'release' | 'write'; h: number; l: number }
  | { readonly do: 'beat'; h: number }
  | { readonly do: 'end'; h: number }
  | { readonly do: 'pass'; minutes: number }

const h = fc.nat(3)
/** Mostly one lease, so that a line forms. */
const l = fc.constantFrom(0, 0, 0, 0, 1, 2)
const bounds = fc.record({
  min: fc.constantFrom(0, 0, 0, 2.3),
  max: fc.constantFrom(Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, 6.7),
  grace: fc.constantFrom(0, 0, 3.1),
})
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('acquire' as const),
      h,
      l,
      stands: fc.constantFrom(true, true, true, false),
      barges: fc.nat(9).map((n) => n === 0),
      bounds,
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constantFrom(
        'ask' as const,
        'leave' as const,
        'release' as const,
        'release' as const,
        'write' as const,
      ),
      h,
      l,
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('beat' as const), h }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('end' as const), h }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('pass' as const), minutes: fc.integer({ min: 1, max: 8 }) }),
  },
)

const minutes = (count: number): string => `${count} minutes`

class World {
  readonly model: Model
  #attempt = 0

  constructor(model: Model) {
    this.model = model
  }

  static async begin(): Promise<World> {
    await database.query('truncate fencepost.waiter, fencepost.lease, fencepost.holder')
    const [row] = await database.query<{ last: string }>(
      `select last_token::text as last from fencepost.token_sequence where name = 'default'`,
    )
    const world = new World(new Model(Number(row!.last)))
    for (const { id, ttl } of world.model.holders) await world.join(id, ttl)
    return world
  }

  async join(id: string, ttl: number): Promise<void> {
    await database.query(`select fencepost.join_holder($1, 'model', null, null, null, $2)`, [
      id,
      ttl * 60_000,
    ])
  }

  async run(next: Step): Promise<void> {
    const { model } = this
    if (next.do === 'pass') {
      model.now += next.minutes
      const interval = minutes(next.minutes)
      await database.query(
        `update fencepost.holder set expires_at = expires_at - $1::interval, ended_at = ended_at - $1::interval`,
        [interval],
      )
      await database.query(
        `update fencepost.lease set granted_at = granted_at - $1::interval, deadline = deadline - $1::interval,
                available_at = available_at - $1::interval`,
        [interval],
      )
      return
    }
    const life = model.holders[next.h]!
    if (next.do === 'beat') {
      const [row] = await database.query<{ alive: boolean }>('select fencepost.beat($1) as alive', [life.id])
      const isEnded = life.endedAt !== Number.POSITIVE_INFINITY
      expect(row!.alive).toBe(!isEnded)
      if (!isEnded) life.expiresAt = model.now + life.ttl
      return
    }
    if (next.do === 'end') return this.#end(next.h)
    const name = leaseNames[next.l]!
    if (next.do === 'acquire') return this.#acquire(next, name)
    if (next.do === 'write') return this.#write(next.h, name)
    if (next.do === 'release') return this.#release(next.h, name)
    if (next.do === 'ask') return this.#ask(next.h, name)
    return this.#leave(next.h, name)
  }

  /** It ends, and somebody new takes its chair. */
  async #end(index: number): Promise<void> {
    const { model } = this
    const life = model.holders[index]!
    await database.query('select fencepost.end_holder($1)', [life.id])
    const wakes = await database.query<{ wake: string }>('select fencepost.hand_on($1) as wake', [life.id])
    life.endedAt = Math.min(life.endedAt, model.now)
    for (const term of model.terms.values()) term.line = term.line.filter((place) => place.holder !== index)
    for (const [name, term] of model.terms) {
      if (term.holder === index && term.line.length > 0 && model.freeAt(term) <= model.now) {
        const next = model.letGo(name)
        if (next !== undefined)
          this.#expectWake(
            wakes.map(({ wake }) => wake),
            next,
          )
      }
    }
    await this.expectSame()
    const born = {
      ...life,
      id: randomUUID(),
      expiresAt: model.now + life.ttl,
      endedAt: Number.POSITIVE_INFINITY,
      tokens: new Map(),
      tickets: new Map(),
    }
    // The old one lives on as a shadow, where a lease still names it.
    model.holders.push(life)
    for (const term of model.terms.values()) if (term.holder === index) term.holder = model.holders.length - 1
    model.holders[index] = born
    await this.join(born.id, born.ttl)
  }

  async #acquire(next: Step & { readonly do: 'acquire' }, name: string): Promise<void> {
    const { model } = this
    const life = model.holders[next.h]!
    this.#attempt += 1
    const asking = database.query<{ token: string | null; reason: string | null; ticket: string | null }>(
      'select * from fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)',
      [
        [name],
        life.id,
        this.#attempt,
        'default',
        next.stands,
        next.barges,
        next.bounds.min * 60_000,
        Number.isFinite(next.bounds.max) ? next.bounds.max * 60_000 : null,
        next.bounds.grace * 60_000,
      ],
    )
    if (!model.lives(next.h)) return expect(asking).rejects.toMatchObject({ code: 'FP002' })
    const [row] = await asking
    const reason = model.refusal(name, next.h, next.barges)
    expect(row!.reason).toBe(reason ?? null)
    if (reason === undefined) {
      life.tokens.set(name, model.grant(name, next.h, next.bounds))
      expect(row!.token).toBe(String(model.lastToken))
      return
    }
    const { line } = model.terms.get(name)!
    const own = line.find((place) => place.holder === next.h)
    if (!next.stands) return expect(row!.ticket).toBeNull()
    if (own !== undefined) return expect(row!.ticket).toBe(String(own.ticket))
    const ticket = Number(row!.ticket)
    expect(line.every((place) => place.ticket < ticket)).toBe(true)
    line.push({ holder: next.h, ticket, ...next.bounds })
    life.tickets.set(name, ticket)
  }

  async #ask(index: number, name: string): Promise<void> {
    const { model } = this
    const life = model.holders[index]!
    const ticket = life.tickets.get(name)
    if (ticket === undefined) return
    const asking = database.query<{ token: string | null; reason: string | null }>(
      'select * from fencepost.acquire($1, $2, p_tickets => $3)',
      [[name], life.id, [ticket]],
    )
    if (!model.lives(index)) return expect(asking).rejects.toMatchObject({ code: 'FP002' })
    const [row] = await asking
    const term = model.terms.get(name)!
    const place = term.line.find((one) => one.ticket === ticket)
    if (term.holder === index && term.ticket === ticket) {
      expect(row).toMatchObject({ token: String(term.token), reason: null })
    } else if (place === undefined) {
      expect(row).toMatchObject({ token: null, reason: 'gone' })
      life.tickets.delete(name)
      return
    } else {
      const reason = model.refusal(name, index, false)
      expect(row!.reason).toBe(reason ?? null)
      if (reason !== undefined) return
      expect(row!.token).toBe(String(model.grant(name, index, place, ticket)))
    }
    life.tokens.set(name, Number(row!.token))
  }

  async #leave(index: number, name: string): Promise<void> {
    const { model } = this
    const life = model.holders[index]!
    const ticket = life.tickets.get(name)
    if (ticket === undefined) return
    const rows = await database.query<{ name: string | null; outcome: string; wake: string | null }>(
      'select * from fencepost.leave($1, $2, $3)',
      [life.id, [name], [ticket]],
    )
    expect(rows[0]).toMatchObject({ name, outcome: 'left' })
    life.tickets.delete(name)
    const term = model.terms.get(name)!
    term.line = term.line.filter((place) => place.ticket !== ticket)
    if (term.holder === index && term.ticket === ticket) {
      // Nobody has had this term: no minimum hold follows from it.
      term.availableAt = Number.NEGATIVE_INFINITY
      const next = model.letGo(name)
      if (next !== undefined)
        this.#expectWake(
          rows.map(({ wake }) => wake),
          next,
        )
    }
  }

  async #release(index: number, name: string): Promise<void> {
    const { model } = this
    const life = model.holders[index]!
    const token = life.tokens.get(name)
    if (token === undefined) return
    const [row] = await database.query<{ outcome: string; wake: string | null }>(
      'select * from fencepost.release($1, $2, $3)',
      [[name], [token], life.id],
    )
    const term = model.terms.get(name)!
    const isHeld = term.holder === index && term.token === token
    expect(row!.outcome).toBe(isHeld ? 'released' : 'not_held')
    if (!isHeld) return
    const next = model.letGo(name)
    if (next === undefined) expect(row!.wake).toBeNull()
    else this.#expectWake([row!.wake], next)
  }

  /** A write under what it has been told is accepted for the current term of a live holder only. */
  async #write(index: number, name: string): Promise<void> {
    const { model } = this
    const life = model.holders[index]!
    const token = life.tokens.get(name)
    if (token === undefined) return
    const writing = database.query('select fencepost.fence($1, $2, $3)', [name, token, life.id])
    const term = model.terms.get(name)!
    if (term.holder !== index || term.token !== token) {
      return expect(writing).rejects.toMatchObject({ code: 'FP001' })
    }
    if (!model.lives(index) || term.deadline <= model.now) {
      return expect(writing).rejects.toMatchObject({ code: 'FP002' })
    }
    await writing
  }

  #expectWake(
    wakes: readonly (string | null)[],
    next: { readonly ticket: number; readonly token?: number },
  ): void {
    const begin = next.token === undefined ? `${next.ticket}` : `${next.ticket}:${next.token}:`
    expect(wakes.some((wake) => (next.token === undefined ? wake === begin : wake?.startsWith(begin)))).toBe(
      true,
    )
  }

  async expectSame(): Promise<void> {
    const { model } = this
    const rows = await database.query<{
      name: string
      token: string
      holder_id: string | null
      ticket: string | null
    }>('select name, token, holder_id, ticket from fencepost.lease order by name')
    const line = await database.query<{ lease: string; ticket: string; holder_id: string }>(
      'select lease, ticket, holder_id from fencepost.waiter order by lease, ticket',
    )
    const terms = [...model.terms].toSorted(([a], [b]) => (a < b ? -1 : 1))
    const idOf = (holder: number | undefined): string | null =>
      holder === undefined ? null : model.holders[holder]!.id
    expect(rows.map(({ name, token, holder_id: id }) => ({ name, token, id }))).toEqual(
      terms.map(([name, term]) => ({ name, token: String(term.token), id: idOf(term.holder) })),
    )
    expect(line.map(({ lease, ticket, holder_id: id }) => ({ lease, ticket, id }))).toEqual(
      terms.flatMap(([lease, term]) =>
        term.line.map(({ ticket, holder }) => ({ lease, ticket: String(ticket), id: idOf(holder) })),
      ),
    )
  }
}

test.prop([fc.array(step, { minLength: 10, maxLength: 90 })], { numRuns: 100 })(
  'whatever four holders do with three leases, the database does what the model says',
  async (steps) => {
    const world = await World.begin()
    for (const next of steps) {
      await world.run(next)
      await world.expectSame()
    }
  },
)
