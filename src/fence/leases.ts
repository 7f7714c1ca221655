import type { Kysely } from 'kysely'
import type { Pool, PoolClient } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import type { ReleaseOutcome } from '../lease/held-lease.ts'
import type { Term } from '../lease/term.ts'
import { type Fence, type FenceBounds, type QueryClient, fenceClient, fenceLiterals } from './fence.ts'
import {
  type FencedTransaction,
  type FencedTransactionOptions,
  fencedTransaction,
} from './fenced-transaction.ts'
import { type Lease, watchingForEnd } from './lease.ts'

/**
 * Several leases that were granted together, all or none, with one token each. Each can be used by itself as well.
 *
 * @example
 * ```ts
 * await using leases = await fencepost.acquireAll(['account/1', 'account/2'], { ttl: '15s' })
 * await leases.transaction(db, async (tx) => {
 *   await tx.updateTable('accounts').set({ status: 'settled' }).where('id', 'in', [1, 2]).execute()
 * })
 * ```
 */
export class Leases implements Fence, AsyncDisposable, Iterable<Lease> {
  readonly #leases: readonly Lease[]
  readonly #signal: AbortSignal

  /** In the order in which they were asked for. */
  constructor(leases: readonly Lease[]) {
    if (leases.length === 0)
      throw new InvalidArgumentError('leases', leases, 'there must be at least one lease')
    this.#leases = leases
    this.#signal = AbortSignal.any(leases.map((lease) => lease.signal))
  }

  /** @throws InvalidArgumentError when it is not one of them. */
  get(name: string): Lease {
    const lease = this.#leases.find((one) => one.name === name)
    if (lease !== undefined) return lease
    const names = this.#leases.map((one) => `"${one.name}"`).join(', ')
    throw new InvalidArgumentError('name', name, `"${name}" is not one of these leases: ${names}`)
  }

  [Symbol.iterator](): Iterator<Lease> {
    return this.#leases[Symbol.iterator]()
  }

  /** The term of the first lease. */
  get term(): Term {
    return this.#leases[0]!.term
  }

  get terms(): readonly Term[] {
    return this.#leases.map((lease) => lease.term)
  }

  /** Aborts, with a `LeaseLostError` as its reason, as soon as one of them is lost. Not on release. */
  get signal(): AbortSignal {
    return this.#signal
  }

  /** Whether all of them are held. */
  get isHeld(): boolean {
    return this.#leases.every((lease) => lease.isHeld)
  }

  /** Milliseconds for which all of them may be trusted without another heartbeat. */
  get expiresInMs(): number {
    return Math.min(...this.#leases.map((lease) => lease.expiresInMs))
  }

  /** @throws LeaseLostError, LeaseReleasedError when one of them is not held. */
  assertHeld(): void {
    for (const lease of this.#leases) lease.assertHeld()
  }

  /**
   * A fenced transaction under all of them: see `Lease.transaction`. A protected table, or a repository with the option `lease`,
   * takes the fence of the lease that guards it.
   *
   * @throws what `Lease.transaction` throws, naming the lease that it was refused for. That one is lost, the others are not.
   */
  transaction<DB, T>(
    db: Kysely<DB>,
    work: (tx: FencedTransaction<DB>) => Promise<T>,
    options?: FencedTransactionOptions,
  ): Promise<T>
  transaction<T>(
    pool: Pool,
    work: (client: PoolClient) => Promise<T>,
    options?: FencedTransactionOptions,
  ): Promise<T>
  async transaction<T>(
    source: Kysely<unknown> | Pool,
    work: (tx: never) => Promise<T>,
    options?: FencedTransactionOptions,
  ): Promise<T> {
    return watchingForEnd(
      this.#leases,
      fencedTransaction(this, source as Pool, work as (client: PoolClient) => Promise<T>, options),
    )
  }

  /** Fences the transaction that is open on a `pg` client by all of them: see `Lease.fence`. */
  async fence(client: QueryClient, bounds?: FenceBounds): Promise<void> {
    await fenceClient(this, client, bounds)
  }

  /** The same as SQL without parameters, one statement for each: the first ones after `begin`. */
  fenceSql(bounds: FenceBounds = {}): string {
    return fenceLiterals(this, bounds)
  }

  /** Gives all of them back, and tells the worst that became of one: `unknown`, else `not-held`, else `released`. */
  async release(): Promise<ReleaseOutcome> {
    const outcomes = await Promise.all(this.#leases.map((lease) => lease.release()))
    return (['unknown', 'not-held'] as const).find((outcome) => outcomes.includes(outcome)) ?? 'released'
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }
}
