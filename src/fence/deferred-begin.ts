import type { Client } from 'pg'
import { type Fence, type FenceCall, termsOf } from './fence.ts'
import { readOnlyFailure, termAtFault, transactionFailure } from './fence-failure.ts'
import type { OpenTransaction } from './open-transaction.ts'
import { OpeningQuery } from './opening-query.ts'
import { Opening, sendOpening } from './opening.ts'
import type { TransactionWatch } from './transaction-watch.ts'

type Send = (...args: unknown[]) => unknown

/** How a fenced transaction begins, and what it is. */
export interface Beginning {
  readonly fence: Fence
  readonly client: Client
  readonly watch: TransactionWatch
  readonly transaction: OpenTransaction
  /** `begin`, or what it is with an isolation level. */
  readonly begin: string
  /** The calls that fence it: one for each term. */
  readonly calls: readonly FenceCall[]
}

/**
 * The beginning of a fenced transaction that goes out together with the first statement of its work. A statement that cannot
 * share a message with it comes after it.
 */
export class DeferredBegin {
  readonly #beginning: Beginning
  readonly #send: Send
  #isPending = true

  constructor(beginning: Beginning) {
    this.#beginning = beginning
    this.#send = beginning.client.query.bind(beginning.client) as Send
  }

  /** Whether nothing has been sent yet. */
  get isPending(): boolean {
    return this.#isPending
  }

  /** Sends the first statement of the work, in the form that `pg` takes, with what begins the transaction before it. */
  async first(args: readonly unknown[], text: string): Promise<unknown> {
    const { transaction } = this.#beginning
    transaction.assertMaySend(text)
    const opened = this.#open(args)
    if (opened !== undefined) return transaction.lookAfter(opened)
    await this.alone()
    return transaction.send(text, async () => this.#send(...args))
  }

  /** Undefined where the statement cannot be sent like this. */
  #open(args: readonly unknown[]): Promise<unknown> | undefined {
    const { client, watch, begin, calls } = this.#beginning
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    const opening = new Opening(client, begin, calls)
    const query = OpeningQuery.of(client, opening, args, (error, result) =>
      error === null || error === undefined ? resolve(result) : reject(error),
    )
    if (query === undefined) return undefined
    this.#isPending = false
    return watch
      .expecting(async () => {
        this.#send(query)
        return promise
      })
      .catch(async (error: unknown) => {
        if (query.isOpened) {
          // As `pg` does: the trace that leads to its socket helps nobody.
          if (error instanceof Error) Error.captureStackTrace(error)
          throw error
        }
        if (!opening.isGone(error)) throw await this.#failed(error)
        // Neither the fence nor the statement was carried out.
        await watch.settled()
        await this.#send('rollback')
        return this.#open(args)
      })
  }

  /** Begins the transaction without a statement. */
  async alone(): Promise<void> {
    const { client, watch, begin, calls } = this.#beginning
    this.#isPending = false
    try {
      await sendOpening(client, watch, begin, calls)
    } catch (error) {
      throw await this.#failed(error)
    }
  }

  /** The transaction fails with it, whatever the work makes of the statement's error. */
  async #failed(error: unknown): Promise<unknown> {
    const { fence, transaction, watch } = this.#beginning
    // Nothing may be sent while it is looked into.
    transaction.isOver()
    await watch.settled()
    let cause = error
    if (!watch.isLost) {
      const send = this.#send as (sql: string) => Promise<{ rows: unknown[] }>
      try {
        await send('rollback')
        cause = await readOnlyFailure(error, fence.term, send)
      } catch {
        // Without the session the server does it by itself.
      }
    }
    const term = termAtFault(cause, termsOf(fence))
    return transaction.refuse(transactionFailure(cause, 'beginning', term, watch.isLost))
  }
}
