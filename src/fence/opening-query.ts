import type { Client, Connection, Query, Submittable } from 'pg'
import { takesOwnQueries } from './control-query.ts'
import { textOf } from './guarded-client.ts'
import type { Opening } from './opening.ts'

type Callback = (error: unknown, result?: unknown) => void

/** What `pg` calls on a query of its own. Not all of it is in its types. */
interface Inner extends Query {
  name?: string
  text?: string
  binary?: boolean
  callback?: Callback
  queryMode?: string
  rows?: number
  _result?: unknown
  requiresPreparation?(): boolean
  submit(connection: Connection): Error | null
  handleRowDescription(message: unknown): void
  handleDataRow(message: unknown): void
  handleCommandComplete(message: unknown, connection: Connection): void
  handleEmptyQuery(connection: Connection): void
  handlePortalSuspended(connection: Connection): void
  handleReadyForQuery(connection: Connection): void
  handleCopyInResponse(connection: Connection): void
  handleCopyData(message: unknown, connection: Connection): void
  handleError(error: unknown, connection: Connection): void
}

type NewQuery = new (statement: unknown, values: unknown) => Inner

/**
 * `begin`, the fence and one statement in one message with one Sync: after an error in any of them the server carries out nothing
 * of what follows up to the Sync, so the statement never runs outside of the transaction or without the fence.
 *
 * It sends itself, as a cursor does, and hands on to the query of `pg` within it what is that one's to answer.
 */
export class OpeningQuery implements Submittable {
  readonly #inner: Inner
  readonly #opening: Opening
  /** The commands of the opening that have yet to be answered. */
  #unanswered: number
  #value: unknown
  #error: Error | undefined
  /** Where `pg` looks for it. */
  readonly query_timeout: unknown

  /** Undefined where the statement cannot be sent like this: by another client, or as something else than one statement. */
  static of(
    client: Client,
    opening: Opening,
    args: readonly unknown[],
    callback: Callback,
  ): OpeningQuery | undefined {
    const NewQuery = (client.constructor as { Query?: NewQuery }).Query
    if (NewQuery === undefined || !takesOwnQueries(client)) return undefined
    const [statement, values] = args
    // A name alone may stand for a text that is not known here.
    if (!isOneStatement(textOf(statement))) return undefined
    const inner = new NewQuery(statement, values)
    inner.callback = callback
    inner.queryMode = 'extended'
    // Without a Sync of its own at the end, nothing of it would be answered.
    if (inner.requiresPreparation?.() !== true || inner.rows !== undefined) return undefined
    return new OpeningQuery(inner, opening, statement)
  }

  private constructor(inner: Inner, opening: Opening, statement: unknown) {
    this.#inner = inner
    this.#opening = opening
    this.#unanswered = opening.length
    this.query_timeout = (statement as { query_timeout?: unknown }).query_timeout
  }

  /** Whether `begin` and the fence have been carried out. */
  get isOpened(): boolean {
    return this.#unanswered === 0
  }

  /** Under its name `pg` keeps a statement that the server has taken. What is taken first is not that. */
  get name(): string | undefined {
    return this.isOpened ? this.#inner.name : undefined
  }

  get text(): string | undefined {
    return this.#inner.text
  }

  get callback(): Callback | undefined {
    return this.#inner.callback
  }

  set callback(callback: Callback | undefined) {
    this.#inner.callback = callback!
  }

  get binary(): boolean | undefined {
    return this.#inner.binary
  }

  set binary(isBinary: boolean | undefined) {
    this.#inner.binary = isBinary!
  }

  /** Where `pg` puts the client's own type parsers. */
  get _result(): unknown {
    // oxlint-disable-next-line no-underscore-dangle -- The name is that of `pg`.
    return this.#inner._result
  }

  submit(connection: Connection): void {
    const { stream } = connection
    stream.cork()
    try {
      if (stream.writable) stream.write(this.#opening.messages)
      const error = this.#inner.submit(connection)
      if (error === null || error === undefined) return
      // Nothing of the statement was sent. What was is to be answered first.
      this.#error = error
      ;(connection as Connection & { sync(): void }).sync()
    } finally {
      stream.uncork()
    }
  }

  handleRowDescription(message: unknown): void {
    this.#inner.handleRowDescription(message)
  }

  handleDataRow(message: { fields: readonly unknown[] }): void {
    if (this.isOpened) this.#inner.handleDataRow(message)
    else this.#value = message.fields[0]
  }

  handleCommandComplete(message: unknown, connection: Connection): void {
    if (this.isOpened) {
      this.#inner.handleCommandComplete(message, connection)
      return
    }
    this.#unanswered -= 1
    if (this.isOpened) this.#opening.succeeded(this.#value)
  }

  handleEmptyQuery(connection: Connection): void {
    this.#inner.handleEmptyQuery(connection)
  }

  handlePortalSuspended(connection: Connection): void {
    this.#inner.handlePortalSuspended(connection)
  }

  handleCopyInResponse(connection: Connection): void {
    this.#inner.handleCopyInResponse(connection)
  }

  handleCopyData(message: unknown, connection: Connection): void {
    this.#inner.handleCopyData(message, connection)
  }

  handleReadyForQuery(connection: Connection): void {
    if (this.#error === undefined) this.#inner.handleReadyForQuery(connection)
    else this.#inner.handleError(this.#error, connection)
  }

  handleError(error: unknown, connection: Connection): void {
    const { name } = this.#inner
    const { submittedNamedStatements } = connection as {
      submittedNamedStatements?: Record<string, string>
    }
    // The server has passed it over, and has to be given its text again.
    if (!this.isOpened && name !== undefined) delete submittedNamedStatements?.[name]
    this.#inner.handleError(error, connection)
  }
}

/** A semicolon in a string counts as well: such a statement only costs a round trip more. */
function isOneStatement(text: string): boolean {
  const end = text.indexOf(';')
  return text.trim() !== '' && (end < 0 || text.slice(end).replaceAll(/[;\s]/g, '') === '')
}
