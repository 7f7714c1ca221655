import type { Order, Step } from '../faults/fault.ts'

/** What a client is started with, as JSON. */
export interface ClientSettings {
  readonly name: string
  readonly seed: string
  /** Through the client's own proxy. */
  readonly url: string
  /** Where its events go. */
  readonly history: string
  readonly leases: readonly string[]
  /** Of every lease. Default: a mix. */
  readonly ttlMs?: number
}

/** What a client hears from its parent. */
export type Message = Order | { readonly order: 'arm'; readonly step: Step }

/** What it says. */
export type Word = { readonly say: 'ready' } | { readonly say: 'at'; readonly step: Step }

/** The lease that nobody waits for. */
export const quickLease = 'quick'

/** How many rows of `torture.row` are written under each lease. */
const rowsPerLease = 3

export function rowsOf(lease: string): string[] {
  return Array.from({ length: rowsPerLease }, (_, number) => `${lease}/${number}`)
}
