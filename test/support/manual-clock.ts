import type { Clock } from '../../src/clock.ts'

interface Timer {
  readonly due: number
  readonly action: () => void
}

/** A clock that stands still until it is moved. */
export class ManualClock implements Clock {
  #monotonicMs = 1_000_000
  #wallOffsetMs = 1_700_000_000_000
  readonly #timers = new Set<Timer>()

  monotonicMs(): number {
    return this.#monotonicMs
  }

  wallMs(): number {
    return this.#monotonicMs + this.#wallOffsetMs
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { due: this.#monotonicMs + Math.max(0, delayMs), action }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  get timers(): number {
    return this.#timers.size
  }

  /** Somebody sets the wall clock. */
  stepWall(ms: number): void {
    this.#wallOffsetMs += ms
  }

  /** Time passes while the event loop is blocked: no timer runs. */
  block(ms: number): void {
    this.#monotonicMs += ms
  }

  /** Time passes, timers run when due, and what they set off is settled in between. */
  async advance(ms: number): Promise<void> {
    const end = this.#monotonicMs + ms
    for (;;) {
      await settled()
      const next = [...this.#timers].toSorted((a, b) => a.due - b.due)[0]
      if (next === undefined || next.due > end) break
      this.#timers.delete(next)
      this.#monotonicMs = Math.max(this.#monotonicMs, next.due)
      next.action()
    }
    this.#monotonicMs = Math.max(this.#monotonicMs, end)
    await settled()
  }
}

/** Lets everything that is ready run. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 5; turn += 1) await new Promise((resolve) => setImmediate(resolve))
}
