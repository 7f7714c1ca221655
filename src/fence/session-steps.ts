import type { Client } from 'pg'
import { processIdOf } from '../database/process-id.ts'
import { sqlStateOf } from '../database/failure.ts'
import { FencepostError, InvalidArgumentError, OutcomeUnknownError } from '../errors.ts'
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
import { textOf } from './guarded-client.ts'
import { endedInside, foreignSnapshot, notInTransaction, readOnlyNotReset } from './session-failure.ts'
import { readOnlySnapshot, sessionSettings } from './session-sql.ts'
import { soon } from './soon.ts'
import { changeOfModes, mayEndItsOwn, resetsReadOnly, saysReadOnly } from './transaction-control.ts'
import type { TransactionWatch } from './transaction-watch.ts'

export interface StepOptions extends FenceBounds {
  readonly outsideTransactions?: boolean | undefined
}

export type Query = (...args: unknown[]) => unknown

const rollbackWithinMs = 5000

/**
 * What becomes of each statement of a fenced session:
 *
 *   - every BEGIN carries the fence along, or else a snapshot, which keeps one that only reads from writing later;
 *   - SET TRANSACTION right after BEGIN comes before the fence: the transaction is begun once more with it;
 *   - a statement outside of a transaction gets a fenced one of its own;
 *   - what PostgreSQL does not run in a transaction is refused, or goes out right after a check of the term.
 *
 * Whose turn it is, and who may send at all, is the gate's to say.
 */
export class SessionSteps {
  readonly #fence: Fence
  readonly #client: Client
  readonly #send: Query
  readonly #watch: TransactionWatch
  readonly #fenceSql: string
  readonly #mayGoOutside: boolean
  readonly #timeoutMs: number | null
  #isDirect = false
  #idle = '0'
  /** The texts that the open transaction was begun with, until anything else is sent in it. */
  #opening: readonly string[] | undefined
  #refusal: FencepostError | undefined

  constructor(fence: Fence, client: Client, send: Query, watch: TransactionWatch, options: StepOptions) {
    this.#fence = fence
    this.#client = client
    this.#send = send
    this.#watch = watch
    this.#fenceSql = fenceLiterals(fence, options)
    this.#timeoutMs = boundsInMs(options).timeoutMs
    this.#mayGoOutside = options.outsideTransactions ?? false
  }

  /** The first refusal: it ended the session, whatever the tool made of it. */
  get refusal(): FencepostError | undefined {
    return this.#refusal
  }

  /** Something is sent past these steps. */
  passes(): void {
    this.#opening = undefined
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
    const pid = processIdOf(this.#client) ?? 'null'
    const results = (await this.#tried('beginning', () =>
      this.#check(`${this.#fenceSql}; ${sessionSettings(pid)}`),
    )) as {
      rows: { is_direct: boolean | null; idle: string }[]
    }[]
    const [row] = results.at(-1)!.rows
    this.#isDirect = row!.is_direct === true
    this.#idle = row!.idle
  }

  async begin(texts: readonly string[]): Promise<unknown> {
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
      await this.control(['rollback'])
      const results = await this.#beginWith(texts)
      this.#opening = texts
      return results[texts.length - 1]
    })
  }

  async #beginWith(texts: readonly string[]): Promise<unknown[]> {
    this.#watch.reset()
    const fenced = [...texts, this.#fenceSql].join('\n; ')
    if (saysReadOnly(texts))
      return (await this.#beginReadOnly(texts)) ?? (this.control([fenced]) as Promise<unknown[]>)
    try {
      return (await this.control([fenced])) as unknown[]
    } catch (error) {
      if (sqlStateOf(error) !== '25006') throw error
      await this.control(['rollback'])
      const results = await this.#beginReadOnly(texts)
      if (results === undefined) throw error
      return results
    }
  }

  /** Undefined when the transaction is one that may write, or the server is one that takes no writes at all. */
  async #beginReadOnly(texts: readonly string[]): Promise<unknown[] | undefined> {
    const snapshot = readOnlySnapshot(this.#idle, this.#timeoutMs)
    const results = (await this.control([[...texts, snapshot].join('\n; ')])) as { rows: unknown[] }[]
    if (results.at(-1)!.rows.length > 0) return results
    await this.control(['rollback'])
    return undefined
  }

  async commit(args: unknown[]): Promise<unknown> {
    return this.#tried('committing', async () => {
      // As in a fenced transaction: nobody should see one term both lost and committed.
      this.#fence.assertHeld?.()
      const result = (await this.control(args)) as { command: string }
      if (this.#watch.isReplaced) throw endedInside(this.#fence)
      if (result.command === 'ROLLBACK') throw abortedTransaction(this.#fence.term)
      if (this.#watch.isCommitDoubtful) throw doubtfulCommit(this.#fence.term)
      return result
    })
  }

  /** In an open transaction, which is fenced. */
  async within(args: unknown[]): Promise<unknown> {
    if (resetsReadOnly(textOf(args[0]))) throw await this.refused(readOnlyNotReset())
    const opening = this.#opening
    this.#opening = undefined
    if (opening !== undefined) {
      const text = textOf(args[0])
      const change = changeOfModes(text)
      if (change === 'snapshot') throw await this.refused(foreignSnapshot())
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
  async alone(args: unknown[]): Promise<unknown> {
    const mayGoOutside = this.#mayGoOutside && this.#isDirect
    // What it did before its first COMMIT would not all go back with a rollback, and would be done twice.
    if (mayGoOutside && mayEndItsOwn(textOf(args[0]))) return this.#outside(args)
    await this.begin(['begin'])
    let result: unknown
    try {
      result = await this.within(args)
    } catch (error) {
      if (this.#refusal !== undefined) throw error
      await this.rollBack()
      const sqlState = sqlStateOf(error)
      if (sqlState !== '25001' && sqlState !== '2D000') throw error
      if (mayGoOutside) return this.#outside(args)
      throw await this.refused(notInTransaction(error, sqlState, this.#mayGoOutside))
    }
    await this.commit(['commit'])
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
      await this.control(['begin read write']).catch(() => {
        throw error
      })
      const results = await this.#ask(text)
      await this.control(['commit'])
      return results
    }
  }

  /** A runner that was paused is to hear that the lease is lost, not what became of its session. */
  asCutOff(): FencepostError {
    try {
      this.#fence.assertHeld?.()
    } catch (error) {
      if (error instanceof FencepostError) return error
    }
    return cutOff(this.#fence.term, this.#watch.loss)
  }

  /** A statement of transaction control that is meant to be. */
  async control(args: unknown[]): Promise<unknown> {
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
        throw await this.refused(failure)
      }
      // Nothing was begun, as far as whoever asked for it knows.
      if (stage === 'beginning') await this.rollBack()
      throw failure
    }
  }

  async refused(refusal: FencepostError): Promise<FencepostError> {
    this.#refusal ??= refusal
    await this.rollBack()
    return refusal
  }

  /** A rollback can queue for ever behind a stream that nobody reads; the end of the session does the same. */
  async rollBack(): Promise<void> {
    if (this.#watch.isLost) return
    // Where it fails, the session is ended in any case.
    await soon(
      rollbackWithinMs,
      this.control(['rollback']).catch(() => {}),
    )
  }
}
