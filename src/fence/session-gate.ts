import type { Client } from 'pg'
import { DatabaseError, FencepostError } from '../errors.ts'
import type { Fence } from './fence.ts'
import { callBack, callbackOf, fail, isSubmittable, textOf, withoutCallback } from './guarded-client.ts'
import { controlNotAlone, endedInside, leftRunning, notSubmittable } from './session-failure.ts'
import { type Query, SessionSteps, type StepOptions } from './session-steps.ts'
import { soon } from './soon.ts'
import {
  isTransactionControl,
  mayEndTransaction,
  resetsReadOnly,
  transactionControl,
} from './transaction-control.ts'
import { TransactionWatch } from './transaction-watch.ts'

const answeredWithinMs = 5000

/**
 * Stands before one session of `pg` for the rest of the session's life, in place of the client's own `query`, and lets one statement
 * through after the other, because what one does depends on what the one before has left. After one refusal nothing but ROLLBACK
 * is sent any more: the tool may go on regardless.
 */
export class SessionGate {
  readonly #fence: Fence
  readonly #client: Client
  readonly #send: Query
  readonly #watch: TransactionWatch
  readonly #steps: SessionSteps
  #last: Promise<unknown> = Promise.resolve()
  #waiting = 0
  #isOver = false
  /** The text of what sends itself, until its answer has been looked at. */
  #submitted: string | undefined

  constructor(fence: Fence, client: Client, options: StepOptions) {
    this.#fence = fence
    this.#client = client
    this.#watch = new TransactionWatch(client)
    this.#send = client.query.bind(client) as Query
    this.#steps = new SessionSteps(fence, client, this.#send, this.#watch, options)
    client.query = this.#query.bind(this) as typeof client.query
  }

  /** The first refusal: it ended the session, whatever the tool made of it. */
  get refusal(): FencepostError | undefined {
    return this.#steps.refusal
  }

  /** Checks the term, and gives the session its fence. */
  open(): Promise<void> {
    return this.#steps.open()
  }

  /** @throws DatabaseError with code `TRANSACTION_ABORTED` when the work has left a transaction open. */
  async finish(): Promise<void> {
    this.#isOver = true
    // A stream that nobody reads does not end.
    if (this.#submitted !== undefined) await soon(answeredWithinMs, this.#watch.idle())
    const isAnswered = this.#watch.isAnswered
    if (isAnswered) {
      await this.#last
      await this.#assertNotEnded()
    }
    if (this.#steps.refusal !== undefined || this.#client.getTransactionStatus() === 'I') return
    if (!isAnswered && mayEndTransaction(this.#submitted!)) throw leftRunning(this.#fence)
    if (isAnswered) await this.#steps.rollBack()
    throw new DatabaseError(
      'TRANSACTION_ABORTED',
      `the work of the fenced session under lease "${this.#fence.term.lease}" left a transaction open. It was rolled back.`,
      { cause: undefined },
    )
  }

  /** Nothing is sent any more. */
  close(): void {
    this.#isOver = true
    this.#watch.stop()
  }

  #query(...args: unknown[]): unknown {
    const callback = callbackOf(args)
    if (isSubmittable(args[0])) return this.#submit(args)
    const answer = this.#asked(callback === undefined ? args : withoutCallback(args))
    if (callback === undefined) return answer
    callBack(callback, answer)
    return undefined
  }

  async #asked(args: unknown[]): Promise<unknown> {
    return this.#inTurn(() => this.#run(args))
  }

  async #inTurn(step: () => Promise<unknown>): Promise<unknown> {
    this.#waiting += 1
    const answer = this.#last
      .then(() => this.#watch.idle())
      .then(step)
      .finally(() => (this.#waiting -= 1))
    this.#last = answer.catch(() => {})
    return answer
  }

  /** A cursor or a stream says nothing when it is done, so it can only be part of a transaction that is open already. */
  #submit(args: unknown[]): unknown {
    this.#assertMaySend()
    const text = textOf(args[0])
    if (isTransactionControl(text) || resetsReadOnly(text)) throw notSubmittable(args[0])
    const submit = (): unknown => {
      this.#steps.passes()
      this.#submitted = text
      this.#watch.sends(text)
      return this.#send(...args)
    }
    if (this.#waiting === 0 && this.#submitted === undefined && !this.#watch.isBusy) {
      if (this.#client.getTransactionStatus() !== 'T') throw notSubmittable(args[0])
      return submit()
    }
    const sending = this.#inTurn(async () => {
      await this.#assertNotEnded()
      this.#assertMaySend()
      // It may be that nobody listens to it, and that nobody misses it.
      if (this.#client.getTransactionStatus() !== 'T')
        throw await this.#steps.refused(notSubmittable(args[0]))
      submit()
    })
    sending.catch((error: unknown) => fail(args, error, this.#client))
    return args[0]
  }

  async #run(args: unknown[]): Promise<unknown> {
    const text = textOf(args[0])
    const control = transactionControl(text)
    await this.#assertNotEnded()
    // So that a tool can clean up after a refusal.
    if (control === 'rollback' && !this.#isOver && !this.#watch.isLost) return this.#steps.control(args)
    this.#assertMaySend()
    // What was not sent cannot be in doubt.
    if (this.#watch.isLost) throw await this.#steps.refused(this.#steps.asCutOff())
    if (control === 'unclear') throw await this.#steps.refused(controlNotAlone())
    const isOpen = this.#client.getTransactionStatus() !== 'I'
    if (control === 'begin' && !isOpen) return this.#steps.begin([text])
    if (control === 'commit' && isOpen) return this.#steps.commit(args)
    if (control !== undefined) return this.#steps.control(args)
    return isOpen ? this.#steps.within(args) : this.#steps.alone(args)
  }

  /** What sends itself is looked at when it has been answered, and before anything else is sent. */
  async #assertNotEnded(): Promise<void> {
    const hasEnded = this.#watch.isReplaced || (this.#submitted !== undefined && this.#watch.isOver)
    this.#submitted = undefined
    if (hasEnded && this.#steps.refusal === undefined)
      throw await this.#steps.refused(endedInside(this.#fence))
  }

  #assertMaySend(): void {
    if (this.#steps.refusal !== undefined) throw this.#steps.refusal
    if (!this.#isOver) return
    throw new FencepostError(
      'TRANSACTION_ENDED',
      'a statement came after the fenced session had ended, and was not sent. Await every statement of the work.',
    )
  }
}
