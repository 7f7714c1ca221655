import { type Outcome, type Suitor, giveBack } from './contend.ts'
import type { HeldLease } from './held-lease.ts'
import type { AcquireRequest, LeaseRoom } from './lease-room.ts'
import { nextTryMs } from './next-try.ts'
import type { Patience } from './patience.ts'
import type { Refusal } from './protocol.ts'

/**
 * Asks for several leases, all or none, in a call of its own. It stands in no line: to keep one lease while it waits for another is
 * how deadlocks are made.
 */
export class AllLeases<L extends HeldLease> implements Suitor<L> {
  readonly #room: LeaseRoom<L>
  readonly #request: AcquireRequest
  readonly #patience: Patience

  constructor(room: LeaseRoom<L>, request: AcquireRequest, patience: Patience) {
    this.#room = room
    this.#request = request
    this.#patience = patience
  }

  ask(): Promise<Outcome<L>> {
    const { names, ttlMs, asking } = this.#request
    return this.#room.underLivingHolder(ttlMs, async () => {
      const seat = await this.#room.seat(ttlMs)
      const answer = await seat.acquireAll(names, asking)
      if (!answer.isGranted) return { name: answer.name, refusal: answer.refusal }
      const leases = this.#room.take(seat, names, answer.grants, this.#request)
      return leases === undefined ? undefined : { leases }
    })
  }

  pause(refusal: Refusal, tries: number): Promise<void> {
    const { ttlMs } = this.#request
    const random = Math.random()
    return this.#patience.sleep(
      nextTryMs(refusal, { ttlMs, stands: false, isListening: false, tries, random, nowMs: undefined }),
    )
  }

  giveUp(attempt: Promise<Outcome<L>> | undefined): void {
    void giveBack(attempt)
  }
}
