import { FencepostError } from '../errors.ts'
import { isTransactionControl } from './transaction-control.ts'

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
