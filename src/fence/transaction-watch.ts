import { ClientEar, type Heard, type Listener } from './client-ear.ts'
import { mayChain } from './transaction-control.ts'

const settledWithinMs = 2000

const control = new Set(['COMMIT', 'BEGIN', 'START TRANSACTION', 'PREPARE TRANSACTION'])

/**
 * Listens to what the server answers in one session, and knows whether the transaction that is open in it is still the one that
 * was fenced. The status alone does not tell: after `commit; begin` in one text it is what it was. So every answer is looked
 * at, also one that nobody waits for, and one that came before an error.
 *
 * A client without a connection that says what it hears (`pg-native`) is not seen.
 */
export class TransactionWatch implements Listener {
  readonly #client: Heard
  readonly #ear: ClientEar
  #hasEnded = false
  #status: string | undefined
  #isReplaced = false
  #mayChain = false
  #expected = 0
  #settling: PromiseWithResolvers<void> | undefined
  #isLost = false
  #loss: unknown
  #isCommitDoubtful = false

  constructor(client: Heard) {
    this.#client = client
    this.#ear = ClientEar.of(client)
    this.#ear.add(this)
  }

  stop(): void {
    this.#ear.remove(this)
    this.#onSettled()
  }

  onAnswer(command: string): void {
    // Going back to a savepoint is answered with ROLLBACK as well, and so is COMMIT after an error.
    const isControl = command === 'ROLLBACK' ? this.#mayChain : control.has(command)
    if (!isControl) return
    if (this.#expected > 0) this.#expected -= 1
    else this.#isReplaced = true
  }

  onFailure(): void {
    this.#settling ??= Promise.withResolvers()
  }

  onReady(status: string | undefined): void {
    this.#status = status
    this.#onSettled()
  }

  onEnd(): void {
    this.#hasEnded = true
    this.#onSettled()
  }

  onLoss(error: unknown): void {
    // The first one says why.
    this.#loss ??= error
    this.#isLost = true
  }

  onDoubt(): void {
    this.#isCommitDoubtful = true
  }

  #onSettled(): void {
    this.#settling?.resolve()
    this.#settling = undefined
  }

  /** Whether the connection broke. */
  get isLost(): boolean {
    return this.#isLost
  }

  /** What it broke with. */
  get loss(): unknown {
    return this.#loss
  }

  /** The server gave up waiting for a synchronous standby and said "committed" all the same. */
  get isCommitDoubtful(): boolean {
    return this.#isCommitDoubtful
  }

  /** Whether a statement has ended the transaction and begun another, or begun one inside of it. */
  get isReplaced(): boolean {
    return this.#isReplaced
  }

  /** The same, or no transaction is open any more. */
  get isOver(): boolean {
    return this.#isReplaced || this.#status === 'I'
  }

  /**
   * Whether the server has yet to answer, also to what nobody waits for: a cursor, a stream, a statement that `pg` has given up. Until
   * then the status is that of before.
   */
  get isBusy(): boolean {
    return !this.isAnswered && !this.#hasEnded
  }

  /** Whether the server has answered everything, rather than that it never will. */
  get isAnswered(): boolean {
    return this.#client.readyForQuery !== false
  }

  /** Until nothing is on its way any more. */
  async idle(): Promise<void> {
    while (this.isBusy) {
      // oxlint-disable-next-line no-await-in-loop -- Whoever hears of it first may have sent the next statement.
      await new Promise<void>((resolve) => {
        const done = (): void => {
          this.#client.off?.('drain', done)
          this.#client.connection?.off('end', done)
          resolve()
        }
        this.#client.once?.('drain', done)
        this.#client.connection?.once('end', done)
      })
    }
  }

  /** A text of the work's goes out. */
  sends(sql: string): void {
    if (mayChain(sql)) this.#mayChain = true
  }

  /** A text goes out that may end the transaction with ROLLBACK AND CHAIN. */
  maySeeChain(): void {
    this.#mayChain = true
  }

  /** The next transaction is about to begin. */
  reset(): void {
    this.#isReplaced = false
    this.#mayChain = false
  }

  /** Runs one statement of transaction control that is meant to be. */
  async expecting<T>(send: () => Promise<T>): Promise<T> {
    this.#expected = 1
    try {
      return await send()
    } finally {
      this.#expected = 0
    }
  }

  /** Whether an error has come whose state of the session is not known yet. */
  get isSettling(): boolean {
    return this.#settling !== undefined
  }

  /**
   * After an error: until the server has said in which state that has left the session, perhaps not in the same packet. When it
   * does not, the session is ended: `pg` forgets to ask it after an error of a statement with the option `rows`.
   */
  async settled(): Promise<void> {
    if (this.#settling === undefined) return
    const timer = setTimeout(() => this.#client.connection?.stream.destroy(), settledWithinMs)
    try {
      await this.#settling.promise
    } finally {
      clearTimeout(timer)
    }
  }
}
