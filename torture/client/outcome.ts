import type { Answered } from '../history.ts'

type Outcome = Answered['outcome']

/** What an error says about what was asked. Each means that nothing was done, but for the one that says it is unknown. */
const outcomes: Readonly<Record<string, Outcome>> = {
  OUTCOME_UNKNOWN: 'unknown',
  LEASE_LOST: 'lost',
  LEASE_RELEASED: 'lost',
  STALE_TERM: 'lost',
  HOLDER_EXPIRED: 'lost',
  FOREIGN_LEASE: 'lost',
  FP001: 'lost',
  FP002: 'lost',
  FP003: 'lost',
  // What was under way when this process closed its Fencepost is not looked after any more.
  CLOSED: 'unknown',
}

export function outcomeOf(error: unknown): { outcome: Outcome; code: string } {
  const code = codeOf(error)
  return { outcome: outcomes[code] ?? 'busy', code }
}

function codeOf(error: unknown): string {
  if (typeof error === 'object' && error !== null && 'code' in error) return String(error.code)
  return error instanceof Error ? error.message : String(error)
}

/** What became of a transaction that was fenced by hand, when its COMMIT has failed: known only where the server says so. */
export function outcomeOfCommit(error: unknown): { outcome: Outcome; code: string } {
  const code = codeOf(error)
  const isKnown = /^[0-9A-Z]{5}$/.test(code) && !/^(08|57P|E)/.test(code)
  return isKnown ? outcomeOf(error) : { outcome: 'unknown', code }
}
