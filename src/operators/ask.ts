import type { TextRow } from '../database/connection.ts'
import { DatabaseError } from '../errors.ts'

/** Sends one statement over a connection of its own. `action` completes "could not …". Throws DatabaseError. */
export type Ask = (action: string, text: string, values: readonly unknown[]) => Promise<TextRow[]>

/**
 * The same for what applications may not do: a refusal says which right is missing. "migrate --grant-to" does not give it.
 */
export async function asOperator(ask: Ask, signature: string, request: Parameters<Ask>): Promise<TextRow[]> {
  try {
    return await ask(...request)
  } catch (error) {
    if (!(error instanceof DatabaseError) || error.code !== 'PERMISSION_DENIED') throw error
    throw new DatabaseError(
      'PERMISSION_DENIED',
      `could not ${request[0]}: this is for operators, and no part of "migrate --grant-to". Do it as the owner of the schema, ` +
        `or let the owner run: grant execute on function fencepost.${signature} to ROLE.`,
      { cause: error.cause, sqlState: error.sqlState },
    )
  }
}
