import type { HistoryEvent, Operation } from '../history.ts'

/** What a history can be condemned for. */
export type ViolationKind = keyof typeof meanings

/** In the order in which they are told: what breaks a promise comes before what only looks odd. */
export const meanings = {
  'stale-write': 'a write was committed after a newer term of its lease had been granted',
  'stamp-went-back': 'the stamp on a row went down',
  'write-without-term': 'a write was committed under a term that its client did not have',
  'terms-overlap': 'a lease was granted while the term before was not over',
  'granted-too-early': 'a lease was granted before it was to be available',
  'ended-alive': 'a taker ended a holder whose time was not up',
  'granted-to-ended': 'a lease was granted to a holder that had ended',
  'term-changed-hands': 'a lease has another holder and the token of the one before',
  'token-given-twice': 'a token was given to two terms',
  'token-fell': 'a token is not greater than one that was given before it',
  'token-told-twice': 'two requests were told of the same token',
  'told-token-fell':
    'a request that was sent after a token had been told was told of one that is not greater',
  'holder-revived': 'a holder that had ended came back',
  'expiry-fell': 'a heartbeat took time away from its holder',
  'freed-by-another': 'a term was freed, and its own client had not asked for that',
  'trust-outlived-term': 'a client trusted a term that was over in the database',
  'won-grant-missing': 'a client was told of a grant that was never committed to it',
  'won-write-missing': 'a client was told that a write was committed, and it was not',
  'lost-write-committed': 'a client was told that a write was refused, and it was committed',
  'write-committed-twice': 'a write was committed by two transactions',
  'write-not-asked-for': 'a write was committed that nobody had asked for',
  'grant-not-asked-for': 'a lease was granted to a client that had not asked for it',
  'untold-term-lasts': 'a client that lives on has a term that it was never told of',
  'won-release-missing': 'a client was told that its term was released, and the term went on',
  'odd-answer': 'an answer is none of won, busy, lost and unknown, or is no answer to a question',
  'not-granted': 'a lease that was free, and asked for, was not granted in time',
  'not-told': 'a client that waited was granted a lease and did not hear of it in time',
  'never-answered': 'a request got no answer',
  'waiter-starved': 'others who came later were granted the lease again and again',
} as const

export interface Violation {
  readonly kind: ViolationKind
  /** What has happened, with names and tokens. */
  readonly sentence: string
  /** The few events that show it, in the order in which they happened. Of a transaction only the changes concerned. */
  readonly piece: readonly HistoryEvent[]
}

export interface Summary {
  readonly events: number
  readonly durationUs: number
  readonly clients: number
  readonly leases: number
  readonly transactions: number
  /** What was asked, by operation. */
  readonly asked: Readonly<Record<Operation, number>>
  readonly grants: number
  /** Terms that were given back while their holder lived. */
  readonly releases: number
  /** Grants of a lease whose holder had run out of time. */
  readonly takeOvers: number
  /** From the end of the former holder's time to the grant, counted from when somebody waited. Null: there was none. */
  readonly worstTakeOverUs: number | null
  /** The longest time in which somebody asked for a lease and nobody had it. */
  readonly longestGapUs: number
  /** Writes that were committed. */
  readonly writes: number
  /** Writes that were refused, because their term was over. */
  readonly refusedWrites: number
  /** What the log says of requests whose outcome was unknown to those who asked, or who were killed before the answer. */
  readonly unknown: Readonly<Record<Operation, Resolved>>
  readonly samples: number
  /** How often each fault began. */
  readonly faults: Readonly<Record<string, number>>
}

export interface Resolved {
  readonly happened: number
  readonly hadNot: number
}

export interface Verdict {
  readonly violations: readonly Violation[]
  readonly summary: Summary
}

export interface CheckOptions {
  /**
   * By how much two readings of the machine's clock may be apart where the history says they are not: the time of an event is
   * read a moment after it. Default: 5 ms, which is less than any client's margin.
   */
  readonly slackUs?: number
  /**
   * How long a client that lives on may take to give back what it was granted without knowing, or what it has released and a crash has
   * brought back; beside three TTLs. Default: 20 s.
   */
  readonly settleWithinUs?: number
  /**
   * Faults that let the server answer the applications' commits before they are on disk. A crash takes away what was answered during
   * one of these, except for what fencepost itself has answered. Default: `async-commit`.
   */
  readonly carelessFaults?: readonly string[]
  /** Which sequence a lease draws its tokens from. Default: one for all. */
  readonly sequenceOf?: (lease: string) => string
}

export interface LivenessBounds {
  /** When the last fault was over, or the last one became permanent. */
  readonly healedAtUs: number
  readonly ttlUs: number
  readonly longestTransactionUs: number
  readonly retryUs: number
  /** Clients that were killed, or are kept from the server for good. Those whom the faults of the history kill need not be named. */
  readonly gone?: readonly string[]
}
