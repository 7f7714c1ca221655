import type { Clock } from '../clock.ts'

/** The caller is not ready to wait any longer. Internal: callers see NotAcquiredError or the signal's reason. */
export class PatienceOver extends Error {}

/** How long a caller is ready to wait: until a limit passes or a signal aborts. */
export class Patience {
  readonly #clock: Clock
  readonly #startedMs: number
  readonly #waitMs: number
  readonly #waiting = new Set<(reason: unknown) => void>()
  #over: { readonly reason: unknown } | undefined
  #stop: () => void = () => {}

  /** `waitMs` may be Infinity; with 0 there is no limit, because the caller does not wait at all. */
  constructor(clock: Clock, waitMs: number, signal: AbortSignal) {
    this.#clock = clock
    this.#startedMs = clock.monotonicMs()
    this.#waitMs = waitMs
    const onAbort = (): void => this.#end(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
    const cancelLimit =
      waitMs > 0 && waitMs < Number.POSITIVE_INFINITY
        ? clock.after(waitMs, () => this.#end(new PatienceOver()))
        : () => {}
    this.#stop = () => {
      cancelLimit()
      signal.removeEventListener('abort', onAbort)
    }
    if (signal.aborted) onAbort()
  }

  get waitedMs(): number {
    return this.#clock.monotonicMs() - this.#startedMs
  }

  get leftMs(): number {
    return Math.max(0, this.#waitMs - this.waitedMs)
  }

  get isOver(): boolean {
    return this.#over !== undefined
  }

  /** The promise's outcome, unless the caller's patience ends first. */
  async within<T>(promise: Promise<T>): Promise<T> {
    // Not Promise.race with one lasting promise: every race would leave something behind on it until it settles.
    const { promise: outcome, resolve, reject } = Promise.withResolvers<T>()
    if (this.#over !== undefined) reject(this.#over.reason)
    this.#waiting.add(reject)
    promise.then(resolve, reject)
    try {
      return await outcome
    } finally {
      this.#waiting.delete(reject)
    }
  }

  async sleep(ms: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    const cancel = this.#clock.after(ms, resolve)
    try {
      await this.within(promise)
    } finally {
      cancel()
    }
  }

  /** Lets go of timers and the signal. */
  done(): void {
    this.#stop()
  }

  #end(reason: unknown): void {
    if (this.#over !== undefined) return
    this.#over = { reason }
    this.#stop()
    for (const reject of [...this.#waiting]) reject(reason)
  }
}
