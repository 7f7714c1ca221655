/**
 * How long an election rests before it stands again. Everything in this file is pure: no clock is read, no timer is set.
 */

/** The longest rest, before jitter, unless the caller asked for longer ones. */
const longestRestMs = 60_000

/** A rest doubles so often at most. */
const maxDoublings = 5

/** A `lead` that lasted this many rests has had its term: it does not spin, and what went before is forgotten. */
const steadyRests = 10

/**
 * Whether a term was so short that, should the next one be as short, this process would do little but be elected: a `lead`
 * that returns or throws at once, or a lease that is lost again and again.
 */
export function isBrief(ledMs: number, retryDelayMs: number): boolean {
  return ledMs < steadyRests * retryDelayMs
}

/**
 * Milliseconds to rest after the nth brief term or failed candidacy in a row (from 1; also 1 after a steady term): it
 * doubles from the retry delay. `random` is in [0, 1) and lengthens it by up to a half, which spreads processes that lost
 * the same database. It is never shorter than the retry delay.
 */
export function restMs(retryDelayMs: number, inARow: number, random: number): number {
  const doubled = retryDelayMs * 2 ** Math.min(Math.max(inARow - 1, 0), maxDoublings)
  return Math.min(doubled, Math.max(retryDelayMs, longestRestMs)) * (1 + random / 2)
}

/** Milliseconds from one look at who leads to the next: about half a TTL, out of step with other watchers. */
export function lookEveryMs(ttlMs: number, random: number): number {
  return (ttlMs / 2) * (0.9 + random / 5)
}
