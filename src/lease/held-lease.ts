import { LeaseLostError, LeaseReleasedError, type LossReason } from '../errors.ts'
import type { Clock } from '../clock.ts'
import type { Logger } from '../logger.ts'
import { Events } from './events.ts'
import type { Holder, HolderListener } from './holder.ts'
import { type Term, type Token, marginMs } from './term.ts'

/** `held` and `at-risk` may change into each other; `lost` and `released` are final. */
export type LeaseState = 'held' | 'at-risk' | 'lost' | 'released'

/**
 * What became of a release: `released`; `not-held`, because the lease had been lost before; `unknown`, because the
 * database could not be asked in time, in which case the lease is free after its TTL at the latest.
 */
export type ReleaseOutcome = 'released' | 'not-held' | 'unknown'

/** What became of a hand-over: `handed-over` to the next in line, or, as nobody was waiting, what became of the release. */
export type HandOverOutcome = 'handed-over' | ReleaseOutcome

// oxlint-disable-next-line typescript/consistent-type-definitions -- An event map needs an index signature.
export type LeaseEvents = {
  /** A heartbeat failed or the clock jumped. The lease is still held for `expiresInMs`, unless a beat comes through. */
  'at-risk': { readonly expiresInMs: number; readonly cause: unknown }
  /** A heartbeat was confirmed; the lease is held for `expiresInMs` from now, without another one. */
  renewed: { readonly expiresInMs: number }
  /** At most once. Who listens after it has happened is told at once. */
  lost: LeaseLostError
  /** At most once. Who listens after it has happened is told at once. */
  released: { readonly outcome: HandOverOutcome }
}

/** What a held lease needs from the room it lives in. */
export interface HeldLeaseOptions {
  readonly term: Term
  readonly holder: Holder
  readonly clock: Clock
  readonly logger: Logger
  /** When its maximum hold ends here, by the monotonic clock. Infinity: never. */
  readonly deadlineMs: number
  /** Gives the term back in the database. */
  giveBack(): Promise<HandOverOutcome>
  /** Has the database end the term after so long. */
  limit(withinMs: number): Promise<void>
  /** Called once, when the name may be asked for again by this process. */
  onOver(lease: HeldLease): void
}

/** One term of one lease, from the grant to its loss or release. */
export class HeldLease implements HolderListener {
  readonly #term: Term
  readonly #holder: Holder
  readonly #options: HeldLeaseOptions
  /** Made for whoever looks at it: most leases are taken and given back without. */
  #abort: AbortController | undefined
  /** The same. */
  #events: Events<LeaseEvents> | undefined
  #end: 'lost' | 'released' | undefined
  #loss: LeaseLostError | undefined
  #isLossTold = false
  #outcome: HandOverOutcome | undefined
  #release: Promise<HandOverOutcome> | undefined
  #deadlineMs = Number.POSITIVE_INFINITY
  #deadlineReason: 'overdue' | 'expired' = 'overdue'
  #cancelDeadline: () => void = () => {}
  #stopRenewals: (() => void) | undefined

  constructor(options: HeldLeaseOptions) {
    this.#term = options.term
    this.#holder = options.holder
    this.#options = options
    options.holder.addListener(this)
    if (Number.isFinite(options.deadlineMs)) this.#endAt(options.deadlineMs, 'overdue')
  }

  /** The lease's name. */
  get name(): string {
    return this.#term.lease
  }

  /** The fencing token of this term: greater than every token granted before it. */
  get token(): Token {
    return this.#term.token
  }

  /** The identity of this term, with the holder's secret: what the fence compares. Do not log it. */
  get term(): Term {
    return this.#term
  }

  /**
   * Aborts, with a `LeaseLostError` as its reason, before anybody else can be granted the lease, as far as a clock on
   * this machine can tell. It does not abort on release. `askToStop` aborts it earlier, with a reason of the caller's.
   */
  get signal(): AbortSignal {
    return this.#aborting.signal
  }

  /** Why it is lost; undefined unless it is. */
  get loss(): LeaseLostError | undefined {
    return this.#loss
  }

  get state(): LeaseState {
    if (this.#end !== undefined) return this.#end
    if (this.#isOverdue() || !this.#holder.isAlive) return 'lost'
    return this.#holder.isAtRisk ? 'at-risk' : 'held'
  }

  /**
   * Whether the lease is held, by this machine's clock and the last confirmed heartbeat: true for certain knowledge
   * only. It is arithmetic, so it is right even when the event loop was blocked. It does not stop a stale write: that
   * is what the fence does.
   */
  get isHeld(): boolean {
    return this.#end === undefined && !this.#isOverdue() && this.#holder.isTrusted
  }

  /** Milliseconds for which the lease may be trusted without another heartbeat; 0 when it is not held. */
  get expiresInMs(): number {
    if (this.#end !== undefined) return 0
    const leftMs = Math.min(this.#holder.trustLeftMs, this.#deadlineMs - this.#options.clock.monotonicMs())
    return Math.max(0, Math.floor(leftMs))
  }

  /** Listens to an event of this lease; the returned function stops it. */
  on<Name extends keyof LeaseEvents>(
    name: Name,
    listener: (event: LeaseEvents[Name]) => unknown,
  ): () => void {
    const events = (this.#events ??= new Events(this.#options.logger))
    if (name === 'lost' && this.#isLossTold) events.tellLate(name, listener, this.#loss as LeaseEvents[Name])
    if (name === 'renewed' && this.#end === undefined) {
      this.#stopRenewals ??= this.#holder.onRenewal(() => this.#renewed())
    }
    if (name === 'released') {
      const outcome = this.#outcome
      if (outcome !== undefined) events.tellLate(name, listener, { outcome } as LeaseEvents[Name])
    }
    return events.on(name, listener)
  }

  /**
   * Throws unless the lease is held right now.
   *
   * @throws LeaseLostError, LeaseReleasedError
   */
  assertHeld(): void {
    if (this.#end === 'released') throw new LeaseReleasedError(this.name, this.token)
    if (this.isHeld) return
    throw this.#loss ?? new LeaseLostError(this.name, this.token, 'expired')
  }

  /** Aborts the signal, with this reason, while the lease stays held: asks the work under it to stop. */
  askToStop(reason: unknown): void {
    this.#aborting.abort(reason)
  }

  /**
   * Renews the lease no more: it is lost one TTL from now, here and in the database, unless it is released before. For work that
   * does not stop although it was told to. Settles when the database has agreed, and never rejects; until then it asks again.
   */
  async letExpire(): Promise<void> {
    if (this.state === 'lost' || this.#end !== undefined) return
    const { ttlMs } = this.#holder
    const agreed = this.#options.limit(ttlMs)
    this.#endAt(this.#options.clock.monotonicMs() + ttlMs - marginMs(ttlMs), 'expired')
    await agreed
  }

  /**
   * Gives the lease back. Never throws: see `ReleaseOutcome`. It waits for fenced transactions of this term that are
   * still open. Calling it again returns the first call's outcome.
   */
  release(): Promise<ReleaseOutcome> {
    return this.handOver().then(asReleaseOutcome)
  }

  /**
   * Gives the lease back like `release`, and tells whether it went straight to the next in line: between the two terms nobody
   * else can have it, and there is no time in which nobody does. Never throws.
   *
   * @example
   * ```ts
   * const lease = await fencepost.acquire('scheduler')
   * process.once('SIGTERM', async () => {
   *   console.log(await lease.handOver()) // handed-over: the new version, which waits for it, goes on
   *   await fencepost.close()
   * })
   * ```
   */
  handOver(): Promise<HandOverOutcome> {
    this.#release ??= this.#giveBack()
    return this.#release
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }

  /** Called by the holder. */
  atRisk(leftMs: number, cause: unknown): void {
    if (this.#end !== undefined) return
    this.#events?.emit('at-risk', { expiresInMs: Math.min(Math.floor(leftMs), this.expiresInMs), cause })
  }

  /** Called by the holder. */
  lost(reason: LossReason, cause: unknown): void {
    if (this.#end !== undefined) return
    this.#over('lost')
    this.#holder.removeListener(this)
    const error = new LeaseLostError(this.name, this.token, reason, cause === undefined ? {} : { cause })
    this.#loss = error
    this.#options.onOver(this)
    this.#abort?.abort(error)
    this.#isLossTold = true
    this.#events?.emit('lost', error)
  }

  get #aborting(): AbortController {
    if (this.#abort === undefined) {
      this.#abort = new AbortController()
      if (this.#loss !== undefined) this.#abort.abort(this.#loss)
    }
    return this.#abort
  }

  #renewed(): void {
    if (this.#end === undefined) this.#events?.emit('renewed', { expiresInMs: this.expiresInMs })
  }

  /** The term ends at this time whatever the heartbeat does, unless an earlier end has been set. */
  #endAt(deadlineMs: number, reason: 'overdue' | 'expired'): void {
    if (deadlineMs >= this.#deadlineMs) return
    this.#cancelDeadline()
    this.#deadlineMs = deadlineMs
    this.#deadlineReason = reason
    const { clock } = this.#options
    this.#cancelDeadline = clock.after(deadlineMs - clock.monotonicMs(), () => this.#isOverdue())
  }

  #isOverdue(): boolean {
    if (this.#end !== undefined || this.#options.clock.monotonicMs() < this.#deadlineMs) return false
    // The timer may be late. The signal must not be: it fires right after the caller's current step.
    queueMicrotask(() => this.lost(this.#deadlineReason, undefined))
    return true
  }

  #over(end: 'lost' | 'released'): void {
    this.#end = end
    this.#cancelDeadline()
    this.#stopRenewals?.()
  }

  async #giveBack(): Promise<HandOverOutcome> {
    // A blocked event loop may have kept the deadline's timer from running: it is lost, not released.
    if (this.#end === undefined && !this.#isOverdue() && !this.#holder.isAlive) this.#holder.lose('expired')
    if (this.state === 'lost') return 'not-held'
    this.#over('released')
    this.#holder.removeListener(this)
    const outcome = await this.#options.giveBack()
    this.#options.onOver(this)
    this.#outcome = outcome
    this.#events?.emit('released', { outcome })
    return outcome
  }
}

function asReleaseOutcome(outcome: HandOverOutcome): ReleaseOutcome {
  return outcome === 'handed-over' ? 'released' : outcome
}

// What console.log shows: not the holder's id, which is a secret.
Object.defineProperty(HeldLease.prototype, Symbol.for('nodejs.util.inspect.custom'), {
  value(this: HeldLease): string {
    return `Lease { name: ${JSON.stringify(this.name)}, token: ${this.token}n, state: '${this.state}' }`
  },
})
