import type { Client } from 'pg'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import type { TcpProxy } from '../../test/support/tcp-proxy.ts'

/** What a nemesis can reach. */
export interface World {
  /** Those that run now. Who was killed is replaced by one of another name, so keep the object, not the place. */
  readonly clients: readonly TortureClient[]
  readonly server: TortureServer
  /** In [0, 1), from the seed. */
  random(): number
}

/** A client process, all of whose connections go through a proxy of its own. */
export interface TortureClient {
  readonly name: string
  readonly pid: number
  readonly proxy: TcpProxy
  readonly isRunning: boolean
  /** Tells the process to do something to itself. */
  tell(order: Order): void
  /** Resolves when the client comes to this step next; undefined: when it has ended before. */
  untilAt(step: Step): Promise<Step | undefined>
}

/** Where a client can be stopped. */
export const steps = [
  'after acquire',
  'after begin',
  'after fence',
  'between writes',
  'while reading',
  'after COMMIT was sent',
] as const
export type Step = (typeof steps)[number]

export type Order =
  | { readonly order: 'block'; readonly forMs: number }
  | { readonly order: 'clock'; readonly offsetMs: number; readonly rate: number }
  /** Keeps the next fenced transaction open for so long. */
  | { readonly order: 'dawdle'; readonly forMs: number }
  | { readonly order: 'stop' }

export interface TortureServer {
  /** Of the server itself, for the nemesis and the judge. */
  readonly url: string
  /** Another one after each start. */
  readonly embedded: EmbeddedServer
  stop(mode: 'fast' | 'immediate'): Promise<void>
  /** On the same port and data. */
  startAgain(): Promise<void>
  /** A session for one statement or a few, which the caller ends. */
  session(): Promise<Client>
}

/** Something done on purpose. It is over when `heal` has resolved; what needs no healing heals at once. */
export interface Affliction {
  readonly target: string
  heal(): Promise<void>
}

export interface FaultKind {
  readonly name: string
  /** Milliseconds for which it lasts: a random time between the two. */
  readonly lastsMs: readonly [number, number]
  inflict(world: World): Promise<Affliction>
}
