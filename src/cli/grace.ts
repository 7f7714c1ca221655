import { durationMs, formatMs } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import type { Lease } from '../fence/lease.ts'

/**
 * How the time of a lease is divided when no heartbeat gets through. The command must be dead before anybody else can
 * be granted the lease, so it is asked to end (TERM) while there is still time for the grace and for the KILL:
 *
 *     beat     beat     beat
 *     |--------|--------|----- - - -|- grace -|killed|margin| ttl
 *                            TERM ──┘   KILL ─┘      └── not trusted any more
 *
 * A heartbeat that is confirmed before TERM moves all of this by the time it bought.
 */
const killedWithinMs = 50

/**
 * The longest grace is a third of the TTL: heartbeats come every third, so the one that is due after the first third has
 * nearly another one in which it can be late or be sent again.
 */
const longestShare = 1 / 3

/** A sixth leaves time for another heartbeat when one has hung until it was given up, at two thirds of the TTL. */
const defaultShare = 1 / 6
const longestDefaultMs = 5000

/**
 * The grace in milliseconds, from its option or for the TTL; for the maximum hold where that is shorter, because the lease
 * ends with it all the same.
 *
 * @throws InvalidArgumentError when it leaves the heartbeats too little of the TTL.
 */
export function graceFor(
  ttlMs: number,
  option: string | undefined,
  maxHoldMs: number = Number.POSITIVE_INFINITY,
): number {
  const wholeMs = Math.min(ttlMs, maxHoldMs)
  if (option === undefined) return Math.min(longestDefaultMs, Math.floor(wholeMs * defaultShare))
  const graceMs = durationMs('--grace', option, { minMs: 0, maxMs: 24 * 3_600_000 })
  const longestMs = Math.floor(wholeMs * longestShare)
  const whole = maxHoldMs < ttlMs ? '--max-hold' : '--ttl'
  if (graceMs > longestMs) {
    throw new InvalidArgumentError(
      '--grace',
      option,
      `--grace must be at most a third of ${whole}, because the command has to be gone before the lease can be ` +
        `somebody else's: got --grace ${formatMs(graceMs)} with ${whole} ${formatMs(wholeMs)}, which allows ${formatMs(longestMs)}`,
    )
  }
  return graceMs
}

export interface RunningOut {
  /** There is just enough time left for the grace. */
  onTermDue(): void
  /** There is just enough time left to be killed. */
  onKillDue(): void
}

/**
 * Watches a held lease run out. It is arithmetic on what is left, so a heartbeat that comes through puts off whatever is
 * not yet due, and it does not matter when anybody has noticed that heartbeats fail. The loss itself is not told: that
 * is what the lease's signal is for. Returns what stops the watch.
 */
export function watchRunningOut(
  lease: Pick<Lease, 'expiresInMs'>,
  graceMs: number,
  due: RunningOut,
): () => void {
  let timer: NodeJS.Timeout | undefined
  let isTermTold = false
  const look = (): void => {
    const leftMs = lease.expiresInMs
    if (leftMs <= 0) return
    if (!isTermTold && leftMs <= graceMs + killedWithinMs) {
      isTermTold = true
      due.onTermDue()
    }
    const nextMs = leftMs - killedWithinMs - (isTermTold ? 0 : graceMs)
    if (nextMs > 0) timer = setTimeout(look, Math.ceil(nextMs))
    else due.onKillDue()
  }
  look()
  return () => clearTimeout(timer)
}
