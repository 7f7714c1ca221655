import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import type { Clock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import { RequestFailure, describeFailure, isTransient } from '../database/failure.ts'
import { FencepostError, NotAcquiredError, SequenceMismatchError, type Contender } from '../errors.ts'
import type { Logger } from '../logger.ts'
import { Batcher } from './batcher.ts'
import type { HeldLease, HeldLeaseOptions, ReleaseOutcome } from './held-lease.ts'
import { Holder } from './holder.ts'
import {
  type AcquireAnswer,
  type HolderIdentity,
  type Protocol,
  type ReleaseAnswer,
  isHolderGone,
} from './protocol.ts'
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
  connectBeats(): Connection
  /** Makes the handle that callers get. */
  createLease(options: HeldLeaseOptions): L
}

/** A holder with the batches of requests that are made in its name. */
interface Seat {
  readonly holder: Holder
  readonly beats: Connection
  /** Terms given back, by name, and when that was answered: the answer is not durable until a later beat is. */
  readonly givenBack: Map<string, { readonly term: Term; readonly atMs: number }>
  readonly joined: Promise<void>
  readonly acquires: Map<string, Batcher<string, AcquireAnswer>>
  readonly releases: Batcher<Term, ReleaseAnswer>
}

/** A caller with a shorter limit still waits so long for the first answer. */
const firstAnswerMs = 1000

/** An attempt whose holder turned out to be gone is made again under a new one, so often at most. */
const maxRejoins = 5

/** Takes leases and gives them back: the one door of this room. */
export class LeaseClient<L extends HeldLease> {
  readonly #options: LeaseClientOptions<L>
  readonly #seats = new Map<number, Seat>()
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
    await Promise.all(
      seats.map(async ({ holder, beats, joined }) => {
        await joined.catch(() => {})
        await holder.end().catch((error: unknown) => {
          this.#options.logger.warn(
            `fencepost: a holder could not be ended, its leases expire: ${String(error)}`,
          )
        })
        await beats.close()
      }),
    )
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
        ? new NotAcquiredError(name, 0, this.#ownContender())
        : await this.#contend(request, turn, patience, stop)
    } catch (error) {
      if (!(error instanceof PatienceOver)) throw error
      return new NotAcquiredError(name, patience.waitedMs, this.#ownContender())
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
      const attempt = this.#attempt(request, turn)
      // However short the wait is, a healthy database gets the time to say whether the lease is free.
      const isShort = tries === 1 && request.waitMs > 0 && request.waitMs < firstAnswerMs
      const asking = isShort ? new Patience(this.#options.clock, firstAnswerMs, stop) : patience
      try {
        const outcome = await asking.within(attempt)
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
        const answer = await this.#acquires(seat, request.sequence).add(request.name)
        if (!answer.isGranted) return answer
        const term: Term = {
          lease: request.name,
          token: answer.token,
          holderId: seat.holder.id,
          sequence: request.sequence,
        }
        // A grant is durable, and with it the release that came before.
        seat.givenBack.delete(request.name)
        if (seat.holder.isAlive) return { lease: this.#lease(term, seat, turn) }
        // The answer came too late to be trusted. The holder is ended, and the term with it.
        seat.holder.lose('expired')
        if (rejoins >= maxRejoins)
          throw new RequestFailure('refused', new Error('every answer came too late'))
      } catch (error) {
        if (!isHolderGone(error) || rejoins >= maxRejoins) throw error
        seat.holder.lose('ended', error)
      }
    }
  }

  #lease(term: Term, seat: Seat, turn: Turn): L {
    return this.#options.createLease({
      term,
      holder: seat.holder,
      logger: this.#options.logger,
      giveBack: () => this.#giveBack(term, seat),
      onOver: () => turn.leave(),
    })
  }

  /** Asks until it is known, or until the TTL has passed without an answer. Then it goes on asking quietly. */
  async #giveBack(term: Term, seat: Seat): Promise<ReleaseOutcome> {
    const { clock } = this.#options
    const startedMs = clock.monotonicMs()
    const { promise, resolve } = Promise.withResolvers<ReleaseOutcome>()
    let sleepMs = 10
    let isUnsure = false
    const ask = async (): Promise<void> => {
      try {
        const answer = await seat.releases.add(term)
        // While our holder lives nobody else can have freed it: an earlier request did, and its answer was lost.
        if (answer === 'released' || (answer === 'not_held' && isUnsure && seat.holder.isAlive)) {
          seat.givenBack.set(term.lease, { term, atMs: clock.monotonicMs() })
          return resolve('released')
        }
        if (answer === 'not_held') return resolve('not-held')
      } catch (error) {
        isUnsure = true
        this.#options.logger.debug(
          `fencepost: release of lease "${term.lease}" is sent again: ${String(error)}`,
        )
        if (clock.monotonicMs() - startedMs >= seat.holder.ttlMs) resolve('unknown')
      }
      if (seat.holder.isLost) return resolve('unknown')
      clock.after(sleepMs, () => void ask())
      sleepMs = Math.min(sleepMs * 2, 500)
    }
    void ask()
    return promise
  }

  /**
   * A release commits without waiting for the disk, so a crash of the server can undo it, and this holder, which lives
   * on, would keep the lease that nobody holds any more. The beat was durable, and with it every release answered before
   * it was sent; unless a crash came in between. So they are asked for once more: "not held" settles it.
   */
  async #confirmGivenBack(ttlMs: number, sentAtMs: number): Promise<void> {
    const seat = this.#seats.get(ttlMs)
    if (seat === undefined) return
    const older = [...seat.givenBack.values()].filter(({ atMs }) => atMs < sentAtMs)
    await Promise.all(
      older.map(async ({ term }) => {
        const answer = await seat.releases.add(term).catch(() => 'unknown' as const)
        if (seat.givenBack.get(term.lease)?.term !== term) return
        if (answer === 'not_held') seat.givenBack.delete(term.lease)
        else if (answer === 'released') {
          seat.givenBack.set(term.lease, { term, atMs: this.#options.clock.monotonicMs() })
        }
      }),
    )
  }

  async #seat(ttlMs: number): Promise<Seat> {
    let seat = this.#seats.get(ttlMs)
    if (seat === undefined || seat.holder.isLost) {
      this.#assertOpen()
      seat = this.#newSeat(ttlMs)
      this.#seats.set(ttlMs, seat)
      const created = seat
      // The next caller joins anew; those who wait for this one are told.
      created.joined.catch(() => created.holder.lose('expired'))
    }
    await seat.joined
    return seat
  }

  #newSeat(ttlMs: number): Seat {
    const { protocol, clock, logger, identity } = this.#options
    // The next holder of this TTL takes the connection over: it may well be what still works.
    const beats = this.#seats.get(ttlMs)?.beats ?? this.#options.connectBeats()
    const holder = new Holder({
      identity: { id: randomUUID(), ...identity },
      ttlMs,
      protocol,
      clock,
      logger,
      beats,
      onBeat: (sentAtMs) => void this.#confirmGivenBack(ttlMs, sentAtMs),
    })
    return {
      holder,
      beats,
      givenBack: new Map(),
      joined: holder.join(),
      acquires: new Map(),
      releases: new Batcher((terms) =>
        protocol.release(
          terms.map((term) => term.lease),
          terms.map((term) => term.token),
          holder.id,
        ),
      ),
    }
  }

  #acquires(seat: Seat, sequence: string): Batcher<string, AcquireAnswer> {
    let batcher = seat.acquires.get(sequence)
    if (batcher === undefined) {
      batcher = new Batcher((names) => this.#sendAcquire(seat.holder, names, sequence))
      seat.acquires.set(sequence, batcher)
    }
    return batcher
  }

  async #sendAcquire(holder: Holder, names: string[], sequence: string): Promise<AcquireAnswer[]> {
    await holder.settle()
    const attempt = holder.nextAttempt()
    try {
      return await this.#options.protocol.acquire(names, holder.id, attempt, sequence)
    } catch (error) {
      if (error instanceof RequestFailure && error.effect === 'unknown') holder.leaveUnsettled(attempt, names)
      throw error
    }
  }

  #ownContender(): Contender {
    const { label, host, pid } = this.#options.identity
    return { label, host, pid, since: undefined, remainingMs: undefined }
  }

  #assertOpen(): void {
    this.#closing.signal.throwIfAborted()
  }
}
