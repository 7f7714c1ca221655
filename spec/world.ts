/** A state of fencepost.qnt, as compiled-model.ts has it. */
export interface World {
  readonly now: number
  readonly servers: Readonly<Record<number, Server>>
  readonly processes: Readonly<Record<number, Process>>
  readonly txs: readonly Tx[]
  readonly isPromoted: boolean
  readonly isLossy: boolean
  readonly answer: string
  readonly granted: readonly number[]
  readonly wrongs: readonly string[]
}

export interface Server {
  readonly holders: Readonly<Record<number, { isThere: boolean; expiresAt: number; isEnded: boolean }>>
  readonly leases: Readonly<Record<number, { token: number; holder: number; by: number }>>
  readonly lastToken: number
}

interface Process {
  readonly phase: 'new' | 'up' | 'gone'
  readonly confirmedAt: number
  readonly beat: 'none' | 'sent' | 'confirmed' | 'refused'
  readonly beatSentAt: number
  readonly told: readonly Term[]
  readonly held: readonly Term[]
}

export interface Term {
  readonly lease: number
  readonly token: number
}

export interface Tx extends Term {
  readonly server: number
  readonly holder: number
}
