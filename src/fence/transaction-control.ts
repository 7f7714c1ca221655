import { isTransactionControl } from './open-transaction.ts'

/** What a text does to the transaction. `unclear`: control that is not a statement of its own, so that one cannot tell. */
export type TransactionControl = 'begin' | 'commit' | 'rollback' | 'unclear'

/** Undefined when a text does not begin with transaction control. What comes later in it is not looked at. */
export function transactionControl(sql: string): TransactionControl | undefined {
  if (!isTransactionControl(sql)) return undefined
  // A comment that nests leaves something behind, and is unclear: better that than one that hides a statement.
  const bare = sql.replaceAll(/--[^\n\r]*|\/\*[^]*?\*\//g, ' ').toLowerCase()
  const statement = /^[\w\s,]*(?=[;\s]*$)/.exec(bare)?.[0].trim()
  // A chain begins the next transaction, without a fence. What is prepared outlives its session.
  if (statement === undefined || /\b(chain|prepared?)\b/.test(statement.replace(/\bno\s+chain\b/, ''))) {
    return 'unclear'
  }
  const [first] = statement.split(/\s/)
  if (first === 'commit' || first === 'end') return 'commit'
  return first === 'rollback' || first === 'abort' ? 'rollback' : 'begin'
}

/** Whether the answers to a text of several statements tell of transaction control in the middle of it. */
export function tellsOfControl(sql: string, result: unknown): boolean {
  if (!Array.isArray(result)) return false
  const commands = result.map((one: { command?: unknown }) => one.command)
  return (
    commands.some((command) => command === 'COMMIT' || command === 'BEGIN' || command === 'START') ||
    // Alone it tells nothing: going back to a savepoint has the same name.
    (commands.includes('ROLLBACK') && /\bchain\b/i.test(sql))
  )
}
