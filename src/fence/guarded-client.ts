import type { Client, PoolClient } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import type { OpenTransaction } from './open-transaction.ts'

type Query = (...args: unknown[]) => unknown

/**
 * A pool's client as the work of a fenced transaction gets it: it cannot end the transaction, and kept for longer it sends
 * nothing any more. Statements are sent one after the other, each when it is known that the one before has left the transaction
 * open; so is what sends itself, such as a cursor or a stream, and what comes after it.
 */
export function guardedClient(client: PoolClient, transaction: OpenTransaction): PoolClient {
  const send = (args: unknown[]): unknown => (client.query as Query).apply(client, args)
  let last: Promise<unknown> = Promise.resolve()
  let waiting = 0

  const inTurn = async (step: () => Promise<unknown>): Promise<unknown> => {
    waiting += 1
    const answer = last.then(step).finally(() => (waiting -= 1))
    last = answer.catch(() => {})
    return answer
  }

  const submit = (args: unknown[]): unknown => {
    const text = textOf(args[0])
    transaction.assertMaySend(text)
    if (waiting === 0 && !transaction.isBusy) return send(args)
    const sending = inTurn(async () => {
      await transaction.idle()
      transaction.assertMaySend(text)
      send(args)
    })
    sending.catch((error: unknown) => fail(args, error, client))
    return args[0]
  }

  const ask = (args: unknown[]): Promise<unknown> =>
    inTurn(() => transaction.send(textOf(args[0]), async () => send(args)))

  const query: Query = (...args) => {
    const callback = callbackOf(args)
    if (isSubmittable(args[0])) {
      try {
        return submit(args)
      } catch (error) {
        if (callback === undefined) throw error
        process.nextTick(callback, error)
        return undefined
      }
    }
    if (callback === undefined) return ask(args)
    callBack(callback, ask(withoutCallback(args)))
    return undefined
  }

  return new Proxy(client, {
    get(target, property) {
      if (property === 'query') return query
      if (property === 'release') return refuseRelease
      const value: unknown = Reflect.get(target, property, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
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
