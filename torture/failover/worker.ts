import { setTimeout as sleep } from 'node:timers/promises'
import { Pool, type PoolClient } from 'pg'
import { Fencepost, type Lease, type Term, fencedTransaction } from '../../src/index.ts'
import { writeDown } from './ledger.ts'
import type { Outside } from './outside.ts'
import { type Told, outcomeOf } from './told.ts'

export interface WorkerOptions {
  readonly name: string
  readonly url: string
  readonly leases: readonly string[]
  readonly outside: Outside
  readonly tell: (told: Told) => void
}

export const ttlMs = 2000

/** A client of fencepost that takes leases, writes under them, in the database and outside, and gives them back. */
export class Worker implements AsyncDisposable {
  readonly #options: WorkerOptions
  readonly #fencepost: Fencepost
  readonly #pool: Pool
  #writes = 0

  private constructor(options: WorkerOptions, fencepost: Fencepost) {
    this.#options = options
    this.#fencepost = fencepost
    this.#pool = newPool(options.url)
  }

  static async start(options: WorkerOptions): Promise<Worker> {
    const { url, name } = options
    return new Worker(
      options,
      await Fencepost.open({ connectionString: url, label: name, requestTimeout: '1s', ttl: ttlMs }),
    )
  }

  /** Works until the signal aborts, and has given back then what it had, as far as it could. */
  async work(stop: AbortSignal): Promise<void> {
    const { leases } = this.#options
    while (!stop.aborted) {
      const name = leases[Math.floor(Math.random() * leases.length)]!
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await this.#workUnder(name)
    }
  }

  async #workUnder(name: string): Promise<void> {
    const lease = await this.acquire(name, '1s')
    if (lease === null) {
      await sleep(20)
      return
    }
    for (let writes = 0; writes < 3 && lease.isHeld; writes += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await this.#write(lease.term, (work) => lease.transaction(this.#pool, work))
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      if (lease.isHeld) await this.#options.outside.send(lease.term)
      // oxlint-disable-next-line no-await-in-loop -- Others shall find it held.
      await sleep(Math.random() * 15)
    }
    // What comes of it is another's matter: the lease is free, or its holder still has it.
    await lease.release().catch(() => {})
  }

  async acquire(name: string, wait: '0s' | '1s'): Promise<Lease | null> {
    try {
      const lease = await this.#fencepost.acquire(name, { wait })
      this.#tell({ what: 'acquire', outcome: 'won', term: lease.term })
      return lease
    } catch (error) {
      this.#tell({ what: 'acquire', ...outcomeOf(error) })
      return null
    }
  }

  /** Writes as a process does that was paused and does not know that its term may be over. */
  async writeBlindly(term: Term): Promise<void> {
    await this.#write(term, (work) => fencedTransaction({ term }, this.#pool, work))
  }

  async #write(
    term: Term,
    inTransaction: (work: (client: PoolClient) => Promise<void>) => Promise<void>,
  ): Promise<void> {
    this.#writes += 1
    const facts = { what: 'write', term, writeId: `${this.#options.name}/${this.#writes}` } as const
    try {
      await inTransaction((client) => writeDown(client, facts.writeId))
      this.#tell({ ...facts, outcome: 'won' })
    } catch (error) {
      this.#tell({ ...facts, ...outcomeOf(error) })
    }
  }

  #tell(told: Omit<Told, 'atMs'>): void {
    this.#options.tell({ ...told, atMs: performance.now() })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#fencepost.close()
    await this.#pool.end()
  }
}

/** A COMMIT that waits for a standby which is gone waits for ever, unless its client gives it up. */
function newPool(connectionString: string): Pool {
  const pool = new Pool({ connectionString, max: 2, connectionTimeoutMillis: 1000, query_timeout: 1500 })
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}
