import { FencepostError, type Term } from '../../src/index.ts'

/**
 * `won`: granted, or committed. `busy`: somebody else has it. `lost`: the term is over, and nothing was written. `failed`: the database
 * could not be asked, and nothing was done. `unknown`: nobody knows.
 */
export type Outcome = 'won' | 'busy' | 'lost' | 'failed' | 'unknown'

/** What a client was told. */
export interface Told {
  readonly what: 'acquire' | 'write'
  readonly outcome: Outcome
  /** When, by the clock of this process. */
  readonly atMs: number
  /** Of a grant and of a write. */
  readonly term?: Term
  readonly writeId?: string
  /** The code of the error. */
  readonly code?: string
}

const outcomes: Readonly<Record<string, Outcome>> = {
  NOT_ACQUIRED: 'busy',
  STALE_TERM: 'lost',
  HOLDER_EXPIRED: 'lost',
  FOREIGN_LEASE: 'lost',
  LEASE_LOST: 'lost',
  LEASE_RELEASED: 'lost',
  OUTCOME_UNKNOWN: 'unknown',
}

/** Anything that is no error of fencepost's is a mistake in here. */
export function outcomeOf(error: unknown): { readonly outcome: Outcome; readonly code: string } {
  if (!(error instanceof FencepostError)) throw error
  return { outcome: outcomes[error.code] ?? 'failed', code: error.code }
}
