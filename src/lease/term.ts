/**
 * # Terms and trust
 *
 * A *lease* is a named right that one holder has at a time. Each grant of it is a *term*, identified by its *token*, a
 * number greater than every token given out before. A *holder* is a row in the database that lives as long as it
 * beats: every lease of a process hangs on that one row, so one heartbeat renews them all.
 *
 *     joined ──beat──▶ alive ──────────────── nobody beat for a TTL ───────────▶ expired
 *                        │  ▲                                                      │ a taker wants one of its leases
 *                        └──┘ beat                                                 ▼
 *                        └────────────── end (close, or a loss noticed here) ───▶ ended, for good
 *
 * The database's clock decides who holds. This process only decides how long it may *trust* the last answer:
 *
 *     trustedUntil = sentAt + ttl − margin
 *
 * where `sentAt` is this machine's monotonic clock just before the last confirmed beat was sent. The database can have
 * started to count the TTL only later than that, so `trustedUntil` lies before the moment at which anybody else can be
 * granted the lease. The margin pays for clocks that run at different rates and for the time it takes to stop working.
 *
 * A term as this process sees it:
 *
 *     held ──a beat failed, or the wall clock jumped──▶ at risk ──confirmed──▶ held
 *       │                                                  │
 *       ├──────────────── release ─────────▶ released      │ trustedUntil has passed, or the database says "ended"
 *       └──────────────────────────────────────────────────┴────▶ lost: final, and the signal aborts
 *
 * Rules:
 *
 * 1. An answer that arrives after `trustedUntil` is not trusted, even when it says yes.
 * 2. A failed beat means nothing is known. It is sent again until `trustedUntil`; only then the term is lost.
 * 3. Whether a term is held is arithmetic on the clock, not the state of a timer: after a blocked event loop the
 *    answer is right before any timer has run.
 * 4. Elapsed time includes the time a machine sleeps. Where only the wall clock can tell, a wall clock that has run past
 *    the window makes the term at risk: not trusted until a beat confirms it, and not lost either, because
 *    a clock that was set says nothing about the lease.
 * 5. Trust is advice to stop early. What keeps a stale write out is the fence in the database, not this arithmetic.
 *
 * Everything in this file is pure: no clock is read, no timer is set.
 */

declare const tokenBrand: unique symbol

/** A fencing token: greater than every token granted before it in its sequence. Exact to 2^63 − 1. */
export type Token = bigint & { readonly [tokenBrand]: true }

/** The identity of one grant of one lease to one holder: what the fence compares. */
export interface Term {
  readonly lease: string
  readonly token: Token
  /** The holder's secret: whoever knows it may write under the term. */
  readonly holderId: string
  /** The sequence the token was drawn from. Tokens of two sequences cannot be compared. */
  readonly sequence: string
}

/** One reading of this machine's clocks. */
export interface Moment {
  readonly monotonicMs: number
  readonly wallMs: number
}

/** How long the last confirmed beat may be trusted. */
export interface Trust {
  /** Just before the confirmed request was sent. */
  readonly sentAt: Moment
  readonly windowMs: number
}

/** Share of the TTL that is not trusted, and its bounds: clock rates differ by far less, stopping takes longer. */
const marginShare = 0.05
const minMarginMs = 20
const maxMarginMs = 1000

/** Milliseconds at the end of a TTL in which the lease is no longer trusted here. */
export function marginMs(ttlMs: number): number {
  return Math.min(maxMarginMs, Math.max(minMarginMs, ttlMs * marginShare))
}

/** Milliseconds from one beat to the next: a third of the TTL leaves room for two that fail. */
export function beatEveryMs(ttlMs: number): number {
  return ttlMs / 3
}

/**
 * Milliseconds after which a beat on a connection that worked so far is given up and another connection is tried: a sixth of
 * the TTL, so that most of it is left for that. Short TTLs get more than their share, because answers have their own pace.
 */
export function beatTimeoutMs(ttlMs: number): number {
  return Math.max(ttlMs / 6, Math.min(ttlMs / 3, 250))
}

export function trustFrom(sentAt: Moment, ttlMs: number): Trust {
  return { sentAt, windowMs: ttlMs - marginMs(ttlMs) }
}

/** Milliseconds of trust left by the monotonic clock. Zero or less: the term is lost. */
export function trustLeftMs(trust: Trust, now: Moment): number {
  return trust.sentAt.monotonicMs + trust.windowMs - now.monotonicMs
}

/**
 * True when the wall clock has run through the whole window although the monotonic clock has not: either somebody set
 * the clock, or the machine slept and this platform's monotonic clock did not notice. Only the database can tell.
 */
export function isDoubtful(trust: Trust, now: Moment): boolean {
  return trustLeftMs(trust, now) > 0 && now.wallMs - trust.sentAt.wallMs >= trust.windowMs
}

export function isTrusted(trust: Trust, now: Moment): boolean {
  return trustLeftMs(trust, now) > 0 && !isDoubtful(trust, now)
}

/**
 * Milliseconds to wait after the nth failed beat in a row (from 1) before the next is sent: it doubles from a fiftieth
 * of the TTL to a tenth. `random` is in [0, 1) and spreads processes that lost the same database.
 */
export function beatRetryMs(ttlMs: number, failures: number, random: number): number {
  const ceiling = Math.min(ttlMs / 10, (ttlMs / 50) * 2 ** (failures - 1), 2000)
  return Math.max(10, ceiling * (0.5 + random / 2))
}
