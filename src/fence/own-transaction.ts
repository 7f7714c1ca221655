import type { CompiledQuery, Kysely, QueryResult } from 'kysely'
import type { Client } from 'pg'
import { ClientHook } from './connection-hook.ts'
import { takesOwnQueries } from './control-query.ts'
import type { FenceCall } from './fence.ts'
import type { AnyTable } from './guarded-table.ts'
import { OpeningQuery } from './opening-query.ts'
import { Opening } from './opening.ts'
import { SessionStatements } from './session-statements.ts'

// What a repository writes outside of the caller's transactions: each is a transaction by itself, so what was not carried out may be sent again.

/** Carries out a query of Kysely's, and has the session keep it under a name where it does. */
export async function executeKept<R>(
  rows: Kysely<AnyTable>,
  client: Client | undefined,
  query: CompiledQuery<R>,
): Promise<QueryResult<R>> {
  const hook = hookOf(client)
  if (client === undefined || hook === undefined) return rows.executeQuery(query)
  // Without a fence, which the query has in itself: it may only have to ask whether the session keeps anything.
  const asking = new Opening(client, undefined, [])
  if (asking.length > 0) {
    const whole = wholeOf(client, asking, query)
    return whole === undefined
      ? rows.executeQuery(query)
      : instead(hook, whole.send, () => rows.executeQuery(query))
  }
  const statements = SessionStatements.of(client)
  const name = statements.nameFor(query.sql)
  if (name === undefined) return rows.executeQuery(query)
  const named = { name, text: query.sql, values: [...query.parameters] }
  try {
    const result = await instead(
      hook,
      () => client.query(named),
      () => rows.executeQuery(query),
    )
    statements.keeps(name)
    return result
  } catch (error) {
    if (!statements.isGone(error)) throw error
    return rows.executeQuery(query)
  }
}

/**
 * Carries out a query of Kysely's after the calls of a fence, all in one message: without a `begin` it is one transaction, which ends
 * with the message. Gives how many rows were written, whatever the driver makes of that; undefined, with nothing sent,
 * where the query cannot be sent like this.
 */
export async function countFenced(
  rows: Kysely<AnyTable>,
  client: Client | undefined,
  calls: readonly FenceCall[],
  query: CompiledQuery,
): Promise<number | undefined> {
  const hook = hookOf(client)
  if (client === undefined || hook === undefined) return undefined
  const opening = new Opening(client, undefined, calls)
  const whole = wholeOf(client, opening, query)
  if (whole === undefined) return undefined
  try {
    await instead(hook, whole.send, () => rows.executeQuery(query))
    return (await whole.answer).rowCount
  } catch (error) {
    if (whole.message.isOpened || !opening.isGone(error)) throw error
    return countFenced(rows, client, calls, query)
  }
}

interface Whole {
  readonly message: OpeningQuery
  readonly answer: Promise<{ readonly rowCount: number }>
  readonly send: () => Promise<unknown>
}

/** An opening and a query in one message. */
function wholeOf(client: Client, opening: Opening, query: CompiledQuery): Whole | undefined {
  const { promise, resolve, reject } = Promise.withResolvers<{ readonly rowCount: number }>()
  const message = OpeningQuery.of(client, opening, [query.sql, query.parameters], (error, result) =>
    error === null || error === undefined ? resolve(result as { readonly rowCount: number }) : reject(error),
  )
  return (
    message && {
      message,
      answer: promise,
      send: () => {
        client.query(message)
        return promise
      },
    }
  )
}

/** Runs something of Kysely's, and sends what it hands to the client in another way. */
async function instead<T>(hook: ClientHook, send: () => Promise<unknown>, run: () => Promise<T>): Promise<T> {
  hook.next = send
  try {
    return await run()
  } finally {
    // Where Kysely has not come to it.
    hook.next = undefined
  }
}

/** Undefined where nothing can be sent in another way than Kysely does. */
function hookOf(client: Client | undefined): ClientHook | undefined {
  return client === undefined || !takesOwnQueries(client) ? undefined : ClientHook.of(client)
}
