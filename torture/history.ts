/**
 * What a run leaves behind: one event per line, as JSON. The clients and the nemesis write what they saw; what the server committed is read
 * from its write-ahead log, in the order in which it was committed, so the judge need not believe any client.
 *
 * Every time is in microseconds since 1970, by the machine's own clock: also where a fault has given the client another one.
 */
export type HistoryEvent = Asked | Answered | Trusted | Committed | Fault

/** A client has sent a request, or is about to. */
export interface Asked {
  readonly kind: 'asked'
  readonly atUs: number
  /** One process with one holder: `c1`. A client that is started anew has another name. */
  readonly client: string
  /** Distinct within the client. */
  readonly op: number
  readonly what: Operation
  readonly lease: string
  /** Under which term; not of an acquire. */
  readonly token?: Token
  /** Which row of `torture.row` a write is about. */
  readonly row?: string
}

export type Operation = 'acquire' | 'release' | 'write' | 'close'

/** int8 as text: JSON has no room for it. */
export type Token = string

/** What has come of it, as far as the client was told. An operation without an answer is one whose client was killed. */
export interface Answered {
  readonly kind: 'answered'
  readonly atUs: number
  readonly client: string
  readonly op: number
  /** `won`: granted, released, committed. `busy`: not granted. `lost`: the term is over. `unknown`: nobody knows. */
  readonly outcome: 'won' | 'busy' | 'lost' | 'unknown'
  /** Of a grant. */
  readonly token?: Token
  /** The code of the error, for people to read. */
  readonly code?: string
}

/** A client was asked whether its term is current. Only samples that say yes are written down, and each changes to no. */
export interface Trusted {
  readonly kind: 'trusted'
  /** Read from the clock after the answer, so it is no earlier than the moment that the answer is about. */
  readonly atUs: number
  readonly client: string
  readonly lease: string
  readonly token: Token
  readonly isHeld: boolean
}

/** One transaction, in the order of the commits. */
export interface Committed {
  readonly kind: 'committed'
  /** By the server's clock, which is the machine's. */
  readonly atUs: number
  /** Where the log says so, as `0/1A2B3C`. */
  readonly lsn: string
  readonly xid: string
  readonly changes: readonly Change[]
}

export type Change = LeaseChange | HolderChange | WriteChange | RowChange

/** A row of `fencepost.lease` as it is afterwards. */
export interface LeaseChange {
  readonly table: 'lease'
  readonly how: 'insert' | 'update' | 'delete'
  readonly name: string
  readonly token: Token
  readonly holderId: string | null
  readonly grantedAtUs: number | null
  readonly deadlineUs: number | null
  readonly availableAtUs: number | null
}

/** A row of `fencepost.holder` as it is afterwards. */
export interface HolderChange {
  readonly table: 'holder'
  readonly how: 'insert' | 'update' | 'delete'
  readonly id: string
  /** The name of the client. */
  readonly label: string
  readonly ttlUs: number
  readonly expiresAtUs: number
  readonly endedAtUs: number | null
}

/** A row of `torture.write`, which is only ever added to: one write under a term. */
export interface WriteChange {
  readonly table: 'write'
  readonly lease: string
  readonly token: Token
  readonly row: string
  readonly client: string
  readonly op: number
}

/** A row of `torture.row`, with the stamp that the write left. */
export interface RowChange {
  readonly table: 'row'
  readonly row: string
  readonly lease: string
  readonly stamp: Token | null
}

/** Something that was done on purpose. */
export interface Fault {
  readonly kind: 'fault'
  readonly atUs: number
  readonly fault: string
  readonly phase: 'begins' | 'ends'
  /** A client, the server, the network of a client. */
  readonly target: string
}
