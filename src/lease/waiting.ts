import type { Clock } from '../clock.ts'
import type { Refusal } from './protocol.ts'

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

/** A place at the head of the line for one name. */
export interface Turn {
  /** The database is being asked in this turn. */
  asks(nowMs: number): void
  /** The database has answered, whatever it said. */
  isAnswered(): void
  /** Lets the next one have the turn. Calling it again does nothing. */
  leave(): void
}

interface Place {
  readonly waiting: (() => void)[]
  /** Since when the database owes an answer to whoever has the turn. */
  silentSinceMs: number | undefined
}

/**
 * Contenders of one process queue here, first come first served, so that the database sees one request per name and
 * process. The turn is kept for as long as the lease is held.
 */
export class Line {
  readonly #places = new Map<string, Place>()

  /** The turn if nobody has it or waits for it. */
  tryEnter(name: string): Turn | undefined {
    if (this.#places.has(name)) return undefined
    this.#places.set(name, { waiting: [], silentSinceMs: undefined })
    return this.#turn(name)
  }

  async enter(name: string, patience: Patience): Promise<Turn> {
    const turn = this.tryEnter(name)
    if (turn !== undefined) return turn
    const { promise, resolve } = Promise.withResolvers<void>()
    const { waiting } = this.#places.get(name)!
    waiting.push(resolve)
    try {
      await patience.within(promise)
      return this.#turn(name)
    } catch (error) {
      const place = waiting.indexOf(resolve)
      if (place >= 0) waiting.splice(place, 1)
      // The turn had come in the very moment of giving up: pass it on.
      else this.#turn(name).leave()
      throw error
    }
  }

  /** Milliseconds for which the database has been silent to whoever has the turn. */
  silentForMs(name: string, nowMs: number): number {
    return nowMs - (this.#places.get(name)?.silentSinceMs ?? nowMs)
  }

  #turn(name: string): Turn {
    let isMine = true
    const place = this.#places.get(name)
    return {
      asks: (nowMs) => {
        if (isMine && place !== undefined) place.silentSinceMs ??= nowMs
      },
      isAnswered: () => {
        if (isMine && place !== undefined) place.silentSinceMs = undefined
      },
      leave: () => {
        if (!isMine) return
        isMine = false
        if (place !== undefined) place.silentSinceMs = undefined
        const next = place?.waiting.shift()
        if (next === undefined) this.#places.delete(name)
        else next()
      },
    }
  }
}

/** A waiter asks again at least this often, because it is not told of a release by another process. */
const pollMs = 1000
/** Somebody takes or gives back the lease right now: the answer will be another one very soon. */
const briefMs = 25

/**
 * Milliseconds to sleep after a refusal: until the holder's time is up, but no longer than a bounded poll; a moment
 * when the lease is between two terms. `random` in [0, 1) keeps waiters out of step.
 */
export function nextTryMs(refusal: Refusal, tries: number, random: number): number {
  const remainingMs = refusal.contender.remainingMs ?? 0
  const jitter = 0.75 + random / 4
  switch (refusal.reason) {
    case 'held':
    case 'not_yet':
      // One millisecond more, because the remaining time is cut to whole ones.
      return remainingMs < pollMs ? remainingMs + 1 + random * 5 : pollMs * jitter
    case 'draining':
    case 'contended':
    case 'sequence':
      return Math.min(briefMs * 2 ** Math.min(tries - 1, 4), 250) * jitter
  }
}
