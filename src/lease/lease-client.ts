import { randomUUID } from 'node:crypto'
import type { Clock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import type { Listener } from '../database/listener.ts'
import { RequestFailure, describeFailure } from '../database/failure.ts'
import { formatMs } from '../duration.ts'
import { type FencepostError, NotAcquiredError } from '../errors.ts'
import type { Logger } from '../logger.ts'
import { AllLeases } from './all-leases.ts'
import { type Outcome, contend, firstAnswerMs } from './contend.ts'
import type { HeldLease, HeldLeaseOptions } from './held-lease.ts'
import { Line } from './line.ts'
import { OneLease, leaveTurn } from './one-lease.ts'
import { Patience, PatienceOver } from './patience.ts'
import { type HolderIdentity, type Protocol, isHolderGone, isVoided } from './protocol.ts'
import type { AcquireRequest, LeaseRoom } from './lease-room.ts'
import { type Grant, Seat } from './seat.ts'
import type { Standing } from './standing.ts'
import type { Term } from './term.ts'
import type { Wakes } from './wakes.ts'

export interface LeaseClientOptions<L extends HeldLease> {
  readonly protocol: Protocol
  readonly clock: Clock
  readonly logger: Logger
  readonly identity: Omit<HolderIdentity, 'id'>
  readonly wakes: Wakes
  /** Brings wake-ups from other processes; undefined: waiters ask about once a second. */
  readonly listener: Listener | undefined
  /** A connection for one holder's beats. */
  readonly connectBeats: () => Connection
  /** Makes the handle that callers get. */
  createLease(options: HeldLeaseOptions): L
}

/** An attempt whose holder turned out to be gone is made again under a new one, so often at most. */
const maxRejoins = 5

/** Takes leases and gives them back: the one door of this room. */
export class LeaseClient<L extends HeldLease> implements LeaseRoom<L> {
  readonly #options: LeaseClientOptions<L>
  readonly #seats = new Map<number, Seat>()
  /** Seats from before a failover, which keep what they hold and are given nothing more. */
  readonly #outgoing = new Set<Seat>()
  readonly #retiring = new Set<Promise<void>>()
  readonly #line = new Line<Standing>((turn) => void leaveTurn(turn, turn.legacy, this.clock.monotonicMs()))
  /** Callers whose requests are under way. */
  readonly #patients = new Set<Patience>()
  #closed: { readonly reason: FencepostError } | undefined

  constructor(options: LeaseClientOptions<L>) {
    this.#options = options
  }

  /** One attempt; null when somebody else holds one of the leases, in this process or in another. */
  async tryAcquire(request: AcquireRequest): Promise<L[] | null> {
    const leases = await this.#acquire({ ...request, waitMs: 0 })
    return leases instanceof NotAcquiredError ? null : leases
  }

  /**
   * Waits for its turn in this process and then for the leases. They are in the order of the names.
   *
   * @throws NotAcquiredError when the limit passed; the reason of the caller's signal when it aborted.
   */
  async acquire(request: AcquireRequest): Promise<L[]> {
    const leases = await this.#acquire(request)
    if (leases instanceof NotAcquiredError) throw leases
    return leases
  }

  /** The database is another server than before, for this reason: it may not know all that is held here or waited for. */
  databaseMoved(why: Error): void {
    for (const [ttlMs, seat] of this.#seats) {
      if (seat.holder.isLost) continue
      // A counter may give the number of a lost grant once more. Given to another holder, it makes another term.
      this.#seats.delete(ttlMs)
      this.#outgoing.add(seat)
    }
    this.#forgetLost()
    for (const { holder } of this.#outgoing) holder.lookUpTerms(why)
    this.wakes.askAnew()
  }

  /** Ends every holder, so that all leases are free at once; those still held are lost. Waiting callers are refused. */
  async close(reason: FencepostError): Promise<void> {
    this.#closed ??= { reason }
    for (const patient of [...this.#patients]) patient.end(reason)
    const seats = [...this.#seats.values(), ...this.#outgoing]
    this.#seats.clear()
    this.#outgoing.clear()
    // Those who waited get to say that they leave.
    await new Promise<void>((resolve) => setImmediate(resolve))
    await Promise.all([...seats.map((seat) => seat.close()), ...this.#retiring])
  }

  async #acquire(request: AcquireRequest): Promise<L[] | NotAcquiredError> {
    const { names, waitMs, signal } = request
    this.#assertOpen()
    signal?.throwIfAborted()
    const { logger } = this.#options
    const patience = new Patience(this.clock, waitMs, signal, this.#patients)
    try {
      if (names.length > 1) {
        return await contend({ request, suitor: new AllLeases(this, request, patience), patience, logger })
      }
      const name = names[0]!
      let turn = this.#line.tryEnter(name, waitMs === 0 && request.asking.barges)
      if (turn === undefined && waitMs > 0) turn = await this.#line.enter(name, patience)
      if (turn === undefined) return this.#busyHere(name, patience)
      const suitor = new OneLease(this, request, turn, patience)
      if (waitMs > 0 && patience.leftMs < firstAnswerMs)
        return await contend({ request, suitor, patience, logger })
      // Mostly it is granted at once. What else there is to do takes more than this does.
      const attempt = suitor.ask()
      const leases = await patience.within(attempt).then(leasesOf, () => undefined)
      return leases ?? (await contend({ request, suitor, patience, logger, attempt }))
    } catch (error) {
      if (error instanceof PatienceOver) return this.#busyHere(names[0]!, patience)
      throw error
    } finally {
      patience.done()
    }
  }

  /** Somebody in this process has the lease or asks for it. Unless that one gets no answer, in which case nobody knows. */
  #busyHere(name: string, patience: Patience): NotAcquiredError {
    const silentMs = this.#line.silentForMs(name, this.clock.monotonicMs())
    if (silentMs < firstAnswerMs) {
      const { label, host, pid } = this.#options.identity
      const own = { isInLine: false, label, host, pid, since: undefined, remainingMs: undefined }
      return new NotAcquiredError(name, patience.waitedMs, this.#line.contender(name) ?? own)
    }
    const silence = new Error(`it has owed an answer for ${Math.round(silentMs)} ms`)
    throw describeFailure(new RequestFailure('unsent', silence), `acquire lease "${name}"`)
  }

  get clock(): Clock {
    return this.#options.clock
  }

  get wakes(): Wakes {
    return this.#options.wakes
  }

  get isListening(): boolean {
    return this.#options.listener?.isListening === true
  }

  listen(): () => void {
    return this.#options.listener?.listen() ?? (() => {})
  }

  async underLivingHolder<T>(ttlMs: number, ask: () => Promise<T | undefined>): Promise<T> {
    for (let rejoins = 0; ; rejoins += 1) {
      try {
        // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
        const outcome = await ask()
        if (outcome !== undefined) return outcome
        if (rejoins >= maxRejoins) throw new RequestFailure('refused', new Error(tooLate(ttlMs)))
      } catch (error) {
        if (rejoins >= maxRejoins) throw error
        // Voided together with an attempt whose answer was lost: another one is made.
        if (isVoided(error)) continue
        if (!isHolderGone(error)) throw error
      }
    }
  }

  take(
    seat: Seat,
    names: readonly string[],
    grants: readonly Grant[],
    { asking: { sequence } }: AcquireRequest,
  ): L[] | undefined {
    if (!seat.holder.isAlive) {
      // The holder is ended, and the terms with it.
      seat.holder.lose('expired')
      return undefined
    }
    const terms = names.map((lease, index): Term => {
      return { lease, token: grants[index]!.token, holderId: seat.holder.id, sequence }
    })
    const nowMs = this.clock.monotonicMs()
    if (grants.some(({ deadlineMs }) => deadlineMs <= nowMs)) {
      // A maximum hold has passed on the way.
      for (const term of terms) void seat.giveBack(term)
      return undefined
    }
    return terms.map((term, index) => {
      const over = this.#line.hold(term.lease)
      return this.#options.createLease({
        term,
        holder: seat.holder,
        clock: this.clock,
        logger: this.#options.logger,
        deadlineMs: grants[index]!.deadlineMs,
        giveBack: () => seat.giveBack(term),
        limit: (withinMs) => seat.limit(term, withinMs),
        onOver: over,
      })
    })
  }

  seat(ttlMs: number): Promise<Seat> {
    let seat = this.#seats.get(ttlMs)
    if (seat === undefined || seat.holder.isLost) {
      this.#assertOpen()
      this.#forgetLost()
      const { protocol, clock, logger, identity, connectBeats } = this.#options
      seat = new Seat({
        identity: { id: randomUUID(), ...identity },
        ttlMs,
        protocol,
        clock,
        logger,
        // The next holder of this TTL takes the connection over: it may well be what still works.
        beats: seat?.beats ?? connectBeats(),
        retire: (spare) => this.#retire(spare, ttlMs),
        onSettled: (holderId) => this.wakes.askAll(holderId),
      })
      this.#seats.set(ttlMs, seat)
    }
    return seat.whenJoined
  }

  /** A TTL that nobody uses any more keeps neither a holder nor a connection. The last one stays, to be quick again. */
  #retire(seat: Seat, ttlMs: number): boolean {
    if (!this.#outgoing.delete(seat)) {
      if (this.#seats.size < 2 || this.#seats.get(ttlMs) !== seat) return false
      this.#seats.delete(ttlMs)
    }
    const closing = seat.close().finally(() => this.#retiring.delete(closing))
    this.#retiring.add(closing)
    return true
  }

  /** Nobody takes the connections of these over. */
  #forgetLost(): void {
    for (const seat of [...this.#outgoing].filter(({ holder }) => holder.isLost)) {
      this.#outgoing.delete(seat)
      void seat.beats.close()
    }
  }

  #assertOpen(): void {
    if (this.#closed !== undefined) throw this.#closed.reason
  }
}

function leasesOf<L>({ leases }: Outcome<L>): L[] | undefined {
  return leases
}

function tooLate(ttlMs: number): string {
  return (
    `it was granted, but each answer came later than a TTL of ${formatMs(ttlMs)} allows, so it was given up. Use a longer ` +
    'TTL, or find out why the database is slow'
  )
}
