import type { Connection } from '../database/connection.ts'
import { RequestFailure } from '../database/failure.ts'
import { Batcher } from './batcher.ts'
import type { ReleaseOutcome } from './held-lease.ts'
import { Holder, type HolderOptions } from './holder.ts'
import type { AcquireAllAnswer, AcquireAnswer, ReleaseAnswer } from './protocol.ts'
import type { Term } from './term.ts'

export interface SeatOptions extends Omit<HolderOptions, 'onBeat' | 'isSpare'> {
  /** Asked at the time of a beat whether a seat that nobody uses may go. True: it is being closed. */
  retire(seat: Seat): boolean
}

/** A holder, and the requests that are made in its name: gathered into batches, and followed until they are known. */
export class Seat {
  readonly holder: Holder
  readonly #options: SeatOptions
  readonly #joined: Promise<void>
  /** One batch per token sequence, because a call draws from one. */
  readonly #acquires = new Map<string, Batcher<string, AcquireAnswer>>()
  readonly #releases: Batcher<Term, ReleaseAnswer>
  /** Requests that are under way. */
  #inUse = 0
  /** Terms given back, by name, and when that was answered: the answer is not durable until a later beat is. */
  readonly #givenBack = new Map<string, { readonly term: Term; readonly atMs: number }>()

  /** Joins at once. */
  constructor(options: SeatOptions) {
    const { protocol, identity } = options
    this.#options = options
    this.holder = new Holder({
      ...options,
      onBeat: (sentAtMs) => void this.#confirmGivenBack(sentAtMs),
      isSpare: () => this.#inUse === 0 && options.retire(this),
    })
    this.#releases = new Batcher((terms) =>
      protocol.release(
        terms.map((term) => term.lease),
        terms.map((term) => term.token),
        identity.id,
      ),
    )
    this.#joined = this.holder.join()
    // Who waits for it is told; whoever comes later takes another seat.
    this.#joined.catch(() => this.holder.lose('expired'))
  }

  get beats(): Connection {
    return this.#options.beats
  }

  /** Settles when the holder has joined. */
  get joined(): Promise<void> {
    return this.#joined
  }

  /** Ends the holder, so that its leases are free at once, and closes the connection of its beats. */
  async close(): Promise<void> {
    await this.#joined.catch(() => {})
    await this.holder.end().catch((error: unknown) => {
      this.#options.logger.warn(`fencepost: a holder could not be ended, its leases expire: ${String(error)}`)
    })
    await this.beats.close()
  }

  /** Asks for a lease, together with all who ask meanwhile. */
  async acquire(name: string, sequence: string): Promise<AcquireAnswer> {
    let batcher = this.#acquires.get(sequence)
    if (batcher === undefined) {
      batcher = new Batcher((names) => this.#sendAcquire(names, sequence))
      this.#acquires.set(sequence, batcher)
    }
    this.#inUse += 1
    try {
      const answer = await batcher.add(name)
      // A grant is durable, and with it the release that came before.
      if (answer.isGranted) this.#givenBack.delete(name)
      return answer
    } finally {
      this.#inUse -= 1
    }
  }

  /** Asks for all of the leases or none, in a call of its own. */
  async acquireAll(names: readonly string[], sequence: string): Promise<AcquireAllAnswer> {
    this.#inUse += 1
    try {
      const { protocol } = this.#options
      const answer = await this.#attempt(names, (attempt) =>
        protocol.acquireAll(names, this.holder.id, attempt, sequence),
      )
      if (answer.isGranted) for (const name of names) this.#givenBack.delete(name)
      return answer
    } finally {
      this.#inUse -= 1
    }
  }

  /** Asks until it is known, or until the TTL has passed without an answer. Then it goes on asking quietly. */
  async giveBack(term: Term): Promise<ReleaseOutcome> {
    this.#inUse += 1
    try {
      return await this.#release(term)
    } finally {
      this.#inUse -= 1
    }
  }

  #release(term: Term): Promise<ReleaseOutcome> {
    const { clock, logger, ttlMs } = this.#options
    const startedMs = clock.monotonicMs()
    const { promise, resolve } = Promise.withResolvers<ReleaseOutcome>()
    let sleepMs = 10
    let isUnsure = false
    const ask = async (): Promise<void> => {
      try {
        const answer = await this.#releases.add(term)
        // While our holder lives nobody else can have freed it: an earlier request did, and its answer was lost.
        if (answer === 'released' || (answer === 'not_held' && isUnsure && this.holder.isAlive)) {
          this.#givenBack.set(term.lease, { term, atMs: clock.monotonicMs() })
          return resolve('released')
        }
        if (answer === 'not_held') return resolve(isUnsure ? 'unknown' : 'not-held')
      } catch (error) {
        isUnsure = true
        logger.debug(`fencepost: release of lease "${term.lease}" is sent again: ${String(error)}`)
        if (clock.monotonicMs() - startedMs >= ttlMs) resolve('unknown')
      }
      if (this.holder.isLost) return resolve('unknown')
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
  async #confirmGivenBack(sentAtMs: number): Promise<void> {
    const older = [...this.#givenBack.values()].filter(({ atMs }) => atMs < sentAtMs)
    await Promise.all(
      older.map(async ({ term }) => {
        const answer = await this.#releases.add(term).catch(() => 'unknown' as const)
        if (this.#givenBack.get(term.lease)?.term !== term) return
        if (answer === 'not_held') this.#givenBack.delete(term.lease)
        else if (answer === 'released') {
          this.#givenBack.set(term.lease, { term, atMs: this.#options.clock.monotonicMs() })
        }
      }),
    )
  }

  #sendAcquire(names: string[], sequence: string): Promise<AcquireAnswer[]> {
    return this.#attempt(names, (attempt) =>
      this.#options.protocol.acquire(names, this.holder.id, attempt, sequence),
    )
  }

  /** One numbered attempt; what it may have been granted is followed up when its answer is lost. */
  async #attempt<T>(names: readonly string[], send: (attempt: number) => Promise<T>): Promise<T> {
    await this.holder.settle()
    const attempt = this.holder.nextAttempt()
    try {
      return await send(attempt)
    } catch (error) {
      if (error instanceof RequestFailure && error.effect === 'unknown') {
        this.holder.leaveUnsettled(attempt, names)
      }
      throw error
    }
  }
}
