import type { Kysely } from 'kysely'
import type { Pool, PoolClient } from 'pg'
import {
  type Fence,
  type FenceBounds,
  type QueryClient,
  type Statement,
  fenceClient,
  fenceEnvironment,
  fenceLiteral,
  fenceStatement,
} from './fence.ts'
import {
  type FencedTransaction,
  type FencedTransactionOptions,
  fencedTransaction,
} from './fenced-transaction.ts'
import { type FencedSessionOptions, fencedSession } from './fenced-session.ts'
import { StaleTermError } from '../errors.ts'
import { HeldLease } from '../lease/held-lease.ts'

/**
 * A lease held by this process: one term of it, with the fence that guards writes under it.
 *
 * @example
 * ```ts
 * await using lease = await fencepost.acquire('shard-7', { ttl: '15s' })
 * await lease.transaction(db, async (tx) => {
 *   await tx.updateTable('accounts').set({ status: 'settled' }).where('id', '=', 7).execute()
 * })
 * ```
 */
export class Lease extends HeldLease implements Fence {
  /**
   * Runs `work` in a fenced transaction on the caller's Kysely or `pg` pool, which is borrowed and never ended. Begin and
   * fence are one round trip; no newer term can be granted until the transaction ends, so keep it short.
   *
   * @throws LeaseLostError, StaleTermError, HolderExpiredError: nothing was written.
   * @throws DatabaseError with code `TRANSACTION_RETRYABLE`, `TRANSACTION_ABORTED` or `TRANSACTION_CUT_OFF`: nothing
   * was written.
   * @throws OutcomeUnknownError when the answer to COMMIT was lost.
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
      [this],
      fencedTransaction(this, source as Pool, work as (client: PoolClient) => Promise<T>, options),
    )
  }

  /**
   * Runs `work` on a session of the caller's Kysely or `pg` pool in which every write is fenced, although `work` begins and commits
   * its transactions itself, as a migration tool does: see `fencedSession`, which has what is not guaranteed. The session is closed
   * afterwards; the Kysely or pool is borrowed and never ended.
   *
   * @throws what `fencedSession` throws.
   * @example
   * ```ts
   * import { promises as fs } from 'node:fs'
   * import path from 'node:path'
   * import { FileMigrationProvider, Migrator } from 'kysely/migration'
   *
   * const provider = new FileMigrationProvider({ fs, path, migrationFolder: path.resolve('migrations') })
   * await fencepost.withLease('deploy', { wait: '10m' }, (lease) =>
   *   lease.session(db, async (session) => {
   *     const { error } = await new Migrator({ db: session, provider }).migrateToLatest()
   *     if (error !== undefined) throw error
   *   }),
   * )
   * ```
   */
  session<DB, T>(
    db: Kysely<DB>,
    work: (db: Kysely<DB>) => Promise<T>,
    options?: FencedSessionOptions,
  ): Promise<T>
  session<T>(pool: Pool, work: (client: PoolClient) => Promise<T>, options?: FencedSessionOptions): Promise<T>
  async session<T>(
    source: Kysely<unknown> | Pool,
    work: (session: never) => Promise<T>,
    options?: FencedSessionOptions,
  ): Promise<T> {
    return watchingForEnd(
      [this],
      fencedSession(this, source as Pool, work as (client: PoolClient) => Promise<T>, options),
    )
  }

  /**
   * Fences the transaction that is open on a `pg` client. It must be the first statement after `begin`, outside any
   * savepoint. It does not see what is sent later, so keep COMMIT and ROLLBACK out of texts of several statements: what comes
   * after them is not fenced. `transaction` notices that.
   *
   * @throws StaleTermError, HolderExpiredError, ForeignLeaseError: roll back, nothing may be written.
   * @example
   * ```ts
   * await client.query('begin')
   * await lease.fence(client)
   * await client.query('update accounts set status = $1 where id = $2', ['settled', 7])
   * await client.query('commit')
   * ```
   */
  async fence(client: QueryClient, bounds?: FenceBounds): Promise<void> {
    await fenceClient(this, client, bounds)
  }

  /** The fence as SQL with its parameters, for any other client: the first statement after `begin`. */
  fenceStatement(bounds?: FenceBounds): Statement {
    return fenceStatement(this.term, bounds)
  }

  /**
   * The same as one statement without parameters, for whatever takes only text: the first statement after `begin`. Where a
   * library reads `?` in text as a parameter (Knex), use `fenceStatement`.
   *
   * @example
   * ```ts
   * import postgres from 'postgres'
   *
   * const sql = postgres(process.env.DATABASE_URL!)
   * await sql.begin(async (tx) => {
   *   await tx.unsafe(lease.fenceSql())
   *   await tx`update accounts set status = 'settled' where id = 7`
   * })
   * ```
   */
  fenceSql(bounds: FenceBounds = {}): string {
    return fenceLiteral(this.term, bounds)
  }

  /** Environment variables that let a child process fence its writes by this term: see `inheritedFence`. */
  get environment(): Record<string, string> {
    return fenceEnvironment(this.term)
  }
}

/** Tells the lease that its term is over when the database has refused a write for it. */
export async function watchingForEnd<T>(leases: readonly Lease[], writing: Promise<T>): Promise<T> {
  try {
    return await writing
  } catch (error) {
    // The term is over although the heartbeat goes on: somebody has released it by force. The fence was the first
    // statement of the transaction, so it cannot have looked at rows that are older than the grant.
    leases.find((lease) => isOfTerm(error, lease))?.lost('taken', error)
    throw error
  }
}

function isOfTerm(error: unknown, { name, token }: Lease): boolean {
  return (
    error instanceof StaleTermError && error.by === 'lease' && error.lease === name && error.token === token
  )
}
