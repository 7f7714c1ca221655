import type { LeaseInfo, WaiterInfo } from '../lease/lease-list.ts'
import type { RunReport } from './run-report.ts'

/** Who is waiting, as the database shows it. */
interface Waiter {
  readonly label: string
  readonly host: string
  readonly pid: number
}

export interface WaitingOptions {
  readonly inspect: () => Promise<LeaseInfo | undefined>
  readonly self: Waiter
  readonly report: RunReport
}

/** A lease that is free is granted before that, and then nothing is asked at all. */
const firstAfterMs = 250
/** While nothing changes it is asked more and more seldom: there may be many who wait. */
const soonMs = 1000
const seldomMs = 8000

/** Says who stands in the way of the lease, and again when that changes, until it is disposed of. */
export class WaitingWatch implements Disposable {
  readonly #options: WaitingOptions
  #timer: NodeJS.Timeout | undefined
  #isOver = false
  #said: string | undefined
  #everyMs = soonMs

  constructor(options: WaitingOptions) {
    this.#options = options
    if (!options.report.isQuiet) this.#askAfter(firstAfterMs)
  }

  /** Whether it has been said that there is a wait. */
  get hasSaid(): boolean {
    return this.#said !== undefined
  }

  [Symbol.dispose](): void {
    this.#isOver = true
    clearTimeout(this.#timer)
  }

  #askAfter(delayMs: number): void {
    this.#timer = setTimeout(() => void this.#ask(), delayMs)
  }

  async #ask(): Promise<void> {
    const { inspect, self, report } = this.#options
    // A database that does not answer is the business of who waits for the lease.
    const lease = await inspect().catch(() => undefined)
    if (this.#isOver) return
    const situation = lease === undefined ? undefined : situationOf(lease, self)
    if (situation !== undefined && situation.key !== this.#said) {
      this.#said = situation.key
      this.#everyMs = soonMs
      report.tell('waiting', situation.text, situation.facts)
    } else {
      this.#everyMs = Math.min(this.#everyMs * 2, seldomMs)
    }
    this.#askAfter(this.#everyMs)
  }
}

/** What there is to say while the lease is waited for; undefined when it is about to be granted. */
function situationOf(lease: LeaseInfo, self: Waiter) {
  const { state, holder, host, pid, since, waiters } = lease
  const isOwn = (other: { host: string | undefined; pid: number | undefined }, label?: string): boolean =>
    label === self.label && other.host === self.host && other.pid === self.pid
  if (state === 'free' || (state === 'held' && isOwn(lease, holder))) return undefined
  const place = waiters.findIndex((waiter: WaiterInfo) => isOwn(waiter, waiter.holder)) + 1
  const line = place === 0 ? '' : `; place ${place} of ${waiters.length} in line`
  const isHeld = state === 'held' || state === 'expired'
  return {
    // Who comes into line behind it changes nothing for this one.
    key: `${reasonOf(lease)} ${place}`,
    text: `waiting for lease "${lease.name}": ${reasonOf(lease)}${line}`,
    facts: {
      state,
      holder: isHeld ? (holder ?? null) : null,
      host: isHeld ? (host ?? null) : null,
      pid: isHeld ? (pid ?? null) : null,
      since: isHeld ? (since?.toISOString() ?? null) : null,
      remainingMs: lease.remainingMs ?? null,
      place: place === 0 ? null : place,
      waiters: waiters.length,
    },
  }
}

function reasonOf({ state, holder, host, pid, since }: LeaseInfo): string {
  if (state === 'draining') return 'a fenced transaction of its last term is still open'
  if (state === 'withheld') return 'nobody is granted it yet, for a minimum hold or the grace after a crash'
  const where = pid === undefined ? '' : ` (pid ${pid}${host === undefined ? '' : ` on ${host}`})`
  const when = since === undefined ? '' : ` since ${since.toISOString()}`
  const whom = `held by ${holder ?? 'somebody'}${where}${when}`
  return state === 'expired' ? `${whom}, who has expired` : whom
}
