import type { CompiledQuery, Kysely, QueryResult } from 'kysely'
import type { Client } from 'pg'
import { ClientHook } from './connection-hook.ts'
import { sendControl, takesOwnQueries } from './control-query.ts'
import type { AnyTable } from './guarded-table.ts'
import { SessionStatements, processText } from './session-statements.ts'

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
  const hook = client === undefined || !takesOwnQueries(client) ? undefined : ClientHook.of(client)
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
