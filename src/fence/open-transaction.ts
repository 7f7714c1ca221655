import { FencepostError } from '../errors.ts'

/** `pg`'s letter for a session in which no transaction is open. */
const noTransaction = 'I'

/**
 * A fenced transaction as its statements see it: open while the caller works, then being ended by fencepost, then over.
 * The work must not end it: what came after would run outside of it and unfenced. And nothing may be sent once COMMIT or
 * ROLLBACK was, for the same reason.
 */
export class OpenTransaction {
  #stage: 'working' | 'ending' | 'over' = 'working'

  /** @throws FencepostError with code `TRANSACTION_ENDED` */
  assertMaySend(sql: string): void {
    if (this.#stage === 'working' && isTransactionControl(sql)) {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a fenced transaction is ended by fencepost alone: what came after would not be fenced. Return from the work to ' +
          'commit, throw to roll back.',
      )
    }
    if (this.#stage === 'over') {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a statement came after the fenced transaction had ended, and was not sent. Await every statement of the work.',
      )
    }
  }

  /**
   * Looks at what the session says of itself after a statement, for one that ended the transaction in disguise, such as
   * `select 1; commit`. A driver that does not tell (`undefined`) cannot be looked at.
   */
  assertStillOpen(status: string | null | undefined): void {
    if (this.#stage !== 'working' || status !== noTransaction) return
    this.#stage = 'over'
    throw new FencepostError(
      'TRANSACTION_ENDED',
      'the work has ended its fenced transaction itself. What it wrote before is written or rolled back as it said; nothing ' +
        'more is sent, because it would not be fenced.',
    )
  }

  /** The work is done: transaction control is fencepost's from now on. */
  beginEnd(): void {
    if (this.#stage === 'working') this.#stage = 'ending'
  }

  /** COMMIT or ROLLBACK is being sent: nothing of the work may follow. */
  isOver(): void {
    this.#stage = 'over'
  }

  get stage(): 'working' | 'ending' | 'over' {
    return this.#stage
  }
}

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

const name = /[a-z_][\w$]*/iy

/** The first words of a statement in lower case, over blanks and comments, which nest as PostgreSQL's do. */
function leadingWords(sql: string, count: number): string[] {
  const words: string[] = []
  let at = 0
  while (words.length < count && at < sql.length) {
    if (sql.startsWith('--', at)) {
      const end = sql.indexOf('\n', at)
      at = end < 0 ? sql.length : end + 1
    } else if (sql.startsWith('/*', at)) {
      at = endOfComment(sql, at)
    } else if (/\s/.test(sql[at]!)) {
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
