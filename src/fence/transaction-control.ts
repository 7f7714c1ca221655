/** Whether a statement would end the transaction, or begin another. `rollback to` a savepoint does not. */
export function isTransactionControl(sql: string): boolean {
  const [first = '', second = '', third = ''] = leadingWords(sql, 3)
  switch (first) {
    case 'begin':
    case 'commit':
    case 'end':
    case 'abort':
      return true
    case 'start':
    case 'prepare':
      return second === 'transaction'
    case 'rollback':
      return second !== 'to' && third !== 'to'
    default:
      return false
  }
}

/** What a text does to the transaction. `unclear`: control that is not a statement of its own, so that one cannot tell. */
export type TransactionControl = 'begin' | 'commit' | 'rollback' | 'unclear'

/** Undefined when a text does not begin with transaction control. What comes later in it is not looked at. */
export function transactionControl(sql: string): TransactionControl | undefined {
  if (!isTransactionControl(sql)) return undefined
  const statement = /^[\w\s,]*(?=[;\s]*$)/.exec(withoutComments(sql))?.[0].trim()
  // A chain begins the next transaction, without a fence. What is prepared outlives its session.
  if (statement === undefined || /\b(chain|prepared?)\b/.test(statement.replace(/\bno\s+chain\b/, ''))) {
    return 'unclear'
  }
  const [first] = statement.split(/\s/)
  if (first === 'commit' || first === 'end') return 'commit'
  return first === 'rollback' || first === 'abort' ? 'rollback' : 'begin'
}

/**
 * What a text that is one statement does to the transaction that has just begun: changes its modes, or brings in a snapshot.
 * Undefined for anything else.
 */
export function changeOfModes(sql: string): 'modes' | 'snapshot' | undefined {
  const [, change] = /^\s*set\s+(?:(?:local|session)\s+)?(transaction[^]*)$/.exec(withoutComments(sql)) ?? []
  if (change === undefined) return undefined
  if (/^transaction\s+snapshot\b/.test(change)) return 'snapshot'
  const isAlone =
    /^transaction\s[\w\s,]+[;\s]*$/.test(change) ||
    /^transaction_(isolation|read_only|deferrable)\s*(=|\bto\b)\s*(['"]?)[\w\s]+\3[;\s]*$/.test(change)
  return isAlone ? 'modes' : undefined
}

/**
 * Whether a text resets `transaction_read_only`, which before PostgreSQL 16 turns a transaction that only reads, and so has no fence, into
 * one that writes; from 16 on it is an error. A word of it in a string counts as well. What a function does is not seen.
 */
export function resetsReadOnly(sql: string): boolean {
  return /\breset\s*("transaction_read_only"|\btransaction_read_only\b)|\btransaction_read_only"?\s*(=|\bto\b)\s*default\b/.test(
    withoutComments(sql),
  )
}

/** Whether a transaction that begins with these texts is probably one that only reads. The server knows. */
export function saysReadOnly(texts: readonly string[]): boolean {
  return texts.some((text) => /\bread\s+only\b/i.test(text))
}

/**
 * Whether a text is one CALL, or one DO that commits or calls, which PostgreSQL would run up to their first COMMIT before it says
 * that they do not belong in a transaction. A DO that ends no transaction as far as can be read does.
 */
export function mayEndItsOwn(sql: string): boolean {
  const [first] = leadingWords(sql, 1)
  const statement = sql.slice(sql.toLowerCase().indexOf(first ?? '')).replace(/[;\s]+$/, '')
  if (first === 'call') return !statement.includes(';')
  const body = first === 'do' ? /\b(commit|rollback)\s*(;|\(|and\b)|\bcall\s+["\w]/i : undefined
  const isAlone = /^do\s*(language\s+[\w"]+\s*)?(\$\w*\$)((?!\2)[^])*\2\s*(language\s+[\w"]+)?$/i
  return body !== undefined && isAlone.test(statement) && body.test(statement)
}

/** Whether a statement that commits may be among those of a text. A word of it in a string counts as well. */
export function mayEndTransaction(sql: string): boolean {
  return /\b(commit|end|prepare)\b/i.test(sql)
}

/** Whether ROLLBACK AND CHAIN may be among the statements of a text. */
export function mayChain(sql: string): boolean {
  if (!/\bchain\b/i.test(sql)) return false
  return Array.from(sql.matchAll(/\b(rollback|abort)\b/gi)).some(({ index }) => {
    const [, second, third, fourth] = leadingWords(sql, 4, index)
    return (second === 'and' && third === 'chain') || (third === 'and' && fourth === 'chain')
  })
}

/** In lower case. A comment that nests leaves something behind that is no statement: better that than one that hides one. */
function withoutComments(sql: string): string {
  return sql.replaceAll(/--[^\n\r]*|\/\*[^]*?\*\//g, ' ').toLowerCase()
}

const name = /[a-z_][\w$]*/iy

const endOfLine = /[\n\r]/g

/**
 * The first words of a statement in lower case, over blanks and comments, which nest as PostgreSQL's do, and over empty
 * statements.
 */
function leadingWords(sql: string, count: number, start = 0): string[] {
  const words: string[] = []
  let at = start
  while (words.length < count && at < sql.length) {
    if (sql.startsWith('--', at)) {
      endOfLine.lastIndex = at
      at = endOfLine.test(sql) ? endOfLine.lastIndex : sql.length
    } else if (sql.startsWith('/*', at)) {
      at = endOfComment(sql, at)
    } else if (/\s/.test(sql[at]!) || (sql[at] === ';' && words.length === 0)) {
      at += 1
    } else {
      name.lastIndex = at
      const word = name.exec(sql)?.[0]
      if (word === undefined) break
      words.push(word.toLowerCase())
      at += word.length
    }
  }
  return words
}

function endOfComment(sql: string, start: number): number {
  let depth = 0
  let at = start
  do {
    if (sql.startsWith('/*', at)) {
      depth += 1
      at += 2
    } else if (sql.startsWith('*/', at)) {
      depth -= 1
      at += 2
    } else at += 1
  } while (depth > 0 && at < sql.length)
  return at
}
