import type { Clock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import { RequestFailure } from '../database/failure.ts'
import type { LossReason } from '../errors.ts'
import type { Logger } from '../logger.ts'
import type { HolderIdentity, Protocol, Unsettled } from './protocol.ts'
import {
  type Moment,
  type Term,
  type Trust,
  beatEveryMs,
  beatTimeoutMs,
  beatRetryMs,
  isDoubtful,
  trustFrom,
  trustLeftMs,
} from './term.ts'

/** So many terms are looked up in one request: a few milliseconds. */
const mostLookedUp = 500

/** What a holder needs beside the database. */
export interface HolderOptions {
  readonly identity: HolderIdentity
  readonly ttlMs: number
  readonly protocol: Protocol
  readonly clock: Clock
  readonly logger: Logger
  /** The connection that carries nothing but this holder's beats. */
  readonly beats: Connection
  /** Asked before a beat when no lease hangs on the holder. True: it is being ended, and beats no more. */
  isSpare(): boolean
  /** Called after a confirmed beat with the monotonic time at which it was sent. */
  onBeat(sentAtMs: number): void
  /** Gives a lease back that the database takes for this holder's, and nobody here holds. */
  giveBack(term: Term): void
  /** Called when attempts without an answer have been undone, and perhaps places in line with them. */
  onSettled(): void
}

/** What a holder tells the leases that hang on it. */
export interface HolderListener {
  /** Of a lease that is held: the term. */
  readonly term?: Term
  /** Of a place in line. */
  readonly place?: { readonly ticket: string }
  atRisk(leftMs: number, cause: unknown): void
  lost(reason: LossReason, cause: unknown): void
}

/**
 * This process as the database knows it, for one TTL: a row that one heartbeat keeps alive, however many leases hang
 * on it. When it is lost it is lost for good; the next lease joins a new one.
 */
export class Holder {
  readonly id: string
  readonly ttlMs: number
  readonly #options: HolderOptions
  readonly #protocol: Protocol
  readonly #clock: Clock
  readonly #logger: Logger
  readonly #listeners = new Set<HolderListener>()
  /** Apart from the others, because thousands of leases may hang on one holder, and few want to know. */
  readonly #renewalListeners = new Set<() => void>()
  #trust: Trust | undefined
  #loss: { readonly reason: LossReason; readonly cause: unknown } | undefined
  #isAtRisk = false
  #isBeating = false
  #failures = 0
  #cancelBeat: () => void = () => {}
  #cancelDeadline: () => void = () => {}
  #cancelSettling: () => void = () => {}
  /** Each round of look-ups, and what is still to be asked once more in it. */
  #lookUps = new Set<() => void>()
  #attempt = 0
  /** Who asks for leases, and the last attempt before they did. */
  readonly #asking = new Set<{ readonly after: number }>()
  /** Attempts that got no answer. */
  #unsettled: readonly Unsettled[] = []

  constructor(options: HolderOptions) {
    this.id = options.identity.id
    this.ttlMs = options.ttlMs
    this.#options = options
    this.#protocol = options.protocol
    this.#clock = options.clock
    this.#logger = options.logger
  }

  /** Joins and starts to beat. */
  async join(): Promise<void> {
    const sentAt = this.#now()
    await this.#protocol.join(this.#options.identity, this.ttlMs)
    if (this.#loss !== undefined) {
      // Closed while joining: leave nothing behind.
      this.#endInDatabase()
      return
    }
    this.#confirm(sentAt)
  }

  get isLost(): boolean {
    return this.#loss !== undefined
  }

  /** Held without a doubt, by arithmetic on the clock alone. */
  get isTrusted(): boolean {
    return this.#standing() === 'trusted'
  }

  /** Trusted, or in doubt: at risk but not lost. */
  get isAlive(): boolean {
    return this.#standing() !== 'over'
  }

  get isAtRisk(): boolean {
    return this.#isAtRisk || this.#standing() === 'doubtful'
  }

  /** Milliseconds for which the last confirmed beat may still be trusted. */
  get trustLeftMs(): number {
    if (this.#loss !== undefined || this.#trust === undefined) return 0
    return Math.max(0, trustLeftMs(this.#trust, this.#now()))
  }

  /** Tells the listener of risk and loss until it is removed. */
  addListener(listener: HolderListener): void {
    this.#listeners.add(listener)
  }

  removeListener(listener: HolderListener): void {
    this.#listeners.delete(listener)
  }

  /** Calls the listener after each confirmed beat, until the returned function is called. */
  onRenewal(listener: () => void): () => void {
    this.#renewalListeners.add(listener)
    return () => this.#renewalListeners.delete(listener)
  }

  /** Declares the holder lost: every lease on it is told, the heartbeat stops, and the row is ended when possible. */
  lose(reason: LossReason, cause?: unknown): void {
    if (this.#loss !== undefined) return
    this.#loss = { reason, cause }
    this.#cancelBeat()
    this.#cancelDeadline()
    this.#cancelSettling()
    this.#cancelLookUps()
    for (const listener of [...this.#listeners]) listener.lost(reason, cause)
    this.#listeners.clear()
    this.#renewalListeners.clear()
    if (reason === 'expired') this.#endInDatabase()
  }

  /**
   * The beats may go to another server than before, for this reason: its terms are looked up there, and those that it does not know are lost.
   * A beat would not tell, since the holder may be known and its last grants not. What it takes for ours and nobody here holds is given
   * back: its release was lost. Asks until there is an answer.
   */
  lookUpTerms(why: Error): void {
    const round = this.#cancelLookUps()
    this.#lookUp(round, () => this.#loseMissing(why))
    this.#lookUp(round, () => this.#giveBackStrays())
  }

  #lookUp(round: Set<() => void>, step: () => Promise<void>, tries = 1): void {
    if (this.#loss !== undefined) return
    step().catch((error: unknown) => {
      // A later round asks the same.
      if (this.#loss !== undefined || this.#lookUps !== round) return
      this.#logger.debug(`fencepost: the terms that are held could not be looked up yet: ${String(error)}`)
      const cancel = this.#clock.after(beatRetryMs(this.ttlMs, tries, Math.random()), () => {
        round.delete(cancel)
        this.#lookUp(round, step, tries + 1)
      })
      round.add(cancel)
    })
  }

  /** Returns the round that comes after. */
  #cancelLookUps(): Set<() => void> {
    for (const cancel of this.#lookUps) cancel()
    this.#lookUps = new Set()
    return this.#lookUps
  }

  async #loseMissing(why: Error): Promise<void> {
    const held = [...this.#listeners].flatMap((listener) => {
      return listener.term === undefined ? [] : [{ listener, term: listener.term }]
    })
    for (let from = 0; from < held.length; from += mostLookedUp) {
      // oxlint-disable-next-line no-await-in-loop -- So that a beat, which goes over the same connection, waits for one of them at most.
      await this.#loseMissingOf(held.slice(from, from + mostLookedUp), why)
    }
  }

  async #loseMissingOf(
    held: readonly { readonly listener: HolderListener; readonly term: Term }[],
    why: Error,
  ): Promise<void> {
    const terms = held.map(({ term }) => term)
    const missing = await this.#protocol.missing(this.#options.beats, this.id, terms)
    for (const { listener, term } of held) {
      if (!missing.has(term.lease) || !this.#listeners.has(listener)) continue
      listener.lost('forgotten', why)
      // An earlier term of ours, whose end is lost too.
      const token = missing.get(term.lease)
      if (token !== undefined) this.#options.giveBack({ ...term, token })
    }
  }

  async #giveBackStrays(): Promise<void> {
    // What is still being asked for may be granted now, and is no stray.
    const settled = [...this.#asking].reduce((least, { after }) => Math.min(least, after), this.#attempt)
    // What was answered before is held, waited for or given back by then.
    await new Promise<void>((resolve) => setImmediate(resolve))
    const before = this.#known()
    const strays = await this.#protocol.strays(this.id, [...before.leases], settled)
    const { leases, tickets } = this.#known()
    for (const { term, ticket } of strays) {
      const isWaitedFor = ticket !== undefined && (before.tickets.has(ticket) || tickets.has(ticket))
      if (!leases.has(term.lease) && !isWaitedFor) this.#options.giveBack(term)
    }
  }

  /** The leases that are held, and the places in line for others. */
  #known(): { readonly leases: Set<string>; readonly tickets: Set<string> } {
    const listeners = [...this.#listeners]
    return {
      leases: new Set(listeners.flatMap(({ term }) => term?.lease ?? [])),
      tickets: new Set(listeners.flatMap(({ place }) => place?.ticket ?? [])),
    }
  }

  /** Ends the row, so that all its leases are free at once. */
  async end(): Promise<void> {
    this.lose('closed')
    await this.#protocol.end(this.id)
  }

  /** The number of the next attempt to acquire. */
  nextAttempt(): number {
    this.#attempt += 1
    return this.#attempt
  }

  /** Somebody asks for a lease from now on, with a later attempt than those until now. The returned function: he has his answer. */
  startAsking(): () => void {
    const asking = { after: this.#attempt }
    this.#asking.add(asking)
    return () => void this.#asking.delete(asking)
  }

  /**
   * An attempt's answer was lost: it may have granted, or may still do so. It is closed in the background and before
   * the next attempt, whichever comes first.
   */
  leaveUnsettled(attempt: number, names: readonly string[]): void {
    this.#unsettled = [...this.#unsettled, ...names.map((name) => ({ name, attempt }))]
    this.#settleLater(1)
  }

  async settle(): Promise<void> {
    while (this.#unsettled.length > 0) {
      const open = this.#unsettled
      // oxlint-disable-next-line no-await-in-loop -- What comes meanwhile is a question of its own, asked after this one.
      await this.#protocol.settle(this.id, open)
      this.#unsettled = this.#unsettled.filter((one) => !open.includes(one))
      this.#options.onSettled()
    }
  }

  #settleLater(tries: number): void {
    this.#cancelSettling()
    this.#cancelSettling = this.#clock.after(beatRetryMs(this.ttlMs, tries, Math.random()), () => {
      if (this.#unsettled.length === 0 || this.#loss !== undefined) return
      this.settle().catch((error: unknown) => {
        this.#logger.debug(`fencepost: an unanswered acquire could not be settled yet: ${String(error)}`)
        this.#settleLater(tries + 1)
      })
    })
  }

  #standing(): 'trusted' | 'doubtful' | 'over' {
    if (this.#loss !== undefined || this.#trust === undefined) return 'over'
    const now = this.#now()
    if (trustLeftMs(this.#trust, now) <= 0) {
      // The deadline's timer may be late. The signal must not be: it fires right after the caller's current step.
      queueMicrotask(() => this.#checkDeadline())
      return 'over'
    }
    if (!isDoubtful(this.#trust, now)) return 'trusted'
    queueMicrotask(() => this.#doubt())
    return 'doubtful'
  }

  #now(): Moment {
    return { monotonicMs: this.#clock.monotonicMs(), wallMs: this.#clock.wallMs() }
  }

  #confirm(sentAt: Moment): void {
    this.#trust = trustFrom(sentAt, this.ttlMs)
    this.#failures = 0
    this.#isAtRisk = false
    this.#cancelDeadline()
    this.#cancelDeadline = this.#clock.after(trustLeftMs(this.#trust, this.#now()), () =>
      this.#checkDeadline(),
    )
    this.#beatIn(sentAt.monotonicMs + beatEveryMs(this.ttlMs) - this.#clock.monotonicMs())
  }

  #beatIn(delayMs: number): void {
    this.#cancelBeat()
    if (this.#loss !== undefined) return
    this.#cancelBeat = this.#clock.after(delayMs, () => void this.#beat())
  }

  /** Past the deadline the holder is lost, before anything else is tried. */
  #checkDeadline(): boolean {
    if (this.#loss !== undefined || this.#trust === undefined) return true
    if (trustLeftMs(this.#trust, this.#now()) > 0) return false
    this.lose('expired')
    return true
  }

  /** The wall clock says that the time is over, the monotonic clock does not: ask the database now. */
  #doubt(): void {
    // While it is at risk the next beat is on its way or its retry is due.
    if (this.#isBeating || this.#isAtRisk || this.#loss !== undefined) return
    this.#risk(new Error('the wall clock has run past the end of the lease'))
    void this.#beat()
  }

  async #beat(): Promise<void> {
    if (this.#isBeating || this.#checkDeadline()) return
    if (this.#listeners.size === 0 && this.#options.isSpare()) return
    this.#isBeating = true
    const sentAt = this.#now()
    try {
      // A hung connection must leave time for another one. Connecting takes several round trips and may take longer.
      const { beats } = this.#options
      const timeoutMs = Math.min(beats.isOpen ? beatTimeoutMs(this.ttlMs) : this.ttlMs / 2, this.trustLeftMs)
      const isAlive = await this.#protocol.beat(beats, this.id, timeoutMs)
      // An answer that comes after the old deadline does not bring the trust back.
      if (this.#checkDeadline()) return
      if (isAlive) {
        this.#confirm(sentAt)
        for (const listener of [...this.#renewalListeners]) listener()
        this.#options.onBeat(sentAt.monotonicMs)
      } else this.lose('ended')
    } catch (error) {
      if (this.#checkDeadline()) return
      this.#failures += 1
      const cause = error instanceof RequestFailure ? error.cause : error
      this.#risk(cause)
      this.#beatIn(beatRetryMs(this.ttlMs, this.#failures, Math.random()))
    } finally {
      this.#isBeating = false
    }
  }

  #risk(cause: unknown): void {
    const isNew = !this.#isAtRisk
    this.#isAtRisk = true
    if (!isNew) return
    this.#logger.warn(
      `fencepost: a heartbeat failed, ${Math.round(this.trustLeftMs)} ms left: ${String(cause)}`,
    )
    for (const listener of [...this.#listeners]) listener.atRisk(this.trustLeftMs, cause)
  }

  #endInDatabase(): void {
    // Best effort: whoever wants one of the leases ends an expired holder anyway.
    this.#protocol.end(this.id).catch((error: unknown) => {
      this.#logger.debug(`fencepost: an expired holder could not be ended: ${String(error)}`)
    })
  }
}
