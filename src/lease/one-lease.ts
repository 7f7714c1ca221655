import { type Outcome, type Suitor, giveBack } from './contend.ts'
import type { HeldLease } from './held-lease.ts'
import type { AcquireRequest, LeaseRoom } from './lease-room.ts'
import type { Turn } from './line.ts'
import { nextTryMs } from './next-try.ts'
import type { Patience } from './patience.ts'
import type { Refusal } from './protocol.ts'
import type { Grant, Refused, Seat } from './seat.ts'
import { Standing } from './standing.ts'

/**
 * Asks for one lease in its turn among the callers of this process. Where it is refused and may wait, it stands in the database's
 * line, and sleeps until it is woken with the grant; else it asks again with its ticket when that may help.
 */
export class OneLease<L extends HeldLease> implements Suitor<L> {
  readonly #room: LeaseRoom<L>
  readonly #request: AcquireRequest
  readonly #name: string
  readonly #turn: Turn<Standing>
  readonly #patience: Patience
  #standing: Standing | undefined
  #stopListening: () => void = () => {}

  constructor(room: LeaseRoom<L>, request: AcquireRequest, turn: Turn<Standing>, patience: Patience) {
    this.#room = room
    this.#request = request
    this.#name = request.names[0]!
    this.#turn = turn
    this.#patience = patience
    this.#standing = turn.legacy
    if (this.#standing !== undefined) this.#stopListening = room.listen()
  }

  async ask(): Promise<Outcome<L>> {
    this.#turn.asks(this.#room.clock.monotonicMs())
    const outcome = await this.#room.underLivingHolder(this.#request.ttlMs, () =>
      this.#standing === undefined ? this.#askAnew() : this.#askInLine(),
    )
    this.#turn.isAnswered(outcome.leases === undefined ? outcome.refusal.contender : undefined)
    return outcome
  }

  async #askAnew(): Promise<Outcome<L> | undefined> {
    const seat = await this.#room.seat(this.#request.ttlMs)
    const expected = this.#room.wakes.expect()
    try {
      const answer = await seat.acquire(this.#name, this.#request.asking)
      if (answer.isGranted) return this.#take(seat, answer)
      this.#stand(seat, answer.refusal)
      return this.#refused(answer)
    } finally {
      expected()
    }
  }

  async #askInLine(): Promise<Outcome<L> | undefined> {
    const standing = await this.#validStanding()
    if (standing === undefined) return this.#askAnew()
    const token = standing.takeNews()
    // The end of a maximum hold is asked for, because it counts from before the wake-up was sent.
    if (token !== undefined && !Number.isFinite(this.#request.asking.bounds.maxHoldMs)) {
      standing.seat.grantedInLine(this.#name)
      return this.#take(standing.seat, { isGranted: true, token, deadlineMs: Number.POSITIVE_INFINITY })
    }
    const answer = await standing.seat.askAgain(standing.place)
    if (answer.isGranted) {
      standing.seat.grantedInLine(this.#name)
      return this.#take(standing.seat, answer)
    }
    if (answer.refusal.reason !== 'gone') return this.#refused(answer)
    this.#drop()
    return this.#askAnew()
  }

  async pause(refusal: Refusal, tries: number): Promise<void> {
    const { ttlMs, asking } = this.#request
    const ms = nextTryMs(refusal, {
      ttlMs,
      stands: asking.stands,
      isListening: this.#room.isListening,
      tries,
      random: Math.random(),
      nowMs: this.#room.clock.monotonicMs(),
    })
    await (this.#standing?.sleep(ms, this.#patience) ?? this.#patience.sleep(ms))
  }

  giveUp(attempt: Promise<Outcome<L>> | undefined): void {
    void this.#giveUp(attempt)
  }

  async #giveUp(attempt: Promise<Outcome<L>> | undefined): Promise<void> {
    await giveBack(attempt)
    const standing = this.#standing
    this.#standing = undefined
    this.#stopListening()
    await leaveTurn(this.#turn, standing, this.#room.clock.monotonicMs())
  }

  /** What a place in line is good for. */
  get #key(): string {
    return JSON.stringify([this.#request.ttlMs, this.#request.asking])
  }

  /** The place in line, if it can be used for this request. */
  async #validStanding(): Promise<Standing | undefined> {
    const standing = this.#standing
    if (standing === undefined) return undefined
    if (!standing.isGone && standing.key === this.#key) return standing
    this.#drop()
    // The lease may have been granted by it already, and then it goes on.
    if (!standing.isGone) await standing.leave()
    return undefined
  }

  #stand(seat: Seat, { ticket }: Refusal): void {
    if (ticket === undefined) return
    const place = { name: this.#name, ticket, sequence: this.#request.asking.sequence }
    this.#standing = new Standing(seat, place, this.#key, this.#room.wakes, this.#room.clock)
    this.#stopListening = this.#room.listen()
  }

  #drop(): void {
    this.#standing?.end()
    this.#standing = undefined
    this.#stopListening()
  }

  #refused({ refusal }: Refused): Outcome<L> {
    return { name: this.#name, refusal }
  }

  /** The lease, unless the answer came too late to be trusted. */
  #take(seat: Seat, grant: Grant): Outcome<L> | undefined {
    const leases = this.#room.take(seat, [this.#name], [grant], this.#request)
    if (leases === undefined) return undefined
    this.#drop()
    // The next one stands in line while this one holds.
    this.#turn.leave()
    return { leases }
  }
}

/** Gives the place in line to the next caller of this process; where nobody waits, leaves it before the turn. */
export async function leaveTurn(
  turn: Turn<Standing>,
  standing: Standing | undefined,
  nowMs: number,
): Promise<void> {
  if (standing !== undefined) {
    if (!standing.isGone && turn.leaveTo(standing)) return
    // Until it is known that the place is gone, nobody else here asks: it would be given the same one.
    turn.asks(nowMs)
    await standing.leave()
  }
  turn.leave()
}
