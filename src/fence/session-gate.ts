import type { Client } from 'pg'
import { sqlStateOf } from '../database/failure.ts'
import { DatabaseError, FencepostError, InvalidArgumentError, OutcomeUnknownError } from '../errors.ts'
import { type Fence, type FenceBounds, boundsInMs, fenceLiterals, termsOf } from './fence.ts'
import {
  type Phase,
  abortedTransaction,
  cutOff,
  doubtfulCommit,
  isConnectionLoss,
  termAtFault,
  transactionFailure,
} from './fence-failure.ts'
import { callBack, callbackOf, fail, isSubmittable, textOf, withoutCallback } from './guarded-client.ts'
import {
  controlNotAlone,
  endedInside,
  foreignSnapshot,
  leftRunning,
  notInTransaction,
  notSubmittable,
  readOnlyNotReset,
} from './session-failure.ts'
import {
  changeOfModes,
  isTransactionControl,
  mayEndItsOwn,
  mayEndTransaction,
  resetsReadOnly,
  saysReadOnly,
  transactionControl,
} from './transaction-control.ts'
import { TransactionWatch } from './transaction-watch.ts'

export interface GateOptions extends FenceBounds {
  readonly outsideTransactions?: boolean | undefined
}

type Query = (...args: unknown[]) => unknown

const rollbackWithinMs = 5000

const answeredWithinMs = 5000

/**
 * Stands before one session of `pg` for the rest of the session's life, in place of the client's own `query`:
 *
 *   - every BEGIN carries the fence along, or else a snapshot, which keeps one that only reads from writing later;
 *   - SET TRANSACTION right after BEGIN comes before the fence: the transaction is begun once more with it;
 *   - a statement outside of a transaction gets a fenced one of its own;
 *   - what PostgreSQL does not run in a transaction is refused, or goes out right after a check of the term;
 *   - one refusal, and nothing but ROLLBACK is sent any more: the tool may go on regardless.
 *
 * One statement after the other, because what one does depends on what the one before has left.
 */
export class SessionGate {
  readonly #fence: Fence
  readonly #client: Client
  readonly #send: Query
  readonly #watch: TransactionWatch
  readonly #fenceSql: string
  readonly #mayGoOutside: boolean
  #last: Promise<unknown> = Promise.resolve()
  #waiting = 0
  #isOver = false
  #isDirect = false
  readonly #timeoutMs: number | null
  #idle = '0'
  /** The text of what sends itself, until its answer has been looked at. */
  #submitted: string | undefined
  /** The texts that the open transaction was begun with, until anything else is sent in it. */
  #opening: readonly string[] | undefined
  #refusal: FencepostError | undefined

  constructor(fence: Fence, client: Client, options: GateOptions) {
    this.#fence = fence
    this.#client = client
    this.#watch = new TransactionWatch(client)
    this.#fenceSql = fenceLiterals(fence, options)
    this.#timeoutMs = boundsInMs(options).timeoutMs
    this.#mayGoOutside = options.outsideTransactions ?? false
    this.#send = client.query.bind(client) as Query
    client.query = this.#query.bind(this) as typeof client.query
  }

  /** The first refusal: it ended the session, whatever the tool made of it. */
  get refusal(): FencepostError | undefined {
    return this.#refusal
  }

  /**
   * Checks the term, and gives the session its fence, so that protected tables and schemas look at statements outside of
   * transactions as well, and a bound on silence, so that a paused runner does not keep a lock of the session's. Only where
   * the session is ours: a pooler would give both to others.
   */
  async open(): Promise<void> {
    if (this.#client.getTransactionStatus?.() !== 'I') {
      throw new InvalidArgumentError(
        'pool',
        this.#client,
        'a fenced session has to know whether a transaction is open: use a version of pg that tells (8.23 does)',
      )
    }
    const { processID } = this.#client as Client & { processID?: unknown }
    const pid = typeof processID === 'number' ? processID : 'null'
    const results = (await this.#tried('beginning', () =>
      this.#check(`${this.#fenceSql}; ${settings(pid)}`),
    )) as {
      rows: { is_direct: boolean | null; idle: string }[]
    }[]
    const [row] = results.at(-1)!.rows
    this.#isDirect = row!.is_direct === true
    this.#idle = row!.idle
  }

  /** @throws DatabaseError with code `TRANSACTION_ABORTED` when the work has left a transaction open. */
  async finish(): Promise<void> {
    this.#isOver = true
    // A stream that nobody reads does not end.
    if (this.#submitted !== undefined) await within(answeredWithinMs, this.#watch.idle())
    const isAnswered = this.#watch.isAnswered
    if (isAnswered) {
      await this.#last
      await this.#assertNotEnded()
    }
    if (this.#refusal !== undefined || this.#client.getTransactionStatus() === 'I') return
    if (!isAnswered && mayEndTransaction(this.#submitted!)) throw leftRunning(this.#fence)
    if (isAnswered) await this.#rollBack()
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
      this.#opening = undefined
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
      if (this.#client.getTransactionStatus() !== 'T') throw await this.#refused(notSubmittable(args[0]))
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
    if (control === 'rollback' && !this.#isOver && !this.#watch.isLost) return this.#control(args)
    this.#assertMaySend()
    // What was not sent cannot be in doubt.
    if (this.#watch.isLost) throw await this.#refused(this.#asCutOff())
    if (control === 'unclear') throw await this.#refused(controlNotAlone())
    const isOpen = this.#client.getTransactionStatus() !== 'I'
    if (control === 'begin' && !isOpen) return this.#begin([text])
    if (control === 'commit' && isOpen) return this.#commit(args)
    if (control !== undefined) return this.#control(args)
    return isOpen ? this.#within(args) : this.#alone(args)
  }

  /** What sends itself is looked at when it has been answered, and before anything else is sent. */
  async #assertNotEnded(): Promise<void> {
    const hasEnded = this.#watch.isReplaced || (this.#submitted !== undefined && this.#watch.isOver)
    this.#submitted = undefined
    if (hasEnded && this.#refusal === undefined) throw await this.#refused(endedInside(this.#fence))
  }

  #assertMaySend(): void {
    if (this.#refusal !== undefined) throw this.#refusal
    if (!this.#isOver) return
    throw new FencepostError(
      'TRANSACTION_ENDED',
      'a statement came after the fenced session had ended, and was not sent. Await every statement of the work.',
    )
  }

  async #begin(texts: readonly string[]): Promise<unknown> {
    return this.#tried('beginning', async () => {
      this.#fence.assertHeld?.()
      const results = await this.#beginWith(texts)
      this.#opening = texts
      return results[texts.length - 1]
    })
  }

  /** As whoever sends SET TRANSACTION believes, the transaction is open: an error must not end it, and so it is left aborted. */
  async #beginAgain(texts: readonly string[]): Promise<unknown> {
    return this.#tried('changing', async () => {
      this.#fence.assertHeld?.()
      await this.#control(['rollback'])
      const results = await this.#beginWith(texts)
      this.#opening = texts
      return results[texts.length - 1]
    })
  }

  async #beginWith(texts: readonly string[]): Promise<unknown[]> {
    this.#watch.reset()
    const fenced = [...texts, this.#fenceSql].join('\n; ')
    if (saysReadOnly(texts))
      return (await this.#beginReadOnly(texts)) ?? (this.#control([fenced]) as Promise<unknown[]>)
    try {
      return (await this.#control([fenced])) as unknown[]
    } catch (error) {
      if (sqlStateOf(error) !== '25006') throw error
      await this.#control(['rollback'])
      const results = await this.#beginReadOnly(texts)
      if (results === undefined) throw error
      return results
    }
  }

  /** Undefined when the transaction is one that may write, or the server is one that takes no writes at all. */
  async #beginReadOnly(texts: readonly string[]): Promise<unknown[] | undefined> {
    const snapshot = readOnlySnapshot(this.#idle, this.#timeoutMs)
    const results = (await this.#control([[...texts, snapshot].join('\n; ')])) as { rows: unknown[] }[]
    if (results.at(-1)!.rows.length > 0) return results
    await this.#control(['rollback'])
    return undefined
  }

  async #commit(args: unknown[]): Promise<unknown> {
    return this.#tried('committing', async () => {
      // As in a fenced transaction: nobody should see one term both lost and committed.
      this.#fence.assertHeld?.()
      const result = (await this.#control(args)) as { command: string }
      if (this.#watch.isReplaced) throw endedInside(this.#fence)
      if (result.command === 'ROLLBACK') throw abortedTransaction(this.#fence.term)
      if (this.#watch.isCommitDoubtful) throw doubtfulCommit(this.#fence.term)
      return result
    })
  }

  /** In an open transaction, which is fenced. */
  async #within(args: unknown[]): Promise<unknown> {
    if (resetsReadOnly(textOf(args[0]))) throw await this.#refused(readOnlyNotReset())
    const opening = this.#opening
    this.#opening = undefined
    if (opening !== undefined) {
      const text = textOf(args[0])
      const change = changeOfModes(text)
      if (change === 'snapshot') throw await this.#refused(foreignSnapshot())
      if (change === 'modes') return this.#beginAgain([...opening, text])
    }
    return this.#tried('working', async () => {
      this.#watch.sends(textOf(args[0]))
      try {
        return await this.#ask(...args)
      } finally {
        // oxlint-disable-next-line no-unsafe-finally -- What ended the fence matters more than the statement's own fate.
        if (this.#watch.isOver) throw endedInside(this.#fence)
      }
    })
  }

  /** Outside of a transaction: in a fenced one of its own. */
  async #alone(args: unknown[]): Promise<unknown> {
    const mayGoOutside = this.#mayGoOutside && this.#isDirect
    // What it did before its first COMMIT would not all go back with a rollback, and would be done twice.
    if (mayGoOutside && mayEndItsOwn(textOf(args[0]))) return this.#outside(args)
    await this.#begin(['begin'])
    let result: unknown
    try {
      result = await this.#within(args)
    } catch (error) {
      if (this.#refusal !== undefined) throw error
      await this.#rollBack()
      const sqlState = sqlStateOf(error)
      if (sqlState !== '25001' && sqlState !== '2D000') throw error
      if (mayGoOutside) return this.#outside(args)
      throw await this.#refused(notInTransaction(error, sqlState, this.#mayGoOutside))
    }
    await this.#commit(['commit'])
    return result
  }

  /** What PostgreSQL does not run in a transaction. */
  async #outside(args: unknown[]): Promise<unknown> {
    await this.#tried('beginning', () => {
      this.#fence.assertHeld?.()
      return this.#check()
    })
    return this.#tried('working', async () => {
      try {
        return await this.#ask(...args)
      } catch (error) {
        if (!isConnectionLoss(error, this.#watch.isLost)) throw error
        const { lease, token } = this.#fence.term
        throw new OutcomeUnknownError(
          `the answer to a statement outside of a transaction was lost, under lease "${lease}" (token ${token}): whether it ` +
            'took effect is unknown, and it may be running still. Look before you repeat it.',
          { cause: error },
        )
      }
    })
  }

  /** Asks the database whether the term still holds. */
  async #check(text = this.#fenceSql): Promise<unknown> {
    try {
      return await this.#ask(text)
    } catch (error) {
      if (sqlStateOf(error) !== '25006') throw error
      // Where transactions are read-only by default, one that may take the fence's lock has to say so.
      await this.#control(['begin read write']).catch(() => {
        throw error
      })
      const results = await this.#ask(text)
      await this.#control(['commit'])
      return results
    }
  }

  /** A runner that was paused is to hear that the lease is lost, not what became of its session. */
  #asCutOff(): FencepostError {
    try {
      this.#fence.assertHeld?.()
    } catch (error) {
      if (error instanceof FencepostError) return error
    }
    return cutOff(this.#fence.term, this.#watch.loss)
  }

  /** A statement of transaction control that is meant to be. */
  async #control(args: unknown[]): Promise<unknown> {
    this.#opening = undefined
    return this.#watch.expecting(() => this.#ask(...args))
  }

  async #ask(...args: unknown[]): Promise<unknown> {
    try {
      return await this.#send(...args)
    } finally {
      await this.#watch.settled()
    }
  }

  /** Runs one step; what fencepost has to say of its failure ends the session. */
  async #tried<T>(stage: Phase | 'changing', step: () => Promise<T>): Promise<T> {
    try {
      return await step()
    } catch (error) {
      const term = termAtFault(error, termsOf(this.#fence))
      const phase = stage === 'changing' ? 'beginning' : stage
      const failure = transactionFailure(error, phase, term, this.#watch.isLost)
      if (failure instanceof FencepostError && failure.code !== 'TRANSACTION_RETRYABLE') {
        throw await this.#refused(failure)
      }
      // Nothing was begun, as far as whoever asked for it knows.
      if (stage === 'beginning') await this.#rollBack()
      throw failure
    }
  }

  async #refused(refusal: FencepostError): Promise<FencepostError> {
    this.#refusal ??= refusal
    await this.#rollBack()
    return refusal
  }

  /** A rollback can queue for ever behind a stream that nobody reads; the end of the session does the same. */
  async #rollBack(): Promise<void> {
    if (this.#watch.isLost) return
    // Where it fails, the session is ended in any case.
    await within(
      rollbackWithinMs,
      this.#control(['rollback']).catch(() => {}),
    )
  }
}

async function within(ms: number, step: Promise<unknown>): Promise<void> {
  const { promise: timeout, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, ms)
  try {
    await Promise.race([step, timeout])
  } finally {
    clearTimeout(timer)
  }
}

function settings(pid: number | 'null'): string {
  const idle = `pg_catalog.current_setting('idle_in_transaction_session_timeout')`
  const own = `pg_catalog.current_setting('idle_session_timeout', true)`
  return `select pg_catalog.pg_backend_pid() = ${pid} as is_direct, ${idle} as idle,
    case when pg_catalog.pg_backend_pid() = ${pid}
         then pg_catalog.set_config('fencepost.fence', pg_catalog.current_setting('fencepost.fence'), false) end,
    case when pg_catalog.pg_backend_pid() = ${pid} and (${own} = '0' or ${own}::interval > ${idle}::interval and ${idle} <> '0')
         then pg_catalog.set_config('idle_session_timeout', ${idle}, false) end`
}

/**
 * Ends a message that begins a transaction: gives a row when that only reads. PostgreSQL lets it become one that writes until it has
 * taken its first snapshot, and this takes it. The bounds of a fence come along.
 */
function readOnlySnapshot(idle: string, timeoutMs: number | null): string {
  const own = `pg_catalog.current_setting('idle_in_transaction_session_timeout')`
  const timeout = `case when pg_catalog.current_setting('server_version_num')::integer >= 170000 then 'transaction_timeout'
    else 'statement_timeout' end`
  return `select case when '${idle}' <> '0' and (${own} = '0' or ${own}::interval > '${idle}'::interval)
         then pg_catalog.set_config('idle_in_transaction_session_timeout', '${idle}', true) end
         ${timeoutMs === null ? '' : `, pg_catalog.set_config(${timeout}, '${timeoutMs}', true)`}
    where pg_catalog.current_setting('transaction_read_only') = 'on' and not pg_catalog.pg_is_in_recovery()`
}
