import { readLedger } from './ledger.ts'
import type { Outside } from './outside.ts'
import type { Told } from './told.ts'
import { Worker } from './worker.ts'

/** The leases that everybody works under. */
export const sharedLeases: readonly string[] = ['settlement', 'report']
const workers = 6

/** The clients of one failover, and what they were told. */
export class Crew implements AsyncDisposable {
  readonly told: Told[] = []
  readonly #outside: Outside
  readonly #stop = new AbortController()
  readonly #all: Worker[] = []
  #working: Promise<unknown> = Promise.resolve()

  constructor(outside: Outside) {
    this.#outside = outside
  }

  async join(name: string, url: string): Promise<Worker> {
    const worker = await Worker.start({
      name,
      url,
      leases: sharedLeases,
      outside: this.#outside,
      tell: (told) => this.told.push(told),
    })
    this.#all.push(worker)
    return worker
  }

  /** Sets workers to work, on these addresses in turn. */
  async work(...urls: readonly string[]): Promise<void> {
    const those = await Promise.all(
      Array.from({ length: workers }, (_, place) => this.join(`w${place}`, urls[place % urls.length]!)),
    )
    this.#working = Promise.all(those.map((worker) => worker.work(this.#stop.signal)))
    // Whoever waits for it is told; before that nobody is.
    this.#working.catch(() => {})
  }

  async rest(): Promise<void> {
    this.#stop.abort()
    await this.#working
  }

  /** Clients that were paused over the failover wake up: each writes once under a term that it knows of. */
  async haunt(ghost: Worker, server: { readonly url: string }): Promise<void> {
    const terms = this.told.flatMap(({ what, term }) =>
      what === 'acquire' && term !== undefined && sharedLeases.includes(term.lease) ? [term] : [],
    )
    const { granted } = await readLedger(server)
    const known = new Set(granted.map(({ token, holderId }) => `${token}:${holderId}`))
    const lost = terms.filter(({ token, holderId }) => !known.has(`${token}:${holderId}`))
    for (const term of [...lost.slice(-20), ...terms.slice(0, 5)]) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await ghost.writeBlindly(term)
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await this.#outside.send(term)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.rest().catch(() => {})
    await Promise.all(this.#all.map((worker) => worker[Symbol.asyncDispose]()))
  }
}
