import { createHash } from 'node:crypto'
import type { Token } from './term.ts'

/** Called with the token that was granted; without one, to ask. `isAnew`: nothing that was heard before counts any more. */
type Woken = (token: Token | undefined, isAnew?: boolean) => void

interface Sleeper {
  readonly lease: string
  readonly holderId: string
  readonly woken: Woken
}

/** Wake-ups that overtook the answer with their ticket, at most. */
const maxEarly = 10_000

/**
 * Who waits in this process, by ticket. A wake-up is `ticket`, to ask, or `ticket:token:proof`, when the database has granted the
 * lease. The proof is made with the holder's secret, so a wake-up that somebody else has made up only leads to a question.
 */
export class Wakes {
  /** Mostly one for each ticket. After a crash of the server a number may be given out once more. */
  readonly #sleepers = new Map<string, Set<Sleeper>>()
  readonly #ticketsByLease = new Map<string, string[]>()
  readonly #early = new Map<string, string>()
  #expecting = 0

  /** Until the returned function is called, tickets may be on their way here: a wake-up that overtakes one is kept. */
  expect(): () => void {
    this.#expecting += 1
    return () => {
      this.#expecting -= 1
      if (this.#expecting === 0) this.#early.clear()
    }
  }

  /** Has the holder's place called when a wake-up comes, or at once when one has come already. The returned function ends it. */
  add(lease: string, ticket: string, holderId: string, woken: Woken): () => void {
    const sleeper = { lease, holderId, woken }
    const sleepers = this.#sleepers.get(ticket) ?? new Set()
    this.#sleepers.set(ticket, sleepers.add(sleeper))
    this.#ticketsByLease.set(lease, [...this.ticketsOf(lease), ticket])
    const early = this.#early.get(ticket)
    if (early !== undefined) {
      this.#early.delete(ticket)
      this.deliver(early)
    }
    return () => {
      if (!sleepers.delete(sleeper)) return
      const left = this.ticketsOf(lease).toSpliced(this.ticketsOf(lease).indexOf(ticket), 1)
      if (left.length === 0) this.#ticketsByLease.delete(lease)
      else this.#ticketsByLease.set(lease, left)
      if (sleepers.size === 0 && this.#sleepers.get(ticket) === sleepers) this.#sleepers.delete(ticket)
    }
  }

  /** The places in line for a lease that somebody in this process waits at: mostly one, and one for each TTL at most. */
  ticketsOf(lease: string): readonly string[] {
    return this.#ticketsByLease.get(lease) ?? []
  }

  /** False when it is for nobody in this process, as far as is known. */
  deliver(wake: string): boolean {
    const [ticket = '', token, proof] = wake.split(':')
    const sleepers = this.#sleepers.get(ticket)
    if (sleepers === undefined) {
      if (this.#expecting > 0 && /^\d+$/.test(ticket)) this.#keep(ticket, wake)
      return false
    }
    for (const sleeper of [...sleepers]) {
      const isProven =
        token !== undefined && proof === proofOf(sleeper, ticket, token) && /^\d{1,19}$/.test(token)
      sleeper.woken(isProven ? (BigInt(token) as Token) : undefined)
    }
    return true
  }

  /** Wake-ups may have been missed: everybody asks, or everybody of one holder. */
  askAll(holderId?: string): void {
    for (const sleeper of [...this.#sleepers.values()].flatMap((sleepers) => [...sleepers])) {
      if (holderId === undefined || sleeper.holderId === holderId) sleeper.woken(undefined)
    }
  }

  /** The database is another one than before: what it has granted is asked for there. */
  askAnew(): void {
    this.#early.clear()
    for (const sleeper of [...this.#sleepers.values()].flatMap((sleepers) => [...sleepers])) {
      sleeper.woken(undefined, true)
    }
  }

  #keep(ticket: string, wake: string): void {
    this.#early.set(ticket, wake)
    const [oldest] = this.#early.keys()
    if (this.#early.size > maxEarly && oldest !== undefined) this.#early.delete(oldest)
  }
}

/** As `fencepost.wake_up` makes it. */
function proofOf({ holderId, lease }: Sleeper, ticket: string, token: string): string {
  return createHash('sha256').update(`${holderId}:${ticket}:${token}:${lease}`).digest('hex').slice(0, 24)
}
