import type { Contender } from '../rounds.ts'
import type { BenchServer } from '../servers/bench-server.ts'

/** A contender that this machine does not have, and how it would. */
export interface Absent {
  readonly name: string
  readonly absent: string
}

/** What the contenders stand on. */
export interface Ground {
  readonly server: BenchServer
  /** Everything that is to be closed at the end. */
  readonly closing: AsyncDisposableStack
}

export type Maker = (ground: Ground) => Promise<readonly (Contender | Absent)[]>
