import type { Clock } from '../clock.ts'

/** The caller is not ready to wait any longer. Internal: callers see NotAcquiredError or the signal's reason. */
export class PatienceOver extends Error {}

/** How long a caller is ready to wait: until a limit passes, a signal aborts, or everybody's patience is ended. */
export class Patience {
  readonly #clock: Clock
  readonly #waitMs: number
  readonly #signal: AbortSignal | undefined
  readonly #circle: Set<Patience> | undefined
  readonly #startedMs: number
  #waiting: ((reason: unknown) => void)[] = []
  #over: { readonly reason: unknown } | undefined
  #cancelLimit: (() => void) | undefined
  #onAbort: (() => void) | undefined

  /**
   * `waitMs` may be Infinity; with 0 there is no limit, because the caller does not wait at all. `circle`: all that wait, so that they
   * can be ended together. A listener of each on a common signal would cost more the more there are.
   */
  constructor(clock: Clock, waitMs: number, signal?: AbortSignal, circle?: Set<Patience>) {
    this.#clock = clock
    this.#waitMs = waitMs
    this.#signal = signal
    this.#circle = circle
    this.#startedMs = clock.monotonicMs()
    circle?.add(this)
    if (waitMs > 0 && waitMs < Number.POSITIVE_INFINITY) {
      this.#cancelLimit = clock.after(waitMs, () => this.end(new PatienceOver()))
    }
    if (signal !== undefined) {
      this.#onAbort = () => this.end(signal.reason)
      signal.addEventListener('abort', this.#onAbort, { once: true })
      if (signal.aborted) this.#onAbort()
    }
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

  /** Another one of the same caller, with a limit of its own that begins now. */
  anew(waitMs: number): Patience {
    const another = new Patience(this.#clock, waitMs, this.#signal, this.#circle)
    if (this.#over !== undefined) another.end(this.#over.reason)
    return another
  }

  /** The promise's outcome, unless the caller's patience ends first. */
  within<T>(promise: Promise<T>): Promise<T> {
    // Not Promise.race with one lasting promise: every race would leave something behind on it until it settles.
    return new Promise<T>((resolve, reject) => {
      if (this.#over !== undefined) reject(this.#over.reason)
      else this.#waiting.push(reject)
      promise.then(
        (value) => {
          this.#waitsNoMore(reject)
          resolve(value)
        },
        (error: unknown) => {
          this.#waitsNoMore(reject)
          reject(error)
        },
      )
    })
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

  /** Ends it at once, for this reason. */
  end(reason: unknown): void {
    if (this.#over !== undefined) return
    this.#over = { reason }
    this.done()
    const waiting = this.#waiting
    this.#waiting = []
    for (const reject of waiting) reject(reason)
  }

  /** Lets go of timers and the signal. */
  done(): void {
    this.#circle?.delete(this)
    this.#cancelLimit?.()
    if (this.#onAbort !== undefined) this.#signal?.removeEventListener('abort', this.#onAbort)
  }

  #waitsNoMore(reject: (reason: unknown) => void): void {
    const place = this.#waiting.indexOf(reject)
    if (place >= 0) this.#waiting.splice(place, 1)
  }
}
