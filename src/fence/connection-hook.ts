import type { CompiledQuery, DatabaseConnection, QueryResult } from 'kysely'
import type { Client } from 'pg'

export type Execute = DatabaseConnection['executeQuery']
export type Stream = DatabaseConnection['streamQuery']
export type StreamOptions = Parameters<Stream> extends [unknown, ...infer Rest] ? Rest : never

/** Who decides what goes out on a connection of Kysely's. */
export interface ConnectionGuard {
  execute<R>(query: CompiledQuery, options: Parameters<Execute>[1]): Promise<QueryResult<R>>
  stream(query: CompiledQuery, ...rest: StreamOptions): ReturnType<Stream>
}

/**
 * What stands in front of a connection from its first fenced transaction on, and lets everything through while there is none: to
 * replace a method and put it back costs more each time than to ask for a guard.
 */
export class ConnectionHook {
  static readonly #hooks = new WeakMap<DatabaseConnection, ConnectionHook>()
  readonly executeQuery: Execute
  readonly streamQuery: Stream
  /** Whether nobody, such as Kysely's own log, wants to see what is sent. */
  readonly isPlain: boolean
  guard: ConnectionGuard | undefined

  static of(connection: DatabaseConnection): ConnectionHook {
    let hook = ConnectionHook.#hooks.get(connection)
    if (hook === undefined) {
      hook = new ConnectionHook(connection)
      ConnectionHook.#hooks.set(connection, hook)
    }
    return hook
  }

  private constructor(connection: DatabaseConnection) {
    this.isPlain = !Object.hasOwn(connection, 'executeQuery') && !Object.hasOwn(connection, 'streamQuery')
    this.executeQuery = connection.executeQuery.bind(connection)
    this.streamQuery = connection.streamQuery.bind(connection)
    connection.executeQuery = (query, options) =>
      this.guard === undefined
        ? this.executeQuery(query, options)
        : (this.guard.execute(query, options) as never)
    connection.streamQuery = (query, ...rest) =>
      this.guard === undefined
        ? this.streamQuery(query, ...rest)
        : (this.guard.stream(query, ...rest) as never)
  }
}

type Query = (...args: unknown[]) => unknown

/** The same before a client of `pg`: for the one statement that is to be sent in another way. */
export class ClientHook {
  static readonly #hooks = new WeakMap<Client, ClientHook>()
  readonly #query: Query
  readonly #client: { query: unknown }
  /** Takes the next statement over. */
  next: Query | undefined

  /** Undefined for a client that somebody else stands before. */
  static of(client: Client): ClientHook | undefined {
    let hook = ClientHook.#hooks.get(client)
    if (hook === undefined && !Object.hasOwn(client, 'query')) {
      hook = new ClientHook(client)
      ClientHook.#hooks.set(client, hook)
    }
    return hook?.isFirst === true ? hook : undefined
  }

  private constructor(client: Client) {
    this.#client = client
    this.#query = (...args) => {
      const { next } = this
      if (next !== undefined) {
        this.next = undefined
        return next(...args)
      }
      // Looked up each time: whoever replaces it later means this client as well.
      const { query } = Object.getPrototypeOf(client) as { query: Query }
      return query.apply(client, args)
    }
    this.#client.query = this.#query
  }

  get isFirst(): boolean {
    return this.#client.query === this.#query
  }
}
