import type { Clock } from '../clock.ts'
import { FencepostError } from '../errors.ts'
import type { ResourceSession } from './resource-session.ts'

/**
 * A request that was let in. Until it leaves, no request with a newer token is let in to the resource, so what its handler
 * writes comes before whatever they write. Leave as soon as the writing is done: `await using`, or `leave()` in a `finally`.
 */
export class Passage implements AsyncDisposable {
  readonly resource: string
  /** The token of the request. Hand it on to a store that can compare it itself. */
  readonly token: bigint
  readonly #session: ResourceSession
  readonly #lost = new AbortController()
  readonly #cancelTimer: () => void
  readonly #onLeft: () => void
  #leaving: Promise<boolean> | undefined

  /** @internal */
  constructor(
    session: ResourceSession,
    resource: string,
    token: bigint,
    timer: { readonly clock: Clock; readonly leftMs: number },
    onLeft: () => void,
  ) {
    this.#session = session
    this.resource = resource
    this.token = token
    this.#onLeft = onLeft
    this.#cancelTimer = timer.clock.after(timer.leftMs, () => this.#lose('the time it may take is up'))
    session.onLoss(() => this.#lose('its connection to the database was lost'))
  }

  /**
   * Aborts before a request with a newer token is let in although this one has not left: when its time is up, and when the
   * connection to the database is lost. Stop writing then. As with a lease, a process that is paused hears of it late.
   */
  get signal(): AbortSignal {
    return this.#lost.signal
  }

  /**
   * Lets newer tokens in. True when they were kept out until now; false when that cannot be said, so that what was written may
   * have come after what a newer token has written. Never throws; further calls get the same answer.
   */
  leave(): Promise<boolean> {
    this.#leaving ??= this.#leave()
    return this.#leaving
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.leave()
  }

  async #leave(): Promise<boolean> {
    this.#cancelTimer()
    try {
      return await this.#session.close()
    } finally {
      this.#onLeft()
    }
  }

  #lose(why: string): void {
    if (this.#leaving !== undefined || this.#lost.signal.aborted) return
    this.#lost.abort(
      new FencepostError(
        'PASSAGE_LOST',
        `the request with token ${this.token} no longer keeps newer ones out of "${this.resource}": ${why}. Write nothing more.`,
      ),
    )
  }
}
