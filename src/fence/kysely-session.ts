import type { CompiledQuery, DatabaseConnection, Kysely, QueryResult } from 'kysely'
import { Client } from 'pg'
import { FencepostError } from '../errors.ts'

/** What is seen of a session while it is guarded. */
export interface SessionWatch {
  /** True or false once it is known whether the connection broke; undefined when it cannot be observed. */
  readonly isLost: boolean | undefined
  /** The server gave up waiting for a synchronous standby and said "committed" all the same. */
  readonly isCommitDoubtful: boolean
  /** From now on transaction control comes from Kysely, not from the caller's work. */
  workIsDone(): void
}

const transactionControl =
  /^\s*(begin|start\s+transaction|commit|end|abort|rollback(?!\s+to\b|\s+\w+\s+to\b)|prepare\s+transaction)\b/i

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
    } finally {
      guard.remove()
    }
  })
}

class SessionGuard implements SessionWatch {
  readonly #connection: DatabaseConnection
  readonly #executeQuery: DatabaseConnection['executeQuery']
  readonly #streamQuery: DatabaseConnection['streamQuery']
  readonly #fence: string
  #stage: 'before' | 'working' | 'done' | 'ended' = 'before'
  #client: Client | undefined
  #isLost = false
  isCommitDoubtful = false
  readonly #onLoss = (): void => {
    this.#isLost = true
  }
  readonly #onNotice = (notice: { code?: string | undefined }): void => {
    if (this.#stage === 'ended' && notice.code === '01000') this.isCommitDoubtful = true
  }

  constructor(connection: DatabaseConnection, fence: string) {
    this.#connection = connection
    this.#fence = fence
    // oxlint-disable typescript/unbound-method -- They are called on their connection.
    this.#executeQuery = connection.executeQuery
    this.#streamQuery = connection.streamQuery
    // oxlint-enable typescript/unbound-method
    connection.executeQuery = (query, options) => this.#execute(query, options)
    connection.streamQuery = (query, ...rest) => {
      this.#assertMaySend(query.sql)
      return this.#streamQuery.call(connection, query, ...rest) as never
    }
  }

  get isLost(): boolean | undefined {
    return this.#client === undefined ? undefined : this.#isLost
  }

  workIsDone(): void {
    this.#stage = 'done'
  }

  remove(): void {
    this.#connection.executeQuery = this.#executeQuery
    this.#connection.streamQuery = this.#streamQuery
    this.#client?.off('error', this.#onLoss)
    this.#client?.off('notice', this.#onNotice)
  }

  async #execute<R>(
    query: CompiledQuery,
    options: Parameters<DatabaseConnection['executeQuery']>[1],
  ): Promise<QueryResult<R>> {
    const send = (sql: string): Promise<QueryResult<R>> =>
      this.#executeQuery.call(this.#connection, { ...query, sql }, options) as never
    if (this.#stage === 'before') {
      this.#stage = 'working'
      try {
        return await this.#watching(() => send(`${query.sql}; ${this.#fence}`))
      } catch (error) {
        // The server has begun, but Kysely takes a failed begin for none and would leave the transaction open.
        await send('rollback').catch(() => {})
        throw error
      }
    }
    this.#assertMaySend(query.sql)
    if (this.#stage === 'done' && transactionControl.test(query.sql)) this.#stage = 'ended'
    return send(query.sql)
  }

  #assertMaySend(sql: string): void {
    if (this.#stage === 'working' && transactionControl.test(sql)) {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a fenced transaction is ended by fencepost alone: what came after would not be fenced. Return from the work to ' +
          'commit, throw to roll back.',
      )
    }
    // A failed COMMIT is followed by a ROLLBACK.
    if (this.#stage === 'ended' && !/^\s*rollback\b/i.test(sql)) {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a statement came after the fenced transaction had ended, and was not sent. Await every statement of the work.',
      )
    }
  }

  /**
   * Finds the session's client while it takes its first statement, which nothing else gives away: true when the caller's
   * `pg` is the copy that fencepost uses. With another copy the pool's owner has to listen to its clients' errors.
   */
  #watching<T>(send: () => Promise<T>): Promise<T> {
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
      seen?.on('error', this.#onLoss)
      seen?.on('notice', this.#onNotice)
    }
  }
}
