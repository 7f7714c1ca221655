import { type Clock, systemClock } from '../clock.ts'

interface Timer {
  readonly due: number
  readonly action: () => void
  cancel: () => void
}

/** The clock of this machine, which can be moved ahead. */
export class MovableClock implements Clock {
  #aheadMs = 0
  readonly #timers = new Set<Timer>()

  monotonicMs(): number {
    return systemClock.monotonicMs() + this.#aheadMs
  }

  wallMs(): number {
    return systemClock.wallMs() + this.#aheadMs
  }

  after(delayMs: number, action: () => void): () => void {
    const timer: Timer = { due: this.monotonicMs() + delayMs, action, cancel: () => {} }
    this.#timers.add(timer)
    this.#arm(timer)
    return () => {
      timer.cancel()
      this.#timers.delete(timer)
    }
  }

  /** Time jumps, as it does for a process that was stopped: all clocks at once, and then the timers that are due, in their order. */
  async move(ms: number): Promise<void> {
    this.#aheadMs += ms
    const now = this.monotonicMs()
    const overdue = [...this.#timers].filter(({ due }) => due <= now).toSorted((a, b) => a.due - b.due)
    for (const timer of this.#timers) {
      timer.cancel()
      if (timer.due > now) this.#arm(timer)
    }
    for (const timer of overdue) {
      // One that an earlier one has cancelled is there no more.
      if (this.#timers.has(timer)) this.#run(timer)
      // oxlint-disable-next-line no-await-in-loop -- What each has set off is done before the next, as between the timers of Node.
      await new Promise<void>((resolve) => setImmediate(resolve))
    }
  }

  #arm(timer: Timer): void {
    timer.cancel = systemClock.after(timer.due - this.monotonicMs(), () => this.#run(timer))
  }

  #run(timer: Timer): void {
    this.#timers.delete(timer)
    timer.action()
  }
}
