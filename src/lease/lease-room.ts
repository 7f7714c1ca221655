import type { Clock } from '../clock.ts'
import type { HeldLease } from './held-lease.ts'
import type { Asking } from './protocol.ts'
import type { Grant, Seat } from './seat.ts'
import type { Wakes } from './wakes.ts'

/** What a caller asks for: one lease, or several, all or none. */
export interface AcquireRequest {
  /** Distinct. */
  readonly names: readonly string[]
  readonly ttlMs: number
  readonly asking: Asking
  /** 0: one attempt. Infinity: until the signal aborts. */
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

/** What those who ask for leases find in this room. */
export interface LeaseRoom<L extends HeldLease> {
  readonly clock: Clock
  readonly wakes: Wakes
  /** Whether wake-ups from other processes come, as far as is known. */
  readonly isListening: boolean
  /** Has somebody listen for wake-ups, until the returned function is called. */
  listen(): () => void
  /** The holder for leases of this TTL, joined. */
  seat(ttlMs: number): Promise<Seat>
  /** Asks again, under a new holder, when the old one turns out to be gone or what it was granted came too late. */
  underLivingHolder<T>(ttlMs: number, ask: () => Promise<T | undefined>): Promise<T>
  /** Handles for the grants; undefined when the answer came too late to be trusted, and the holder has been ended. */
  take(
    seat: Seat,
    names: readonly string[],
    grants: readonly Grant[],
    request: AcquireRequest,
  ): L[] | undefined
}
