import { FencepostError } from '../errors.ts'
import { isTransactionControl, mayChain } from './transaction-control.ts'
import type { TransactionWatch } from './transaction-watch.ts'

/**
 * A fenced transaction as its statements see it: open while the caller works, then being ended by fencepost, then over.
 * The work must not end it: what came after would run outside of it and unfenced. And nothing may be sent once COMMIT or
 * ROLLBACK was, for the same reason.
 */
export class OpenTransaction {
  readonly #watch: TransactionWatch | undefined
  #stage: 'working' | 'ending' | 'over' = 'working'
  #refusal: { readonly error: unknown } | undefined

  /** Without a watch the transaction is not seen, and only what is sent can be looked at. */
  constructor(watch?: TransactionWatch) {
    this.#watch = watch
  }

  /** @throws FencepostError with code `TRANSACTION_ENDED` */
  assertMaySend(sql: string): void {
    const { isControl, chains } = readingOf(sql)
    if (this.#stage === 'working' && isControl) {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a fenced transaction is ended by fencepost alone: what came after would not be fenced. Return from the work to ' +
          'commit, throw to roll back.',
      )
    }
    this.assertStillOpen()
    if (this.#stage === 'over') {
      throw new FencepostError(
        'TRANSACTION_ENDED',
        'a statement came after the fenced transaction had ended, and was not sent. Await every statement of the work.',
      )
    }
    if (chains) this.#watch?.maySeeChain()
  }

  /**
   * Sends a statement of the work, and looks for one that has ended the transaction in disguise, such as `select 1; commit` or
   * `select 1; commit; begin`.
   */
  async send<T>(sql: string, send: () => Promise<T>): Promise<T> {
    if (this.isBusy) await this.idle()
    this.assertMaySend(sql)
    return this.lookAfter(send())
  }

  /** What a statement has answered, unless the transaction has ended with it. */
  lookAfter<T>(answer: Promise<T>): Promise<T> {
    return answer.then(this.#onResult, this.#onFailure) as Promise<T>
  }

  readonly #onResult = (result: unknown): unknown => {
    if (this.#watch?.isSettling === true) return this.#settled().then(() => result)
    this.assertStillOpen()
    return result
  }

  readonly #onFailure = async (error: unknown): Promise<never> => {
    await this.#settled()
    throw error
  }

  async #settled(): Promise<void> {
    await this.#watch?.settled()
    this.assertStillOpen()
  }

  /** @throws FencepostError with code `TRANSACTION_ENDED` when the work has ended the transaction. */
  assertStillOpen(): void {
    // Also to a statement that was on its way when the one before it turned out to have ended the transaction.
    if (this.#refusal !== undefined) throw this.#refusal.error
    if (this.#stage === 'over' || this.#watch?.isOver !== true) return
    throw this.refuse(endedByWork())
  }

  /** Nothing more is sent, and the transaction fails with the error. */
  refuse(error: unknown): unknown {
    this.#stage = 'over'
    this.#refusal ??= { error }
    return this.#refusal.error
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

interface Reading {
  readonly isControl: boolean
  readonly chains: boolean
}

const readings = new Map<string, Reading>()

const readingsKept = 500

const longestKept = 4096

/** A program sends the same texts again and again, and to read one costs more than to look it up. */
function readingOf(sql: string): Reading {
  const known = readings.get(sql)
  if (known !== undefined) return known
  const reading = { isControl: isTransactionControl(sql), chains: mayChain(sql) }
  if (sql.length <= longestKept) {
    if (readings.size >= readingsKept) readings.clear()
    readings.set(sql, reading)
  }
  return reading
}
