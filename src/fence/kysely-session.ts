import type { CompiledQuery, DatabaseConnection, Kysely, QueryResult } from 'kysely'
import { ClientWatch } from './client-watch.ts'
import type { Term } from '../lease/term.ts'
import { readOnlyFailure } from './fence-failure.ts'
import { OpenTransaction } from './open-transaction.ts'
import { TransactionWatch } from './transaction-watch.ts'

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
  term: Term,
  fence: string,
  run: (watch: SessionWatch) => Promise<T>,
): Promise<T> {
  return session.getExecutor().provideConnection(async (connection) => {
    const guard = new SessionGuard(connection, term, fence)
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

class SessionGuard implements SessionWatch {
  readonly #connection: DatabaseConnection
  readonly #executeQuery: DatabaseConnection['executeQuery']
  readonly #streamQuery: DatabaseConnection['streamQuery']
  readonly #term: Term
  readonly #fence: string
  #transaction = new OpenTransaction()
  #transactionWatch: TransactionWatch | undefined
  #hasBegun = false
  readonly #watch: ClientWatch

  constructor(connection: DatabaseConnection, term: Term, fence: string) {
    this.#connection = connection
    this.#term = term
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
    this.#transactionWatch?.stop()
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
        const result = await this.#watch.first(() => send(`${query.sql}; ${this.#fence}`))
        const { client } = this.#watch
        this.#transactionWatch = client && new TransactionWatch(client)
        this.#transaction = new OpenTransaction(this.#transactionWatch)
        return result
      } catch (error) {
        // The server has begun, but Kysely takes a failed begin for none and would leave the transaction open.
        await send('rollback').catch(() => {})
        throw await readOnlyFailure(error, this.#term, send)
      }
    }
    const { stage } = this.#transaction
    // Kysely's own. A ROLLBACK may follow a COMMIT that failed.
    if (stage === 'ending' && query.sql === 'commit') {
      this.#transaction.assertStillOpen()
      return this.#transaction.commit(() => send(query.sql))
    }
    if (stage !== 'working' && query.sql === 'rollback') {
      this.#transaction.isOver()
      return send(query.sql)
    }
    return this.#transaction.send(query.sql, () => send(query.sql))
  }
}
