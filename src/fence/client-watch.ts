import type { DatabaseConnection, Kysely } from 'kysely'
import { Client } from 'pg'
import { isConnectionLoss } from './fence-failure.ts'
import { TransactionWatch } from './transaction-watch.ts'

/** The clients behind the connections of Kysely's own dialect, which keeps one connection for each client. */
const clients = new WeakMap<DatabaseConnection, Client>()

/** Listens to the client behind a connection of Kysely's. */
export class ClientWatch {
  readonly #connection: DatabaseConnection
  #client: Client | undefined
  #watch: TransactionWatch | undefined

  constructor(connection: DatabaseConnection) {
    this.#connection = connection
    this.#watchClient(clients.get(connection))
  }

  /** Undefined when it is of another copy of `pg`, or of no `pg` at all, and before the first statement of a connection. */
  get client(): Client | undefined {
    return this.#client
  }

  /** What the client says. Undefined as the client is. */
  get transactionWatch(): TransactionWatch | undefined {
    return this.#watch
  }

  get isLost(): boolean | undefined {
    return this.#watch?.isLost
  }

  get isCommitDoubtful(): boolean {
    return this.#watch?.isCommitDoubtful === true
  }

  /**
   * Finds the client while it takes the first statement, which nothing else gives away: it works when the caller's `pg` is
   * the copy that fencepost uses. With another copy the pool's owner has to listen to its clients' errors.
   */
  first<T>(send: () => Promise<T>): Promise<T> {
    if (this.#client !== undefined) return send()
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
      this.#watchClient(seen)
      if (seen === undefined) warnOfOtherCopy(this.#connection)
      else if (isOfKysely(this.#connection)) clients.set(this.#connection, seen)
    }
  }

  #watchClient(client: Client | undefined): void {
    this.#client = client
    this.#watch = client && new TransactionWatch(client)
  }

  /** A pool takes a broken client back as long as nobody has ended it, and the next borrower would meet the break. */
  discardIfLost(failure: unknown): void {
    if (isConnectionLoss(failure, this.isLost)) this.#client?.end().catch(() => {})
  }

  stop(): void {
    this.#watch?.stop()
  }
}

function isOfKysely(connection: DatabaseConnection): boolean {
  return connection.constructor.name === 'PostgresConnection'
}

let hasWarned = false

/** Only Kysely's own dialect for `pg` is of interest: other drivers do not end the process over a lost connection. */
function warnOfOtherCopy(connection: DatabaseConnection): void {
  if (hasWarned || !isOfKysely(connection)) return
  hasWarned = true
  process.emitWarning(
    'the Kysely that was passed in uses another copy of pg than fencepost. A fenced transaction whose connection breaks would ' +
      "end the process: add pool.on('connect', (client) => client.on('error', () => {})) to its pool, or install one version of pg.",
    { code: 'FENCEPOST_OTHER_PG' },
  )
}

/**
 * Watches one session of the caller's Kysely for the time of statements that fencepost sends on its own account: a
 * connection that breaks ends no process, and a commit in doubt is noticed.
 */
export async function withWatchedSession<DB, T>(
  session: Kysely<DB>,
  run: (watch: Pick<ClientWatch, 'client' | 'isLost' | 'isCommitDoubtful'>) => Promise<T>,
): Promise<T> {
  // Not from within: whoever asks for it again there, as each statement does, waits until it is given back.
  const connection = await session.getExecutor().provideConnection(async (own) => own)
  const watch = new ClientWatch(connection)
  const unhook = watch.client === undefined ? hookFirst(connection, watch) : undefined
  try {
    return await run(watch)
  } catch (error) {
    watch.discardIfLost(error)
    throw error
  } finally {
    unhook?.()
    watch.stop()
  }
}

/** Lets the watch see the first statement of a connection, and gives what takes that back. */
function hookFirst(connection: DatabaseConnection, watch: ClientWatch): () => void {
  const isOwn = Object.hasOwn(connection, 'executeQuery')
  // oxlint-disable-next-line typescript/unbound-method -- It is called on its connection.
  const { executeQuery } = connection
  const hook: typeof executeQuery = (query, options) => {
    unhook()
    return watch.first(() => executeQuery.call(connection, query, options)) as never
  }
  const unhook = (): void => {
    if (connection.executeQuery !== hook) return
    if (isOwn) connection.executeQuery = executeQuery
    else delete (connection as Partial<DatabaseConnection>).executeQuery
  }
  connection.executeQuery = hook
  return unhook
}
