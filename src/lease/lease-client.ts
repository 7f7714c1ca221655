import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import type { Clock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import { RequestFailure, describeFailure, isTransient } from '../database/failure.ts'
import { formatMs } from '../duration.ts'
import { FencepostError, NotAcquiredError, SequenceMismatchError, type Contender } from '../errors.ts'
import type { Logger } from '../logger.ts'
import type { HeldLease, HeldLeaseOptions } from './held-lease.ts'
import {
  type AcquireAllAnswer,
  type HolderIdentity,
  type Protocol,
  isHolderGone,
  isVoided,
} from './protocol.ts'
import { Seat } from './seat.ts'
import type { Term } from './term.ts'
import { Line, Patience, PatienceOver, type Turn, nextTryMs } from './waiting.ts'

/** What a caller asks for: one lease, or several, all or none. */
export interface AcquireRequest {
  /** Distinct. */
  readonly names: readonly string[]
  readonly ttlMs: number
  readonly sequence: string
  /** 0: one attempt. Infinity: until the signal aborts. */
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

export interface LeaseClientOptions<L extends HeldLease> {
  readonly protocol: Protocol
  readonly clock: Clock
  readonly logger: Logger
  readonly identity: Omit<HolderIdentity, 'id'>
  /** A connection for one holder's beats. */
  readonly connectBeats: () => Connection
  /** Makes the handle that callers get. */
  createLease(options: HeldLeaseOptions): L
}

/** A caller with a shorter limit still waits so long for the first answer. */
const firstAnswerMs = 1000

/** An attempt whose holder turned out to be gone is made again under a new one, so often at most. */
const maxRejoins = 5

function tooLate(ttlMs: number): string {
  return (
    `it was granted, but each answer came later than a TTL of ${formatMs(ttlMs)} allows, so it was given up. Use a longer ` +
    'TTL, or find out why the database is slow'
  )
}

/** Takes leases and gives them back: the one door of this room. */
export class LeaseClient<L extends HeldLease> {
  readonly #options: LeaseClientOptions<L>
  readonly #seats = new Map<number, Seat>()
  readonly #retiring = new Set<Promise<void>>()
  readonly #line = new Line()
  readonly #closing = new AbortController()

  constructor(options: LeaseClientOptions<L>) {
    this.#options = options
    // Every waiting caller listens to it: that is no leak to be warned of.
    setMaxListeners(0, this.#closing.signal)
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

  /** Ends every holder, so that all leases are free at once; those still held are lost. Waiting callers are refused. */
  async close(reason: FencepostError): Promise<void> {
    this.#closing.abort(reason)
    const seats = [...this.#seats.values()]
    this.#seats.clear()
    await Promise.all([...seats.map((seat) => seat.close()), ...this.#retiring])
  }

  async #acquire(request: AcquireRequest): Promise<L[] | NotAcquiredError> {
    const { waitMs, signal } = request
    const closing = this.#closing.signal
    closing.throwIfAborted()
    signal?.throwIfAborted()
    const stop = signal === undefined ? closing : AbortSignal.any([signal, closing])
    const patience = new Patience(this.#options.clock, waitMs, stop)
    try {
      const turns = await this.#enter(request, patience)
      return turns instanceof Turns
        ? await this.#contend(request, turns, patience, stop)
        : this.#busyHere(turns, patience)
    } finally {
      patience.done()
    }
  }

  /**
   * The turns of all names, or the name of one that is busy in this process when there is no patience for it. While it waits
   * for one turn it keeps no other: whoever holds that one may want the others next.
   */
  async #enter(
    request: AcquireRequest,
    patience: Patience,
    kept?: { readonly name: string; readonly turn: Turn },
  ): Promise<Turns | string> {
    let own = kept
    for (;;) {
      const turns = new Turns()
      if (own !== undefined) turns.add(own.name, own.turn)
      // Without a pause where nobody is in the way, so that callers stand in line in the order in which they asked.
      const busy = request.names.find((name) => {
        if (name === own?.name) return false
        const turn = this.#line.tryEnter(name)
        if (turn !== undefined) turns.add(name, turn)
        return turn === undefined
      })
      if (busy === undefined) return turns
      turns.leave()
      if (request.waitMs === 0) return busy
      try {
        // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
        own = { name: busy, turn: await this.#line.enter(busy, patience) }
      } catch (error) {
        if (error instanceof PatienceOver) return busy
        throw error
      }
    }
  }

  /** Tries until granted or out of patience. The turns are kept by the leases, or given up. */
  async #contend(
    request: AcquireRequest,
    entered: Turns,
    patience: Patience,
    stop: AbortSignal,
  ): Promise<L[] | NotAcquiredError> {
    let turns = entered
    let refused: { readonly name: string; readonly contender: Contender } | undefined
    let failure: RequestFailure | undefined
    for (let tries = 1; ; tries += 1) {
      let pauseMs: number
      turns.asks(this.#options.clock.monotonicMs())
      const attempt = this.#attempt(request, turns)
      // However short the wait is, a healthy database gets the time to say whether the leases are free.
      const isShort = tries === 1 && request.waitMs > 0 && patience.leftMs < firstAnswerMs
      const asking = isShort ? new Patience(this.#options.clock, firstAnswerMs, stop) : patience
      try {
        const outcome = await asking.within(attempt)
        turns.isAnswered()
        if ('leases' in outcome) return outcome.leases
        const { name, refusal } = outcome
        refused = { name, contender: refusal.contender }
        failure = undefined
        // Nobody here can have that one for now; the others are free for others.
        turns.leaveAllBut(name)
        if (refusal.reason === 'sequence') {
          throw new SequenceMismatchError(name, request.sequence, refusal.contender.label ?? 'unknown')
        }
        if (request.waitMs === 0) {
          turns.leave()
          return new NotAcquiredError(name, patience.waitedMs, refusal.contender)
        }
        pauseMs = nextTryMs(refusal, tries, Math.random())
      } catch (error) {
        if (asking.isOver) {
          // The attempt may still be on the wire. Its leases go straight back, and nobody else in this process asks
          // for the names before that is settled.
          void this.#abandon(attempt, turns)
          if (!(error instanceof PatienceOver)) throw error
          return this.#notAcquired(request, patience, refused, failure)
        }
        const isRequestFailure = error instanceof RequestFailure
        if (!isRequestFailure || request.waitMs === 0 || !isTransient(error)) {
          turns.leave()
          throw isRequestFailure ? describeFailure(error, `acquire ${show(request)}`) : error
        }
        this.#options.logger.warn(`fencepost: ${show(request)} is asked for again: ${error.message}`)
        failure = error
        pauseMs = Math.min(2000, 50 * 2 ** Math.min(tries, 6)) * (0.5 + Math.random() / 2)
      } finally {
        if (asking !== patience) asking.done()
      }
      try {
        await patience.sleep(pauseMs)
        const again = turns.isWhole ? turns : await this.#enter(request, patience, turns.kept)
        if (!(again instanceof Turns)) return this.#notAcquired(request, patience, refused, failure)
        turns = again
      } catch (impatience) {
        turns.leave()
        if (!(impatience instanceof PatienceOver)) throw impatience
        return this.#notAcquired(request, patience, refused, failure)
      }
    }
  }

  /** Somebody in this process has the lease or asks for it. Unless that one gets no answer, in which case nobody knows. */
  #busyHere(name: string, patience: Patience): NotAcquiredError {
    const silentMs = this.#line.silentForMs(name, this.#options.clock.monotonicMs())
    if (silentMs < firstAnswerMs) {
      const { label, host, pid } = this.#options.identity
      const own = { label, host, pid, since: undefined, remainingMs: undefined }
      return new NotAcquiredError(name, patience.waitedMs, own)
    }
    const silence = new Error(`it has owed an answer for ${Math.round(silentMs)} ms`)
    throw describeFailure(new RequestFailure('unsent', silence), `acquire lease "${name}"`)
  }

  /** Busy only when the database has said so: one that does not answer must not look like a lease that is held. */
  #notAcquired(
    request: AcquireRequest,
    patience: Patience,
    refused: { readonly name: string; readonly contender: Contender } | undefined,
    failure: RequestFailure | undefined,
  ): NotAcquiredError {
    if (failure === undefined && refused !== undefined) {
      return new NotAcquiredError(refused.name, patience.waitedMs, refused.contender)
    }
    const silence = new Error(
      `no answer within the ${Math.round(patience.waitedMs)} ms that were to be waited`,
    )
    throw describeFailure(failure ?? new RequestFailure('unsent', silence), `acquire ${show(request)}`)
  }

  /** Nobody waits for this attempt any more: what it is granted goes straight back. */
  async #abandon(attempt: Promise<{ readonly leases: L[] } | object>, turns: Turns): Promise<void> {
    try {
      const outcome = await attempt
      if ('leases' in outcome) await Promise.allSettled(outcome.leases.map((lease) => lease.release()))
    } catch {
      // The caller has been told that it got no lease; a request without an answer is settled by its holder.
    } finally {
      turns.leave()
    }
  }

  /** One request to the database, under a new holder when the old one is gone. */
  async #attempt(
    request: AcquireRequest,
    turns: Turns,
  ): Promise<{ readonly leases: L[] } | (AcquireAllAnswer & { readonly isGranted: false })> {
    const { names, sequence, ttlMs } = request
    // As they are now: when nobody waits any more, they are given up elsewhere.
    const held = names.map((name) => turns.of(name))
    for (let rejoins = 0; ; rejoins += 1) {
      const seat = await this.#seat(ttlMs)
      try {
        const answer = await ask(seat, names, sequence)
        if (!answer.isGranted) return answer
        if (seat.holder.isAlive) {
          const terms = names.map((lease, index): Term => {
            return { lease, token: answer.tokens[index]!, holderId: seat.holder.id, sequence }
          })
          return { leases: terms.map((term, index) => this.#lease(term, seat, held[index]!)) }
        }
        // The answer came too late to be trusted. The holder is ended, and the terms with it.
        seat.holder.lose('expired')
        if (rejoins >= maxRejoins) throw new RequestFailure('refused', new Error(tooLate(ttlMs)))
      } catch (error) {
        if (rejoins >= maxRejoins) throw error
        // Voided together with an attempt whose answer was lost: another one is made.
        if (isVoided(error)) continue
        if (!isHolderGone(error)) throw error
        seat.holder.lose('ended', error)
      }
    }
  }

  #lease(term: Term, seat: Seat, turn: Turn): L {
    return this.#options.createLease({
      term,
      holder: seat.holder,
      logger: this.#options.logger,
      giveBack: () => seat.giveBack(term),
      onOver: () => turn.leave(),
    })
  }

  async #seat(ttlMs: number): Promise<Seat> {
    let seat = this.#seats.get(ttlMs)
    if (seat === undefined || seat.holder.isLost) {
      this.#assertOpen()
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
      })
      this.#seats.set(ttlMs, seat)
    }
    await seat.joined
    return seat
  }

  /** A TTL that nobody uses any more keeps neither a holder nor a connection. The last one stays, to be quick again. */
  #retire(seat: Seat, ttlMs: number): boolean {
    if (this.#seats.size < 2 || this.#seats.get(ttlMs) !== seat) return false
    this.#seats.delete(ttlMs)
    const closing = seat.close().finally(() => this.#retiring.delete(closing))
    this.#retiring.add(closing)
    return true
  }

  #assertOpen(): void {
    this.#closing.signal.throwIfAborted()
  }
}

/** One lease travels with others that are asked for meanwhile; several that belong together are a call of their own. */
async function ask(seat: Seat, names: readonly string[], sequence: string): Promise<AcquireAllAnswer> {
  const [name] = names
  if (names.length > 1 || name === undefined) return seat.acquireAll(names, sequence)
  const answer = await seat.acquire(name, sequence)
  return answer.isGranted ? { isGranted: true, tokens: [answer.token] } : { ...answer, name }
}

function show({ names }: AcquireRequest): string {
  const list = names
    .slice(0, 3)
    .map((name) => `"${name}"`)
    .join(', ')
  if (names.length === 1) return `lease ${list}`
  return names.length > 3 ? `leases ${list} and ${names.length - 3} more` : `leases ${list}`
}

/** The turns of one caller, by name. */
class Turns {
  readonly #turns = new Map<string, Turn>()
  #kept: { readonly name: string; readonly turn: Turn } | undefined

  add(name: string, turn: Turn): void {
    this.#turns.set(name, turn)
  }

  of(name: string): Turn {
    return this.#turns.get(name)!
  }

  /** False when some have been left and one was kept. */
  get isWhole(): boolean {
    return this.#kept === undefined
  }

  get kept(): { readonly name: string; readonly turn: Turn } | undefined {
    return this.#kept
  }

  asks(nowMs: number): void {
    for (const turn of this.#turns.values()) turn.asks(nowMs)
  }

  isAnswered(): void {
    for (const turn of this.#turns.values()) turn.isAnswered()
  }

  leave(): void {
    for (const turn of this.#turns.values()) turn.leave()
  }

  leaveAllBut(name: string): void {
    const turn = this.#turns.get(name)
    if (turn === undefined || this.#turns.size === 1) return
    for (const other of this.#turns.values()) if (other !== turn) other.leave()
    this.#kept = { name, turn }
  }
}
