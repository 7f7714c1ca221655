import type { Client, PoolClient } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import type { DeferredBegin } from './deferred-begin.ts'
import type { OpenTransaction } from './open-transaction.ts'

type Query = (...args: unknown[]) => unknown

/**
 * A pool's client as the work of a fenced transaction gets it: it cannot end the transaction, and kept for longer it sends
 * nothing any more. Statements are sent one after the other, each when it is known that the one before has left the transaction
 * open; so is what sends itself, such as a cursor or a stream, and what comes after it.
 *
 * With `begin` the transaction begins with the first of them.
 */
export function guardedClient(
  client: PoolClient,
  transaction: OpenTransaction,
  begin?: DeferredBegin,
): PoolClient {
  return new Proxy(client, new Guard(client, transaction, begin))
}

class Guard implements ProxyHandler<PoolClient> {
  readonly #client: PoolClient
  readonly #transaction: OpenTransaction
  readonly #begin: DeferredBegin | undefined
  #last: Promise<unknown> | undefined
  #waiting = 0

  constructor(client: PoolClient, transaction: OpenTransaction, begin: DeferredBegin | undefined) {
    this.#client = client
    this.#transaction = transaction
    this.#begin = begin
  }

  get(client: PoolClient, property: string | symbol): unknown {
    if (property === 'query') return this.#query
    if (property === 'release') return refuseRelease
    const value: unknown = Reflect.get(client, property, client)
    return typeof value === 'function' ? value.bind(client) : value
  }

  readonly #query: Query = (...args) => {
    if (isSubmittable(args[0])) return this.#submitted(args)
    const callback = callbackOf(args)
    if (callback === undefined) return this.#ask(args)
    callBack(callback, this.#ask(withoutCallback(args)))
    return undefined
  }

  #ask(args: unknown[]): Promise<unknown> {
    const text = textOf(args[0])
    const transaction = this.#transaction
    const begin = this.#begin
    if (begin?.isPending === true) return this.#inTurn(() => begin.first(args, text))
    if (this.#waiting > 0 || transaction.isBusy) {
      return this.#inTurn(() => transaction.send(text, async () => this.#send(args)))
    }
    // Nothing has to be waited for, so nothing is put in a row.
    try {
      transaction.assertMaySend(text)
      const sent = this.#send(args) as Promise<unknown>
      this.#last = sent
      return transaction.lookAfter(sent)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #submitted(args: unknown[]): unknown {
    try {
      return this.#submit(args)
    } catch (error) {
      const callback = callbackOf(args)
      if (callback === undefined) throw error
      process.nextTick(callback, error)
      return undefined
    }
  }

  #submit(args: unknown[]): unknown {
    const text = textOf(args[0])
    const transaction = this.#transaction
    const begin = this.#begin
    transaction.assertMaySend(text)
    const isFirst = begin?.isPending === true
    if (!isFirst && this.#waiting === 0 && !transaction.isBusy) return this.#send(args)
    const sending = this.#inTurn(async () => {
      // What says nothing when it is done cannot tell whether the transaction has begun.
      if (isFirst && begin.isPending) await begin.alone()
      await transaction.idle()
      transaction.assertMaySend(text)
      this.#send(args)
    })
    sending.catch((error: unknown) => fail(args, error, this.#client))
    return args[0]
  }

  #send(args: unknown[]): unknown {
    return (this.#client.query as Query).apply(this.#client, args)
  }

  async #inTurn(step: () => Promise<unknown>): Promise<unknown> {
    const isNext = this.#waiting === 0 && (this.#last === undefined || !this.#transaction.isBusy)
    this.#waiting += 1
    const answer = (isNext ? step() : this.#last!.then(step, step)).finally(() => (this.#waiting -= 1))
    this.#last = answer.catch(() => {})
    return answer
  }
}

function refuseRelease(): never {
  throw new InvalidArgumentError(
    'client',
    undefined,
    'the client of a fenced transaction is given back by fencepost, when the transaction has ended',
  )
}

type Callback = (error: unknown, result?: unknown) => void

/** Answers to whoever has asked by callback. */
export function callBack(callback: Callback, answer: Promise<unknown>): void {
  answer.then(
    (result) => process.nextTick(callback, null, result),
    (error: unknown) => process.nextTick(callback, error),
  )
}

export function callbackOf(args: unknown[]): Callback | undefined {
  const last = args.at(-1)
  if (typeof last === 'function') return last as Callback
  const [config] = args
  return typeof config === 'object' &&
    config !== null &&
    'callback' in config &&
    typeof config.callback === 'function'
    ? (config.callback as Callback)
    : undefined
}

export function withoutCallback(args: unknown[]): unknown[] {
  if (typeof args.at(-1) === 'function') return args.slice(0, -1)
  return [{ ...(args[0] as object), callback: undefined }, ...args.slice(1)]
}

/** What sends itself, such as a cursor or a stream. */
export function isSubmittable(statement: unknown): boolean {
  return (
    typeof statement === 'object' &&
    statement !== null &&
    'submit' in statement &&
    typeof statement.submit === 'function'
  )
}

/** Tells what sends itself, and was promised to be sent, that it is not: as `pg` does. */
export function fail(args: unknown[], error: unknown, client: Partial<Pick<Client, 'connection'>>): void {
  const callback = callbackOf(args)
  if (callback !== undefined) {
    process.nextTick(callback, error)
    return
  }
  try {
    ;(args[0] as { handleError?: Query }).handleError?.(error, client.connection)
  } catch {
    // Nobody listens to it. The transaction or session rejects with the same.
  }
}

export function textOf(statement: unknown): string {
  if (typeof statement === 'string') return statement
  return typeof statement === 'object' && statement !== null && 'text' in statement
    ? String(statement.text)
    : ''
}
