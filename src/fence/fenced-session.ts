import type { Kysely } from 'kysely'
import type { Client, Pool, PoolClient } from 'pg'
import { show } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { ClientWatch } from './client-watch.ts'
import { type Fence, type FenceBounds, fenceLiterals } from './fence.ts'
import { connectFailure } from './fence-failure.ts'
import { SessionGate } from './session-gate.ts'

export interface FencedSessionOptions extends FenceBounds {
  /**
   * Whether statements that PostgreSQL does not run in a transaction are sent, such as `create index concurrently` or `vacuum`.
   * Their term is checked right before. A pause just then, and a term that ends while the statement runs, go unnoticed, unless
   * it is DDL in a protected schema: then the database checks when it begins and when it ends. Not behind a pooler. Default false:
   * they are refused, and nothing of them is carried out.
   *
   * A CALL, or a DO with a COMMIT, a ROLLBACK or a CALL in it, goes out like that at once when it is a statement of its own outside
   * of a transaction: between two `begin` and `commit` it is fenced. Any other statement is tried in a fenced transaction first. One
   * that fails there only in the middle (several statements in one text with a `vacuum` at the end, say) is so carried out twice: what
   * a rollback does not undo, such as the numbers of a sequence, happens twice.
   */
  readonly outsideTransactions?: boolean | undefined
}

/**
 * Runs `work` on a session of the pool or Kysely in which every write is fenced, although `work` begins and commits its
 * transactions itself: for a migration tool, say. `lease.transaction` is the simpler choice for code of your own.
 *
 *   - Every `begin` carries the fence: until that transaction ends, no newer term of the lease can be granted. One that is read-only
 *     carries none, and cannot become one that writes.
 *   - `set transaction` right after `begin` works as ever, except for `set transaction snapshot`.
 *   - A statement outside of a transaction runs in a fenced transaction of its own.
 *   - After the first refusal nothing more is sent, and the session's promise rejects with it, whatever `work` made of it.
 *
 * The session is closed when `work` has settled, so what was set in it (`search_path`, an advisory lock) meets nobody else.
 * Silent for longer than `idleTimeout`, in a transaction or between two, it is ended by the server (between two on PostgreSQL 14 and
 * later, and not behind a pooler).
 *
 * Not guaranteed: a transaction that is committed stays, when the term ends before the next one. And a text of several
 * statements that ends its transaction in the middle (`insert …; commit; insert …`) is refused only when it has run; a protected
 * table refuses what is stale in it all the same.
 *
 * @throws LeaseLostError, StaleTermError, HolderExpiredError: the transaction at hand was rolled back, earlier ones stay.
 * @throws DatabaseError with code `TRANSACTION_CUT_OFF`, or `TRANSACTION_ABORTED` when `work` left a transaction open: the same.
 * With `QUERY_FAILED` for a statement that PostgreSQL does not run in a transaction, and for `set transaction snapshot`.
 * @throws FencepostError with code `TRANSACTION_ENDED` for transaction control that is not a statement of its own.
 * @throws OutcomeUnknownError when the answer to a COMMIT, or to a statement outside of transactions, was lost, and when `work` has
 * returned while a cursor, a stream or another submittable still runs that may commit.
 * @example
 * ```ts
 * import { fencedSession, inheritedFence } from 'fencepost'
 * import { runner } from 'node-pg-migrate'
 * import { Pool } from 'pg'
 *
 * const pool = new Pool({ connectionString: process.env.DATABASE_URL })
 * await fencedSession(inheritedFence(), pool, (dbClient) =>
 *   runner({ dbClient, dir: 'migrations', direction: 'up', migrationsTable: 'pgmigrations', noLock: true }),
 * )
 * ```
 */
export function fencedSession<DB, T>(
  fence: Fence,
  db: Kysely<DB>,
  work: (db: Kysely<DB>) => Promise<T>,
  options?: FencedSessionOptions,
): Promise<T>
export function fencedSession<T>(
  fence: Fence,
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  options?: FencedSessionOptions,
): Promise<T>
export async function fencedSession<DB, T>(
  fence: Fence,
  source: Kysely<DB> | Pool,
  work: ((db: Kysely<DB>) => Promise<T>) | ((client: PoolClient) => Promise<T>),
  options: FencedSessionOptions = {},
): Promise<T> {
  const { outsideTransactions } = options
  if (outsideTransactions !== undefined && typeof outsideTransactions !== 'boolean') {
    throw new InvalidArgumentError(
      'outsideTransactions',
      outsideTransactions,
      `outsideTransactions must be true or false; got ${show(outsideTransactions)}`,
    )
  }
  // The bounds are checked before anything is sent.
  fenceLiterals(fence, options)
  fence.assertHeld?.()
  return 'getExecutor' in source
    ? onKysely(fence, source, work as (db: Kysely<DB>) => Promise<T>, options)
    : onPool(fence, source, work as (client: PoolClient) => Promise<T>, options)
}

async function onPool<T>(
  fence: Fence,
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  options: FencedSessionOptions,
): Promise<T> {
  const client = await pool.connect().catch((error: unknown) => {
    throw connectFailure(error)
  })
  // oxlint-disable-next-line typescript/unbound-method -- The pool's own, which needs no receiver.
  const { release } = client
  // Whoever borrows a client gives it back. This one is fencepost's to end.
  client.release = () => {}
  try {
    return await throughGate(fence, client as unknown as Client, () => work(client), options)
  } finally {
    release(true)
  }
}

async function onKysely<DB, T>(
  fence: Fence,
  db: Kysely<DB>,
  work: (db: Kysely<DB>) => Promise<T>,
  options: FencedSessionOptions,
): Promise<T> {
  if (db.isTransaction) {
    throw new InvalidArgumentError(
      'db',
      db,
      'db is already a transaction. A fenced session begins its own: pass the Kysely instance itself.',
    )
  }
  let hasConnected = false
  try {
    return await db.connection().execute(async (session) => {
      hasConnected = true
      const client = await clientBehind(session)
      try {
        return await throughGate(fence, client, () => work(session), options)
      } finally {
        // Its pool lets go of a client that has been ended.
        client.end().catch(() => {})
      }
    })
  } catch (error) {
    throw hasConnected ? error : connectFailure(error)
  }
}

async function clientBehind<DB>(session: Kysely<DB>): Promise<Client> {
  const query = session.selectNoFrom((eb) => eb.lit(1).as('one')).compile()
  const client = await session.getExecutor().provideConnection(async (connection) => {
    const watch = new ClientWatch(connection)
    try {
      await watch.first(() => connection.executeQuery(query))
      return watch.client
    } catch (error) {
      throw connectFailure(error)
    } finally {
      watch.stop()
    }
  })
  if (client !== undefined) return client
  throw new InvalidArgumentError(
    'db',
    session,
    'this Kysely does not use the copy of pg that fencepost uses, so its session cannot be fenced: pass a pool',
  )
}

async function throughGate<T>(
  fence: Fence,
  client: Client,
  work: () => Promise<T>,
  options: FencedSessionOptions,
): Promise<T> {
  const gate = new SessionGate(fence, client, options)
  try {
    await gate.open()
    const result = await work()
    await gate.finish()
    if (gate.refusal !== undefined) throw gate.refusal
    return result
  } catch (error) {
    // A tool wraps errors, or tells of the one after.
    throw gate.refusal ?? error
  } finally {
    gate.close()
  }
}
