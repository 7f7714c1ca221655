import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import type { Clock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import { RequestFailure, describeFailure, isTransient } from '../database/failure.ts'
import { formatMs } from '../duration.ts'
import { FencepostError, NotAcquiredError, SequenceMismatchError, type Contender } from '../errors.ts'
import type { Logger } from '../logger.ts'
import type { HeldLease, HeldLeaseOptions } from './held-lease.ts'
import { type AcquireAnswer, type HolderIdentity, type Protocol, isHolderGone, isVoided } from './protocol.ts'
import { Seat } from './seat.ts'
import type { Term } from './term.ts'
import { Line, Patience, PatienceOver, type Turn, nextTryMs } from './waiting.ts'

export interface AcquireRequest {
  readonly name: string
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

  /** One attempt; null when somebody else holds the lease, in this process or in another. */
  async tryAcquire(request: AcquireRequest): Promise<L | null> {
    const lease = await this.#acquire({ ...request, waitMs: 0 })
    return lease instanceof NotAcquiredError ? null : lease
  }

  /**
   * Waits for its turn in this process and then for the lease.
   *
   * @throws NotAcquiredError when the limit passed; the reason of the caller's signal when it aborted.
   */
  async acquire(request: AcquireRequest): Promise<L> {
    const lease = await this.#acquire(request)
    if (lease instanceof NotAcquiredError) throw lease
    return lease
  }

  /** Ends every holder, so that all leases are free at once; those still held are lost. Waiting callers are refused. */
  async close(reason: FencepostError): Promise<void> {
    this.#closing.abort(reason)
    const seats = [...this.#seats.values()]
    this.#seats.clear()
    await Promise.all([...seats.map((seat) => seat.close()), ...this.#retiring])
  }

  async #acquire(request: AcquireRequest): Promise<L | NotAcquiredError> {
    const { name, waitMs, signal } = request
    const closing = this.#closing.signal
    closing.throwIfAborted()
    signal?.throwIfAborted()
    const stop = signal === undefined ? closing : AbortSignal.any([signal, closing])
    const patience = new Patience(this.#options.clock, waitMs, stop)
    try {
      const turn = waitMs === 0 ? this.#line.tryEnter(name) : await this.#line.enter(name, patience)
      return turn === undefined
        ? this.#busyHere(request, patience)
        : await this.#contend(request, turn, patience, stop)
    } catch (error) {
      if (!(error instanceof PatienceOver)) throw error
      return this.#busyHere(request, patience)
    } finally {
      patience.done()
    }
  }

  /** Tries until granted or out of patience. The turn is kept by the lease, or given up. */
  async #contend(
    request: AcquireRequest,
    turn: Turn,
    patience: Patience,
    stop: AbortSignal,
  ): Promise<L | NotAcquiredError> {
    let contender: Contender | undefined
    let failure: RequestFailure | undefined
    for (let tries = 1; ; tries += 1) {
      let pauseMs: number
      turn.asks(this.#options.clock.monotonicMs())
      const attempt = this.#attempt(request, turn)
      // However short the wait is, a healthy database gets the time to say whether the lease is free.
      const isShort = tries === 1 && request.waitMs > 0 && patience.leftMs < firstAnswerMs
      const asking = isShort ? new Patience(this.#options.clock, firstAnswerMs, stop) : patience
      try {
        const outcome = await asking.within(attempt)
        turn.isAnswered()
        if ('lease' in outcome) return outcome.lease
        contender = outcome.refusal.contender
        failure = undefined
        if (outcome.refusal.reason === 'sequence') {
          throw new SequenceMismatchError(request.name, request.sequence, contender.label ?? 'unknown')
        }
        if (request.waitMs === 0) {
          turn.leave()
          return new NotAcquiredError(request.name, patience.waitedMs, contender)
        }
        pauseMs = nextTryMs(outcome.refusal, tries, Math.random())
      } catch (error) {
        if (asking.isOver) {
          // The attempt may still be on the wire. Its lease goes straight back, and nobody else in this process asks
          // for the name before that is settled.
          void this.#abandon(attempt, turn)
          if (!(error instanceof PatienceOver)) throw error
          return this.#notAcquired(request, patience, contender, failure)
        }
        const isRequestFailure = error instanceof RequestFailure
        if (!isRequestFailure || request.waitMs === 0 || !isTransient(error)) {
          turn.leave()
          throw isRequestFailure ? describeFailure(error, `acquire lease "${request.name}"`) : error
        }
        this.#options.logger.warn(`fencepost: lease "${request.name}" is asked for again: ${error.message}`)
        failure = error
        pauseMs = Math.min(2000, 50 * 2 ** Math.min(tries, 6)) * (0.5 + Math.random() / 2)
      } finally {
        if (asking !== patience) asking.done()
      }
      try {
        await patience.sleep(pauseMs)
      } catch (impatience) {
        turn.leave()
        if (!(impatience instanceof PatienceOver)) throw impatience
        return this.#notAcquired(request, patience, contender, failure)
      }
    }
  }

  /** Somebody in this process has the lease or asks for it. Unless that one gets no answer, in which case nobody knows. */
  #busyHere({ name }: AcquireRequest, patience: Patience): NotAcquiredError {
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
    contender: Contender | undefined,
    failure: RequestFailure | undefined,
  ): NotAcquiredError {
    if (failure === undefined && contender !== undefined) {
      return new NotAcquiredError(request.name, patience.waitedMs, contender)
    }
    const silence = new Error(
      `no answer within the ${Math.round(patience.waitedMs)} ms that were to be waited`,
    )
    throw describeFailure(failure ?? new RequestFailure('unsent', silence), `acquire lease "${request.name}"`)
  }

  /** Nobody waits for this attempt any more: what it is granted goes straight back. */
  async #abandon(attempt: Promise<{ readonly lease: L } | object>, turn: Turn): Promise<void> {
    try {
      const outcome = await attempt
      if ('lease' in outcome) await outcome.lease.release()
    } catch {
      // The caller has been told that it got no lease; a request without an answer is settled by its holder.
    } finally {
      turn.leave()
    }
  }

  /** One request to the database, under a new holder when the old one is gone. */
  async #attempt(
    request: AcquireRequest,
    turn: Turn,
  ): Promise<{ readonly lease: L } | (AcquireAnswer & { readonly isGranted: false })> {
    for (let rejoins = 0; ; rejoins += 1) {
      const seat = await this.#seat(request.ttlMs)
      try {
        const answer = await seat.acquire(request.name, request.sequence)
        if (!answer.isGranted) return answer
        const term: Term = {
          lease: request.name,
          token: answer.token,
          holderId: seat.holder.id,
          sequence: request.sequence,
        }
        if (seat.holder.isAlive) return { lease: this.#lease(term, seat, turn) }
        // The answer came too late to be trusted. The holder is ended, and the term with it.
        seat.holder.lose('expired')
        if (rejoins >= maxRejoins) throw new RequestFailure('refused', new Error(tooLate(request.ttlMs)))
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
