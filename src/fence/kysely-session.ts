import type { Client } from 'pg'
import type { CompiledQuery, DatabaseConnection, Kysely, QueryResult } from 'kysely'
import { ClientWatch } from './client-watch.ts'
import {
  ClientHook,
  type ConnectionGuard,
  ConnectionHook,
  type Execute,
  type Stream,
  type StreamOptions,
} from './connection-hook.ts'
import { sendControl } from './control-query.ts'
import { DeferredBegin } from './deferred-begin.ts'
import type { Fence, FenceCall } from './fence.ts'
import { readOnlyFailure } from './fence-failure.ts'
import { OpenTransaction } from './open-transaction.ts'
import { sendOpening } from './opening.ts'

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
 * session's own executeQuery is replaced (as Kysely itself does for its log):
 *
 *   - `begin` carries the fence along, because a round trip is what a fence costs;
 *   - the caller's work cannot end the transaction under its own feet;
 *   - nothing is sent once COMMIT or ROLLBACK was, because it would run outside the transaction and unfenced;
 *   - a connection that breaks between two statements is noticed. Otherwise `pg` would report it as an error event that
 *     nobody listens to, which ends the process.
 */
export async function withGuardedSession<DB, T>(
  session: Kysely<DB>,
  fence: Fence,
  calls: readonly FenceCall[],
  isDeferred: boolean,
  run: (watch: SessionWatch) => Promise<T>,
): Promise<T> {
  return session.getExecutor().provideConnection(async (connection) => {
    const guard = new SessionGuard(connection, fence, calls, isDeferred)
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

class SessionGuard implements SessionWatch, ConnectionGuard {
  readonly #hook: ConnectionHook
  readonly #fence: Fence
  readonly #calls: readonly FenceCall[]
  readonly #isDeferred: boolean
  #transaction = new OpenTransaction()
  /** What is to go out with the first statement of the work. */
  #deferred: DeferredBegin | undefined
  #clientHook: ClientHook | undefined
  #hasBegun = false
  readonly #watch: ClientWatch

  constructor(
    connection: DatabaseConnection,
    fence: Fence,
    calls: readonly FenceCall[],
    isDeferred: boolean,
  ) {
    this.#fence = fence
    this.#calls = calls
    this.#isDeferred = isDeferred
    this.#watch = new ClientWatch(connection)
    this.#hook = ConnectionHook.of(connection)
    this.#hook.guard = this
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
    this.#hook.guard = undefined
    this.#watch.stop()
  }

  stream(query: CompiledQuery, ...rest: StreamOptions): ReturnType<Stream> {
    this.#transaction.assertMaySend(query.sql)
    const stream = (): ReturnType<Stream> => this.#hook.streamQuery(query, ...rest)
    return this.#deferred?.isPending === true ? (this.#afterBegin(stream) as never) : stream()
  }

  execute<R>(query: CompiledQuery, options: Parameters<Execute>[1]): Promise<QueryResult<R>> {
    if (!this.#hasBegun) {
      this.#hasBegun = true
      return this.#begin(query, options)
    }
    const send = (): Promise<QueryResult<R>> => this.#send(query, options)
    const { stage } = this.#transaction
    const isPending = this.#deferred?.isPending === true
    // Kysely's own. A ROLLBACK may follow a COMMIT that failed.
    if (stage !== 'working' && query.sql === 'rollback') {
      this.#transaction.isOver()
      return isPending ? nothingSent('ROLLBACK') : send()
    }
    if (stage === 'ending' && query.sql === 'commit') return this.#commit(send, isPending)
    if (isPending) return this.#first(query, options)
    return this.#transaction.send(query.sql, send)
  }

  async #begin<R>(query: CompiledQuery, options: Parameters<Execute>[1]): Promise<QueryResult<R>> {
    const { client, transactionWatch } = this.#watch
    const clientHook = this.#isDeferred && client !== undefined ? ClientHook.of(client) : undefined
    if (client !== undefined && clientHook !== undefined) {
      this.#clientHook = clientHook
      this.#transaction = new OpenTransaction(transactionWatch)
      this.#deferred = new DeferredBegin({
        fence: this.#fence,
        client,
        watch: transactionWatch!,
        transaction: this.#transaction,
        begin: query.sql,
        calls: this.#calls,
      })
      return { rows: [] }
    }
    if (this.#hook.isPlain && client !== undefined) return this.#beginPlain(client, query.sql)
    const send = (sql: string): Promise<QueryResult<R>> => this.#send({ ...query, sql }, options)
    try {
      const sent = this.#watch.first(() =>
        send([query.sql, ...this.#calls.map(({ literal }) => literal)].join('; ')),
      )
      const watch = this.#watch.transactionWatch
      this.#transaction = new OpenTransaction(watch)
      return await (watch === undefined ? sent : watch.expecting(() => sent))
    } catch (error) {
      // The server has begun, but Kysely takes a failed begin for none and would leave the transaction open.
      await send('rollback').catch(() => {})
      throw await readOnlyFailure(error, this.#fence.term, send)
    }
  }

  /** The same past Kysely, which would make results of the answers. */
  async #beginPlain<R>(client: Client, begin: string): Promise<QueryResult<R>> {
    const watch = this.#watch.transactionWatch!
    this.#transaction = new OpenTransaction(watch)
    try {
      await sendOpening(client, watch, begin, this.#calls)
      return { rows: [] }
    } catch (error) {
      await client.query('rollback').catch(() => {})
      throw await readOnlyFailure(error, this.#fence.term, (sql) => client.query(sql))
    }
  }

  async #commit<R>(send: () => Promise<QueryResult<R>>, isPending: boolean): Promise<QueryResult<R>> {
    this.#transaction.assertStillOpen()
    const { client } = this.#watch
    if (!isPending) {
      if (!this.#hook.isPlain || client === undefined) return this.#transaction.commit(send)
      const { command } = await this.#transaction.commit(() => sendControl(client, 'commit'))
      return { rows: [{ command } as R] }
    }
    this.#transaction.isOver()
    return nothingSent('COMMIT')
  }

  /** The beginning takes the statement over from Kysely where that hands it to the client. */
  async #first<R>(query: CompiledQuery, options: Parameters<Execute>[1]): Promise<QueryResult<R>> {
    const deferred = this.#deferred!
    this.#transaction.assertMaySend(query.sql)
    const hook = this.#clientHook!
    hook.next = (...args) => deferred.first(args, query.sql)
    try {
      return await this.#send<R>(query, options)
    } finally {
      // Where Kysely has not come to it.
      hook.next = undefined
    }
  }

  async *#afterBegin(stream: () => ReturnType<Stream>): AsyncIterableIterator<unknown> {
    if (this.#deferred!.isPending) await this.#deferred!.alone()
    yield* stream()
  }

  #send<R>(query: CompiledQuery, options: Parameters<Execute>[1]): Promise<QueryResult<R>> {
    return this.#hook.executeQuery<R>(query, options)
  }
}

async function nothingSent<R>(command: string): Promise<QueryResult<R>> {
  return { rows: [{ command } as R] }
}
