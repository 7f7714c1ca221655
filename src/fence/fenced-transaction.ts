import type { CompiledQuery, IsolationLevel, Kysely, QueryResult, Transaction } from 'kysely'
import type { Pool, PoolClient } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { type Fence, type FenceBounds, fenceLiteral } from './fence.ts'
import { type Phase, abortedTransaction, transactionFailure } from './fence-failure.ts'

/** A Kysely transaction whose every statement is fenced, and a fence for repositories. */
export type FencedTransaction<DB> = Transaction<DB> & Fence

export interface FencedTransactionOptions extends FenceBounds {
  /** Default: the session's. Safe at every level; above read committed, expect `TRANSACTION_RETRYABLE`. */
  readonly isolationLevel?: Exclude<IsolationLevel, 'snapshot'> | undefined
}

const isolationLevels = ['read uncommitted', 'read committed', 'repeatable read', 'serializable']

/**
 * Runs `work` in a transaction in which every statement is fenced, raw SQL included: `begin` and the fence go out in
 * one round trip, and until the transaction ends no newer term of the lease can be granted. It commits when `work`
 * settles well, and rolls back when it throws or when the lease was lost meanwhile.
 *
 * Not guaranteed: effects of `work` outside the database. Do not catch and swallow an error of a statement in it; the
 * transaction is then rolled back (`TRANSACTION_ABORTED`).
 *
 * @throws LeaseLostError, StaleTermError, HolderExpiredError: nothing was written.
 * @throws OutcomeUnknownError when the answer to COMMIT was lost.
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
  const statement = fenceLiteral(fence.term, options)
  fence.assertHeld?.()
  const progress: Progress = { phase: 'connecting', failure: undefined }
  try {
    return isKysely(source)
      ? await onKysely(
          fence,
          source,
          work as (tx: FencedTransaction<DB>) => Promise<T>,
          statement,
          options,
          progress,
        )
      : await onPool(fence, source, work as (client: PoolClient) => Promise<T>, statement, options, progress)
  } catch (error) {
    // A rollback that fails on a dead connection must not hide why it was rolled back.
    const first = progress.failure === undefined ? error : progress.failure.error
    throw transactionFailure(first, progress.phase, fence.term)
  }
}

interface Progress {
  phase: Phase
  failure: { readonly error: unknown } | undefined
}

async function onKysely<DB, T>(
  fence: Fence,
  db: Kysely<DB>,
  work: (tx: FencedTransaction<DB>) => Promise<T>,
  statement: string,
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
  return db.connection().execute(async (session) => {
    await foldIntoBegin(session, statement)
    progress.phase = 'beginning'
    const transaction = session.transaction()
    const builder =
      options.isolationLevel === undefined
        ? transaction
        : transaction.setIsolationLevel(options.isolationLevel)
    return builder.execute((tx) => attempt(fence, progress, () => work(asFenced(tx, fence.term))))
  })
}

/**
 * Lets the next statement on this session, which is Kysely's `begin`, carry the fence along. Kysely's own begin would
 * be a round trip of its own, and the round trip is what a fence costs.
 */
async function foldIntoBegin<DB>(session: Kysely<DB>, statement: string): Promise<void> {
  await session.getExecutor().provideConnection(async (connection) => {
    // oxlint-disable-next-line typescript/unbound-method -- It is always called on its connection.
    const original = connection.executeQuery
    connection.executeQuery = async <R>(
      begin: CompiledQuery,
      options?: Parameters<typeof original>[1],
    ): Promise<QueryResult<R>> => {
      const send = (sql: string): Promise<QueryResult<R>> =>
        original.call(connection, { ...begin, sql }, options) as never
      connection.executeQuery = original
      try {
        return await send(`${begin.sql}; ${statement}`)
      } catch (error) {
        // The server has begun, but Kysely takes a failed begin for none and would leave the transaction open.
        await send('rollback').catch(() => {})
        throw error
      }
    }
  })
}

function asFenced<DB>(tx: Transaction<DB>, term: Term): FencedTransaction<DB> {
  return Object.defineProperty(tx, 'term', { value: term }) as FencedTransaction<DB>
}

async function onPool<T>(
  fence: Fence,
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  statement: string,
  options: FencedTransactionOptions,
  progress: Progress,
): Promise<T> {
  const client = await pool.connect()
  let isSpoilt = false
  // Between statements nobody else listens, and a session that the server cuts off would end the process.
  const onError = (): void => {
    isSpoilt = true
  }
  client.on('error', onError)
  try {
    progress.phase = 'beginning'
    const level = options.isolationLevel === undefined ? '' : ` isolation level ${options.isolationLevel}`
    await client.query(`begin${level}; ${statement}`)
    const result = await attempt(fence, progress, () => work(client))
    const { command } = await client.query('commit')
    if (command === 'ROLLBACK') throw abortedTransaction(fence.term)
    return result
  } catch (error) {
    await client.query('rollback').catch(() => {
      isSpoilt = true
    })
    throw error
  } finally {
    client.off('error', onError)
    client.release(isSpoilt)
  }
}

/** The caller's work, and what is known when it is over. */
async function attempt<T>(fence: Fence, progress: Progress, work: () => Promise<T>): Promise<T> {
  progress.phase = 'working'
  try {
    const result = await work()
    // The row lock would let it commit safely. But nobody should see one term both lost and committed.
    fence.assertHeld?.()
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
