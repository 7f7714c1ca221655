import { FencepostError, LeaseLostError, type LossReason } from '../../src/errors.ts'
import { Events } from '../../src/lease/events.ts'
import type { LeaseState } from '../../src/lease/held-lease.ts'
import type { Token } from '../../src/lease/term.ts'
import { Line } from '../../src/lease/line.ts'
import type { Logger } from '../../src/logger.ts'
import type { Electorate } from '../../src/roles/election.ts'
import type { Leader } from '../../src/roles/leader-watch.ts'
import type { HandOverOutcome } from '../../src/lease/held-lease.ts'
import type { ElectedLease } from '../../src/roles/office.ts'
import { ManualClock } from '../support/manual-clock.ts'

export const ttlMs = 10_000

/** A term as the fake database grants it. */
export class FakeLease implements ElectedLease {
  readonly name: string
  readonly token: Token
  readonly #database: FakeDatabase
  readonly #abort = new AbortController()
  readonly #events: Events<{ lost: LeaseLostError }>
  state: LeaseState = 'held'
  givenUp = 0
  isLeftToExpire = false

  constructor(database: FakeDatabase, name: string, token: bigint) {
    this.#database = database
    this.#events = new Events(database.logger)
    this.name = name
    this.token = token as Token
  }

  get signal(): AbortSignal {
    return this.#abort.signal
  }

  get isHeld(): boolean {
    return this.state === 'held' || this.state === 'at-risk'
  }

  on(name: 'lost', listener: (error: LeaseLostError) => unknown): () => void {
    return this.#events.on(name, listener)
  }

  askToStop(reason: unknown): void {
    this.#abort.abort(reason)
  }

  async letExpire(): Promise<void> {
    this.isLeftToExpire = true
    this.#database.clock.after(ttlMs, () => this.lose('expired'))
  }

  /** The lease is lost, and granted to the next in line. */
  lose(reason: LossReason = 'expired'): void {
    if (!this.isHeld) return
    this.state = 'lost'
    const error = new LeaseLostError(this.name, this.token, reason)
    this.#abort.abort(error)
    this.#events.emit('lost', error)
    this.#database.free(this)
  }

  async handOver(): Promise<HandOverOutcome> {
    this.givenUp += 1
    if (this.state === 'lost') return 'not-held'
    this.state = 'released'
    await this.#database.handingOver
    return this.#database.free(this) ? 'handed-over' : 'released'
  }
}

/** One lease of a database, and who waits for it. Every granted term is kept for the tests to look at. */
export class FakeDatabase {
  readonly clock = new ManualClock()
  readonly log: string[] = []
  readonly terms: FakeLease[] = []
  /** What the next attempts to acquire throw, in turn. */
  readonly failures: unknown[] = []
  /** How often each election has asked. */
  asked = 0
  looks = 0
  lookFailure: unknown
  /** Awaited by every hand-over. */
  handingOver: Promise<void> = Promise.resolve()
  random = 0
  readonly #waiting: ((lease: FakeLease) => void)[] = []
  #holder: FakeLease | undefined
  readonly #closed = new AbortController()
  #isClosed = false
  readonly #closing: ((error: unknown) => void)[] = []

  readonly logger: Logger = {
    debug: () => {},
    info: () => {},
    warn: (message) => this.log.push(message),
    error: (message) => this.log.push(message),
  }

  get holder(): FakeLease | undefined {
    return this.#holder
  }

  /** One process's door to the database: elections that share a line are in one process. */
  electorate(name = 'scheduler', line = new Line()): Electorate<FakeLease> {
    return {
      clock: this.clock,
      logger: this.logger,
      ttlMs,
      closed: this.#closed.signal,
      line,
      random: () => this.random,
      acquire: (signal) => this.#acquire(name, signal),
      leader: () => this.#leader(),
    }
  }

  /** As Fencepost.close(): what is held is lost, and who waits is refused. */
  close(): void {
    this.#isClosed = true
    this.#closed.abort(closed())
    this.#waiting.length = 0
    this.#holder?.lose('closed')
    for (const refuse of this.#closing.splice(0)) refuse(closed())
  }

  /** Grants the lease to the next in line; false when nobody waits. */
  free(lease: FakeLease): boolean {
    if (this.#holder === lease) this.#holder = undefined
    const next = this.#holder === undefined ? this.#waiting.shift() : undefined
    next?.(this.#grant(lease.name))
    return next !== undefined
  }

  /** Somebody outside the tested elections takes the lease. */
  takeAs(name: string): FakeLease {
    return this.#grant(name)
  }

  #grant(name: string): FakeLease {
    const lease = new FakeLease(this, name, BigInt(this.terms.length + 1))
    this.terms.push(lease)
    this.#holder = lease
    return lease
  }

  async #acquire(name: string, signal: AbortSignal): Promise<FakeLease> {
    this.asked += 1
    signal.throwIfAborted()
    if (this.#isClosed) throw closed()
    // oxlint-disable-next-line typescript/only-throw-error -- Whatever the test wants to be thrown.
    if (this.failures.length > 0) throw this.failures.shift()
    if (this.#holder === undefined) return this.#grant(name)
    const { promise, resolve, reject } = Promise.withResolvers<FakeLease>()
    this.#waiting.push(resolve)
    this.#closing.push(reject)
    signal.addEventListener('abort', () => {
      const place = this.#waiting.indexOf(resolve)
      if (place >= 0) this.#waiting.splice(place, 1)
      // Without a place it has been granted in this very moment.
      if (place >= 0) reject(signal.reason)
    })
    return promise
  }

  async #leader(): Promise<Leader | undefined> {
    this.looks += 1
    // oxlint-disable-next-line typescript/only-throw-error
    if (this.lookFailure !== undefined) throw this.lookFailure
    if (this.#isClosed) throw closed()
    if (this.#holder === undefined) return undefined
    const { token } = this.#holder
    return { holder: 'test', host: 'test', pid: 1, token, since: new Date(0) }
  }
}

function closed(): FencepostError {
  return new FencepostError('CLOSED', 'this Fencepost has been closed. Open another one.')
}
