import { uptime } from 'node:os'

/**
 * Time as this process can know it. The database's clock decides who holds a lease; this one only decides when to
 * stop trusting an answer.
 */
export interface Clock {
  /** Milliseconds that only move forward and count the time a machine is suspended, where the platform can tell. */
  monotonicMs(): number
  /** Milliseconds of the wall clock, which people and NTP may move. */
  wallMs(): number
  /** Runs `action` once after `delayMs`, however long that is. Returns what cancels it. */
  after(delayMs: number, action: () => void): () => void
}

/** setTimeout fires at once when the delay does not fit into 31 bits. */
const longestTimerMs = 2 ** 31 - 1

class SystemClock implements Clock {
  // performance.now() stands still while a machine sleeps; on Linux the uptime does not. The uptime is coarse and
  // costs a system call, so it is asked only when the wall clock has run off the fine clock (as it does after a
  // sleep, and when somebody sets it) or now and then, and corrects only what it has clearly run ahead.
  readonly #coarseSlackMs = 40
  readonly #wallSlackMs = 10
  readonly #askEveryMs = 250
  readonly #fineStartMs = performance.now()
  readonly #coarseStartMs = uptime() * 1000
  #askedAtMs = 0
  #wallOffsetMs = Date.now()
  #suspendedMs = 0

  monotonicMs(): number {
    const fine = performance.now() - this.#fineStartMs
    const wallOffset = Date.now() - fine
    if (
      Math.abs(wallOffset - this.#wallOffsetMs) > this.#wallSlackMs ||
      fine - this.#askedAtMs > this.#askEveryMs
    ) {
      this.#wallOffsetMs = wallOffset
      this.#askedAtMs = fine
      const ahead = uptime() * 1000 - this.#coarseStartMs - fine - this.#suspendedMs
      if (ahead > this.#coarseSlackMs) this.#suspendedMs += ahead
    }
    return fine + this.#suspendedMs
  }

  wallMs(): number {
    return Date.now()
  }

  after(delayMs: number, action: () => void): () => void {
    const due = this.monotonicMs() + delayMs
    let timer: NodeJS.Timeout
    const arm = (leftMs: number): void => {
      timer = setTimeout(
        () => {
          const stillMs = due - this.monotonicMs()
          // A timer may fire a fraction early, and a long delay comes in pieces. A deadline must not be looked at before
          // it has passed.
          if (stillMs > 0) arm(stillMs)
          else action()
        },
        Math.min(Math.max(Math.ceil(leftMs), 0), longestTimerMs),
      )
    }
    arm(delayMs)
    return () => clearTimeout(timer)
  }
}

/** The clock of this machine. */
export const systemClock: Clock = new SystemClock()
