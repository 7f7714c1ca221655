import { FencepostError } from '../errors.ts'
import { isTransactionControl } from './transaction-control.ts'
import type { TransactionWatch } from './transaction-watch.ts'

/**
 * A fenced transaction as its statements see it: open while the caller works, then being ended by fencepost, then over.
 * The work must not end it: what came after would run outside of it and unfenced. And nothing may be sent once COMMIT or
 * ROLLBACK was, for the same reason.
 */
export class OpenTransaction {
  readonly #watch: TransactionWatch | undefined
  #stage: 'working' | 'ending' | 'over' = 'working'
  #refusal: FencepostError | undefined

  /** Without a watch the transaction is not seen, and only what is sent can be looked at. */
  constructor(watch?: TransactionWatch) {
    this.#watch = watch
  }

  /** @throws FencepostError with code `TRANSACTION_ENDED` */
  assertMaySend(sql: string): void {
    if (this.#stage === 'working' && isTransactionControl(sql)) {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a fenced transaction is ended by fencepost alone: what came after would not be fenced. Return from the work to ' +
          'commit, throw to roll back.',
      )
    }
    this.assertStillOpen()
    if (this.#stage === 'over') {
      throw (
        this.#refusal ??
        new FencepostError(
          'TRANSACTION_ENDED',
          'a statement came after the fenced transaction had ended, and was not sent. Await every statement of the work.',
        )
      )
    }
    this.#watch?.sends(sql)
  }

  /**
   * Sends a statement of the work, and looks for one that has ended the transaction in disguise, such as `select 1; commit` or
   * `select 1; commit; begin`.
   */
  async send<T>(sql: string, send: () => Promise<T>): Promise<T> {
    await this.idle()
    this.assertMaySend(sql)
    try {
      return await send()
    } finally {
      await this.#watch?.settled()
      this.assertStillOpen()
    }
  }

  /** @throws FencepostError with code `TRANSACTION_ENDED` when the work has ended the transaction. */
  assertStillOpen(): void {
    if (this.#stage === 'over' || this.#watch?.isOver !== true) return
    this.#stage = 'over'
    this.#refusal = endedByWork()
    throw this.#refusal
  }

  /** Whether something that sends itself is on its way: only its answer tells whether the transaction is still open. */
  get isBusy(): boolean {
    return this.#watch?.isBusy === true
  }

  async idle(): Promise<void> {
    await this.#watch?.idle()
  }

  /** The work is done: transaction control is fencepost's from now on. */
  beginEnd(): void {
    if (this.#stage === 'working') this.#stage = 'ending'
  }

  /** Sends COMMIT: nothing of the work may follow. */
  async commit<T>(send: () => Promise<T>): Promise<T> {
    this.#stage = 'over'
    if (this.#watch === undefined) return send()
    const result = await this.#watch.expecting(send)
    // What sends itself may have been on its way until now.
    if (this.#watch.isReplaced) throw endedByWork()
    return result
  }

  /** ROLLBACK is being sent: nothing of the work may follow. */
  isOver(): void {
    this.#stage = 'over'
  }

  get stage(): 'working' | 'ending' | 'over' {
    return this.#stage
  }
}

function endedByWork(): FencepostError {
  return new FencepostError(
    'TRANSACTION_ENDED',
    'the work has ended its fenced transaction itself, or begun another. What it wrote before is written or rolled back as it ' +
      'said, and what came after in the same text was not fenced. Nothing more is sent.',
  )
}
