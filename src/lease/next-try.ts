import type { Refusal } from './protocol.ts'

/** What a waiter knows when it decides how long to sleep. */
export interface Situation {
  readonly ttlMs: number
  /** It wants to stand in the database's line. */
  readonly stands: boolean
  /** Wake-ups come. */
  readonly isListening: boolean
  /** Attempts in a row, from 1. */
  readonly tries: number
  /** In [0, 1): keeps waiters out of step. */
  readonly random: number
  /** By the monotonic clock. Undefined: it asks for itself alone, so nothing is gained by asking when others do. */
  readonly nowMs: number | undefined
}

/** Without wake-ups a waiter asks at least this often. */
const pollMs = 1000
/**
 * Sleeps end on a grid of the process's own, so that one question carries all the places whose sleeps end about then: 2,000 places with a
 * TTL of 30 s ask in some 4 statements a second instead of 80. Always the earlier line of it; and not where the last moments of a dead
 * holder are waited for, because there a little early is a question more.
 */
const grids = [
  { fromMs: 2000, stepMs: 512 },
  { fromMs: 500, stepMs: 128 },
] as const
/** Processes of one machine, which have the monotonic clock in common, do not all ask at the same time. */
const phaseMs = Math.random() * 1000

/**
 * Somebody takes or gives back the lease right now, or a fenced transaction of the last term is open: the answer will be another one very
 * soon, or else the pauses grow to those of a poll.
 */
const briefMs = 25

/**
 * Milliseconds to sleep after a refusal: until the passing of time alone may bring the lease (who is behind somebody in line
 * sleeps until that one would be dead too), but no longer than a wake-up may have been lost for. With wake-ups that is a
 * TTL or a little less, so at most two questions are asked per TTL; without, a second.
 */
export function nextTryMs({ reason, againMs, ticket }: Refusal, situation: Situation): number {
  const { ttlMs, stands, isListening, tries, random, nowMs } = situation
  const jitter = 0.75 + random / 4
  const isBetweenTerms = againMs === 0 && (reason === 'draining' || reason === 'contended')
  // Who was not let in the line came while the lease was just changing hands.
  if (isBetweenTerms || (stands && ticket === undefined)) {
    return Math.min(briefMs * 2 ** Math.min(tries - 1, 10), pollMs) * jitter
  }
  const bound = (stands && isListening ? ttlMs : pollMs) * jitter
  // A moment more, because the time is the database's as it was when it answered.
  const dueMs = againMs + 1 + random * 5
  if (dueMs < bound && dueMs < grids[0].fromMs) return dueMs
  return onGrid(Math.min(dueMs, bound), nowMs)
}

function onGrid(ms: number, nowMs: number | undefined): number {
  const stepMs = grids.find(({ fromMs }) => ms >= fromMs)?.stepMs
  return stepMs === undefined || nowMs === undefined ? ms : ms - ((nowMs + phaseMs + ms) % stepMs)
}
