import type { CompiledQuery, Kysely, QueryResult } from 'kysely'
import type { Client } from 'pg'
import { ClientHook } from './connection-hook.ts'
import { sendControl, takesOwnQueries } from './control-query.ts'
import type { FenceCall } from './fence.ts'
import type { AnyTable } from './guarded-table.ts'
import { OpeningQuery } from './opening-query.ts'
import { Opening } from './opening.ts'
import { SessionStatements, processText } from './session-statements.ts'

// What a repository writes outside of the caller's transactions: each is a transaction by itself.

/** Asks, where it is time to, whether a session keeps statements. */
export async function askForKeeping(client: Client | undefined): Promise<void> {
  if (client === undefined || !takesOwnQueries(client)) return
  const statements = SessionStatements.of(client)
  if (statements.isToAsk()) statements.answeredBy((await sendControl(client, processText)).value)
}

/**
 * Carries out a query of Kysely's, and has the session keep it under a name where it does. Only for what is a transaction by itself: when
 * the name is gone it is sent once more without one, and an error would have spoilt a transaction around it.
 */
export async function executeKept<R>(
  rows: Kysely<AnyTable>,
  client: Client | undefined,
  query: CompiledQuery<R>,
): Promise<QueryResult<R>> {
  const hook = hookOf(client)
  if (client === undefined || hook === undefined) return rows.executeQuery(query)
  const statements = SessionStatements.of(client)
  const name = statements.nameFor(query.sql)
  if (name === undefined) return rows.executeQuery(query)
  hook.next = (text, values) => client.query({ name, text: text as string, values: values as unknown[] })
  try {
    const result = await rows.executeQuery(query)
    statements.keeps(name)
    return result
  } catch (error) {
    if (!statements.isGone(error)) throw error
    return await rows.executeQuery(query)
  } finally {
    // Where Kysely has not come to it.
    hook.next = undefined
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
  const { promise, resolve, reject } = Promise.withResolvers<{ rowCount: number }>()
  const whole = OpeningQuery.of(client, opening, [query.sql, query.parameters], (error, result) =>
    error === null || error === undefined ? resolve(result as { rowCount: number }) : reject(error),
  )
  if (whole === undefined) return undefined
  hook.next = () => {
    client.query(whole)
    return promise
  }
  try {
    await rows.executeQuery(query)
    return (await promise).rowCount
  } catch (error) {
    if (whole.isOpened || !opening.isGone(error)) throw error
    return await countFenced(rows, client, calls, query)
  } finally {
    // Where Kysely has not come to it.
    hook.next = undefined
  }
}

/** Undefined where nothing can be sent in another way than Kysely does. */
function hookOf(client: Client | undefined): ClientHook | undefined {
  return client === undefined || !takesOwnQueries(client) ? undefined : ClientHook.of(client)
}
