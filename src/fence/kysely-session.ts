import type { CompiledQuery, DatabaseConnection, Kysely, QueryResult } from 'kysely'
import { Client } from 'pg'
import { isStandbyWarning } from '../database/connection.ts'
import { isConnectionLoss } from './fence-failure.ts'
import { OpenTransaction } from './open-transaction.ts'
import { quieten } from './quiet-client.ts'

/** What is seen of a session while it is guarded. */
export interface SessionWatch {
  /** True or false once it is known whether the connection broke; undefined when it cannot be observed. */
  readonly isLost: boolean | undefined
  /** The server gave up waiting for a synchronous standby and said "committed" all the same. */
  readonly isCommitDoubtful: boolean
  /** From now on transaction control comes from Kysely, not from the caller's work. */
  workIsDone(): void
}

/**
 * Guards one session of the caller's Kysely for the time of one fenced transaction. Kysely has no hooks for it, so the
 * session's own executeQuery is replaced meanwhile (as Kysely itself does for its log):
 *
 *   - `begin` carries the fence along, because a round trip is what a fence costs;
 *   - the caller's work cannot end the transaction under its own feet;
 *   - nothing is sent once COMMIT or ROLLBACK was, because it would run outside the transaction and unfenced;
 *   - a connection that breaks between two statements is noticed. Otherwise `pg` would report it as an error event that
 *     nobody listens to, which ends the process.
 */
export async function withGuardedSession<DB, T>(
  session: Kysely<DB>,
  fence: string,
  run: (watch: SessionWatch) => Promise<T>,
): Promise<T> {
  return session.getExecutor().provideConnection(async (connection) => {
    const guard = new SessionGuard(connection, fence)
    try {
      return await run(guard)
    } catch (error) {
      guard.discardIfLost(error)
      throw error
    } finally {
      guard.remove()
    }
  })
}

/**
 * Watches one session of the caller's Kysely for the time of statements that fencepost sends on its own account: a
 * connection that breaks ends no process, and a commit in doubt is noticed.
 */
export async function withWatchedSession<DB, T>(
  session: Kysely<DB>,
  run: (watch: Pick<SessionWatch, 'isLost' | 'isCommitDoubtful'>) => Promise<T>,
): Promise<T> {
  return session.getExecutor().provideConnection(async (connection) => {
    const watch = new ClientWatch(connection)
    // oxlint-disable-next-line typescript/unbound-method -- It is called on its connection.
    const { executeQuery } = connection
    connection.executeQuery = (query, options) => {
      connection.executeQuery = executeQuery
      return watch.first(() => executeQuery.call(connection, query, options)) as never
    }
    try {
      return await run(watch)
    } catch (error) {
      watch.discardIfLost(error)
      throw error
    } finally {
      connection.executeQuery = executeQuery
      watch.stop()
    }
  })
}

class SessionGuard implements SessionWatch {
  readonly #connection: DatabaseConnection
  readonly #executeQuery: DatabaseConnection['executeQuery']
  readonly #streamQuery: DatabaseConnection['streamQuery']
  readonly #fence: string
  readonly #transaction = new OpenTransaction()
  #hasBegun = false
  readonly #watch: ClientWatch

  constructor(connection: DatabaseConnection, fence: string) {
    this.#connection = connection
    this.#fence = fence
    this.#watch = new ClientWatch(connection)
    // oxlint-disable typescript/unbound-method -- They are called on their connection.
    this.#executeQuery = connection.executeQuery
    this.#streamQuery = connection.streamQuery
    // oxlint-enable typescript/unbound-method
    connection.executeQuery = (query, options) => this.#execute(query, options)
    connection.streamQuery = (query, ...rest) => {
      this.#transaction.assertMaySend(query.sql)
      return this.#streamQuery.call(connection, query, ...rest) as never
    }
  }

  get isLost(): boolean | undefined {
    return this.#watch.isLost
  }

  get isCommitDoubtful(): boolean {
    return this.#watch.isCommitDoubtful
  }

  workIsDone(): void {
    this.#transaction.beginEnd()
  }

  discardIfLost(error: unknown): void {
    this.#watch.discardIfLost(error)
  }

  remove(): void {
    this.#connection.executeQuery = this.#executeQuery
    this.#connection.streamQuery = this.#streamQuery
    this.#watch.stop()
  }

  async #execute<R>(
    query: CompiledQuery,
    options: Parameters<DatabaseConnection['executeQuery']>[1],
  ): Promise<QueryResult<R>> {
    const send = (sql: string): Promise<QueryResult<R>> =>
      this.#executeQuery.call(this.#connection, { ...query, sql }, options) as never
    if (!this.#hasBegun) {
      this.#hasBegun = true
      try {
        return await this.#watch.first(() => send(`${query.sql}; ${this.#fence}`))
      } catch (error) {
        // The server has begun, but Kysely takes a failed begin for none and would leave the transaction open.
        await send('rollback').catch(() => {})
        throw error
      }
    }
    const { stage } = this.#transaction
    if (stage !== 'working' && (query.sql === 'rollback' || (stage === 'ending' && query.sql === 'commit'))) {
      // Kysely's own. A ROLLBACK may follow a COMMIT that failed.
      this.#transaction.isOver()
      return send(query.sql)
    }
    this.#transaction.assertMaySend(query.sql)
    const result = await send(query.sql)
    this.#transaction.assertStillOpen(this.#watch.transactionStatus)
    return result
  }
}

/** Listens to the client behind a connection of Kysely's. */
class ClientWatch {
  readonly #connection: DatabaseConnection
  #client: Client | undefined
  #isLost = false
  isCommitDoubtful = false
  readonly #onLoss = (): void => {
    this.#isLost = true
  }
  readonly #onNotice = (notice: { routine?: string | undefined }): void => {
    if (isStandbyWarning(notice)) this.isCommitDoubtful = true
  }

  constructor(connection: DatabaseConnection) {
    this.#connection = connection
  }

  get isLost(): boolean | undefined {
    return this.#client === undefined ? undefined : this.#isLost
  }

  get transactionStatus(): string | null | undefined {
    return this.#client?.getTransactionStatus?.()
  }

  /**
   * Finds the client while it takes the first statement, which nothing else gives away: it works when the caller's `pg` is
   * the copy that fencepost uses. With another copy the pool's owner has to listen to its clients' errors.
   */
  first<T>(send: () => Promise<T>): Promise<T> {
    const prototype = Client.prototype as { query: (...args: unknown[]) => unknown }
    const { query } = prototype
    let seen: Client | undefined
    prototype.query = function capture(this: Client, ...args: unknown[]): unknown {
      // oxlint-disable-next-line typescript/no-this-alias -- The client is what is looked for.
      seen = this
      return query.apply(this, args)
    }
    try {
      return send()
    } finally {
      prototype.query = query
      this.#client = seen
      if (seen !== undefined) quieten(seen)
      seen?.on('error', this.#onLoss)
      seen?.on('notice', this.#onNotice)
      if (seen === undefined) warnOfOtherCopy(this.#connection)
    }
  }

  /** A pool takes a broken client back as long as nobody has ended it, and the next borrower would meet the break. */
  discardIfLost(failure: unknown): void {
    if (isConnectionLoss(failure, this.isLost)) this.#client?.end().catch(() => {})
  }

  stop(): void {
    this.#client?.off('error', this.#onLoss)
    this.#client?.off('notice', this.#onNotice)
  }
}

let hasWarned = false

/** Only Kysely's own dialect for `pg` is of interest: other drivers do not end the process over a lost connection. */
function warnOfOtherCopy(connection: DatabaseConnection): void {
  if (hasWarned || connection.constructor.name !== 'PostgresConnection') return
  hasWarned = true
  process.emitWarning(
    'the Kysely that was passed in uses another copy of pg than fencepost. A fenced transaction whose connection breaks would ' +
      "end the process: add pool.on('connect', (client) => client.on('error', () => {})) to its pool, or install one version of pg.",
    { code: 'FENCEPOST_OTHER_PG' },
  )
}
