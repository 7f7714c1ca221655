import type { IsolationLevel, Kysely, Transaction } from 'kysely'
import type { Client, Pool, PoolClient } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import { sendControl } from './control-query.ts'
import { DeferredBegin } from './deferred-begin.ts'
import { type Fence, type FenceBounds, type FenceCall, fenceCallsOf, termsOf } from './fence.ts'
import {
  type Phase,
  abortedTransaction,
  cutOff,
  doubtfulCommit,
  readOnlyFailure,
  termAtFault,
  transactionFailure,
} from './fence-failure.ts'
import { guardedClient } from './guarded-client.ts'
import { OpenTransaction } from './open-transaction.ts'
import { withGuardedSession } from './kysely-session.ts'
import { sendOpening } from './opening.ts'
import { TransactionWatch } from './transaction-watch.ts'

/** A Kysely transaction whose every statement is fenced, and a fence for repositories. */
export type FencedTransaction<DB> = Transaction<DB> & Fence

export interface FencedTransactionOptions extends FenceBounds {
  /** Default: the session's. Safe at every level; above read committed, expect `TRANSACTION_RETRYABLE`. */
  readonly isolationLevel?: Exclude<IsolationLevel, 'snapshot'> | undefined
  /**
   * When the transaction begins. `at-once`, the default: before the work is called, which so starts only when the fence holds.
   * `with-first-statement`: in the same message as the first statement of the work, which saves a round trip, and the time until
   * then does not count as silence. That statement is fenced as every other; a refusal is thrown by it, and by the transaction
   * whatever the work makes of it.
   *
   * Not guaranteed with it: that the term is checked before the work starts, or at all when the work sends nothing. A first
   * statement that is a text of several, a cursor or a stream goes out after the beginning, and so does every one where `pg`
   * pipelines, or is not the client; on a Kysely also the first one of each connection.
   */
  readonly begin?: 'at-once' | 'with-first-statement' | undefined
}

const rollbackWithinMs = 5000

const beginnings = ['at-once', 'with-first-statement']

const isolationLevels = ['read uncommitted', 'read committed', 'repeatable read', 'serializable']

/**
 * Runs `work` in a transaction in which every statement is fenced, raw SQL included: `begin` and the fence go out in
 * one round trip, and until the transaction ends no newer term of the lease can be granted. It commits when `work`
 * settles well, and rolls back when it throws or when the lease was lost meanwhile.
 *
 * Not guaranteed: effects of `work` outside the database. Do not catch and swallow an error of a statement in it; the
 * transaction is then rolled back (`TRANSACTION_ABORTED`). And a text of several statements that ends its transaction in the
 * middle (`insert …; commit; insert …`) is refused only when it has run; nothing is sent after it. That is not seen on a Kysely
 * with another copy of `pg`, or with another driver.
 *
 * @throws LeaseLostError, StaleTermError, HolderExpiredError: nothing was written.
 * @throws FencepostError with code `TRANSACTION_ENDED` when `work` has ended the transaction, or sent a statement after its end.
 * @throws OutcomeUnknownError when the answer to COMMIT was lost.
 * @throws DatabaseError with code `QUERY_FAILED` where transactions are read-only by default: nothing was written.
 */
export function fencedTransaction<DB, T>(
  fence: Fence,
  db: Kysely<DB>,
  work: (tx: FencedTransaction<DB>) => Promise<T>,
  options?: FencedTransactionOptions,
): Promise<T>
/** The same on a `pg` pool: `work` gets the pool's client. The pool is borrowed and never ended. */
export function fencedTransaction<T>(
  fence: Fence,
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  options?: FencedTransactionOptions,
): Promise<T>
export async function fencedTransaction<DB, T>(
  fence: Fence,
  source: Kysely<DB> | Pool,
  work: ((tx: FencedTransaction<DB>) => Promise<T>) | ((client: PoolClient) => Promise<T>),
  options: FencedTransactionOptions = {},
): Promise<T> {
  const { isolationLevel } = options
  if (isolationLevel !== undefined && !isolationLevels.includes(isolationLevel)) {
    throw new InvalidArgumentError(
      'isolationLevel',
      isolationLevel,
      `isolationLevel must be one of ${isolationLevels.map((level) => `"${level}"`).join(', ')}; got "${isolationLevel as string}"`,
    )
  }
  if (options.begin !== undefined && !beginnings.includes(options.begin)) {
    throw new InvalidArgumentError(
      'begin',
      options.begin,
      `begin must be one of ${beginnings.map((each) => `"${each}"`).join(', ')}; got "${options.begin as string}"`,
    )
  }
  const calls = fenceCallsOf(fence, options)
  fence.assertHeld?.()
  const progress = new Progress()
  try {
    const result = isKysely(source)
      ? await onKysely(
          fence,
          source,
          work as (tx: FencedTransaction<DB>) => Promise<T>,
          calls,
          options,
          progress,
        )
      : await onPool(fence, source, work as (client: PoolClient) => Promise<T>, calls, options, progress)
    if (progress.isCommitDoubtful) throw doubtfulCommit(fence.term)
    return result
  } catch (error) {
    // A rollback that fails on a dead connection must not hide why it was rolled back.
    const first = progress.failure === undefined ? error : progress.failure.error
    const term = termAtFault(first, termsOf(fence))
    throw transactionFailure(first, progress.phase, term, progress.watch?.isLost)
  }
}

/** What is known of a transaction that is under way. */
class Progress {
  phase: Phase = 'connecting'
  /** What ended the work. */
  failure: { readonly error: unknown } | undefined
  /** Undefined, or not able to tell, when the connection cannot be observed. */
  watch: { readonly isLost: boolean | undefined } | undefined
  isCommitDoubtful = false
}

async function onKysely<DB, T>(
  fence: Fence,
  db: Kysely<DB>,
  work: (tx: FencedTransaction<DB>) => Promise<T>,
  calls: readonly FenceCall[],
  options: FencedTransactionOptions,
  progress: Progress,
): Promise<T> {
  if (db.isTransaction) {
    throw new InvalidArgumentError(
      'db',
      db,
      'db is already a transaction. The fence must be the first statement after begin: pass the Kysely instance itself.',
    )
  }
  return db.connection().execute((session) =>
    withGuardedSession(session, fence, calls, options.begin === 'with-first-statement', async (watch) => {
      progress.phase = 'beginning'
      progress.watch = watch
      const { isolationLevel } = options
      const transaction = session.transaction()
      const builder =
        isolationLevel === undefined ? transaction : transaction.setIsolationLevel(isolationLevel)
      try {
        return await builder.execute(async (tx) => {
          try {
            return await attempt(fence, progress, () => work(asFenced(tx, fence)))
          } finally {
            watch.workIsDone()
          }
        })
      } finally {
        progress.isCommitDoubtful = watch.isCommitDoubtful
      }
    }),
  )
}

function asFenced<DB>(tx: Transaction<DB>, { term, terms }: Fence): FencedTransaction<DB> {
  return Object.assign(tx, { term, terms })
}

async function onPool<T>(
  fence: Fence,
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  calls: readonly FenceCall[],
  options: FencedTransactionOptions,
  progress: Progress,
): Promise<T> {
  const client = await pool.connect()
  const watch = new TransactionWatch(client)
  const transaction = new OpenTransaction(watch)
  progress.watch = watch
  const { isolationLevel } = options
  const begin = isolationLevel === undefined ? 'begin' : `begin isolation level ${isolationLevel}`
  const pgClient = client as unknown as Client
  const deferred =
    options.begin === 'with-first-statement'
      ? new DeferredBegin({ fence, client: pgClient, watch, transaction, begin, calls })
      : undefined
  let isSpoilt = false
  try {
    if (deferred === undefined) {
      progress.phase = 'beginning'
      await sendOpening(pgClient, watch, begin, calls)
    }
    const result = await attempt(fence, progress, async () => {
      const done = await work(guardedClient(client, transaction, deferred))
      // What sends itself may be on its way still.
      if (transaction.isBusy) await transaction.idle()
      return done
    })
    transaction.beginEnd()
    // Refused when the work has ended the transaction and swallowed the error that said so.
    transaction.assertMaySend('commit')
    if (deferred?.isPending === true) {
      transaction.isOver()
      return result
    }
    const { command } = await transaction.commit(() => sendControl(pgClient, 'commit'))
    if (command === 'ROLLBACK') throw abortedTransaction(fence.term)
    progress.isCommitDoubtful = watch.isCommitDoubtful
    return result
  } catch (error) {
    transaction.isOver()
    isSpoilt = deferred?.isPending !== true && !(await isRolledBack(client))
    if (progress.phase === 'beginning' && !isSpoilt) {
      throw await readOnlyFailure(error, fence.term, (sql) => client.query(sql))
    }
    throw error
  } finally {
    watch.stop()
    client.release(isSpoilt || watch.isLost)
  }
}

/** A rollback can queue for ever behind a stream that nobody reads; without the session the server does it by itself. */
async function isRolledBack(client: PoolClient): Promise<boolean> {
  const { promise: timeout, resolve } = Promise.withResolvers<boolean>()
  const timer = setTimeout(resolve, rollbackWithinMs, false)
  try {
    return await Promise.race([client.query('rollback').then(() => true), timeout])
  } catch {
    return false
  } finally {
    clearTimeout(timer)
  }
}

/** The caller's work, and what is known when it is over. */
async function attempt<T>(fence: Fence, progress: Progress, work: () => Promise<T>): Promise<T> {
  progress.phase = 'working'
  try {
    const result = await work()
    // The row lock would let it commit safely. But nobody should see one term both lost and committed.
    fence.assertHeld?.()
    // What was not sent cannot be in doubt.
    if (progress.watch?.isLost === true) throw cutOff(fence.term, new Error('the connection was lost'))
    progress.phase = 'committing'
    return result
  } catch (error) {
    progress.failure = { error }
    throw error
  }
}

function isKysely<DB>(source: Kysely<DB> | Pool): source is Kysely<DB> {
  return 'getExecutor' in source
}
