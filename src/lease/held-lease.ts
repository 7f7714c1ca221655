import { inspect } from 'node:util'
import { LeaseLostError, LeaseReleasedError, type LossReason } from '../errors.ts'
import type { Logger } from '../logger.ts'
import { Events } from './events.ts'
import type { Holder, HolderListener } from './holder.ts'
import type { Term, Token } from './term.ts'

/** `held` and `at-risk` may change into each other; `lost` and `released` are final. */
export type LeaseState = 'held' | 'at-risk' | 'lost' | 'released'

/**
 * What became of a release: `released`; `not-held`, because the lease had been lost before; `unknown`, because the
 * database could not be asked in time, in which case the lease is free after its TTL at the latest.
 */
export type ReleaseOutcome = 'released' | 'not-held' | 'unknown'

// oxlint-disable-next-line typescript/consistent-type-definitions -- An event map needs an index signature.
export type LeaseEvents = {
  /** A heartbeat failed or the clock jumped. The lease is still held for `expiresInMs`, unless a beat comes through. */
  'at-risk': { readonly expiresInMs: number; readonly cause: unknown }
  lost: LeaseLostError
  released: { readonly outcome: ReleaseOutcome }
}

/** What a held lease needs from the room it lives in. */
export interface HeldLeaseOptions {
  readonly term: Term
  readonly holder: Holder
  readonly logger: Logger
  /** Gives the term back in the database. */
  giveBack(term: Term, holder: Holder): Promise<ReleaseOutcome>
  /** Called once, when the name may be asked for again by this process. */
  onOver(lease: HeldLease): void
}

/** One term of one lease, from the grant to its loss or release. */
export class HeldLease implements HolderListener {
  readonly #term: Term
  readonly #holder: Holder
  readonly #options: HeldLeaseOptions
  readonly #abort = new AbortController()
  readonly #events: Events<LeaseEvents>
  #end: 'lost' | 'released' | undefined
  #release: Promise<ReleaseOutcome> | undefined

  constructor(options: HeldLeaseOptions) {
    this.#term = options.term
    this.#holder = options.holder
    this.#options = options
    this.#events = new Events(options.logger)
    options.holder.addListener(this)
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
   * this machine can tell. It does not abort on release.
   */
  get signal(): AbortSignal {
    return this.#abort.signal
  }

  get state(): LeaseState {
    if (this.#end !== undefined) return this.#end
    if (!this.#holder.isAlive) return 'lost'
    return this.#holder.isAtRisk ? 'at-risk' : 'held'
  }

  /**
   * Whether the lease is held, by this machine's clock and the last confirmed heartbeat: true for certain knowledge
   * only. It is arithmetic, so it is right even when the event loop was blocked. It does not stop a stale write: that
   * is what the fence does.
   */
  get isHeld(): boolean {
    return this.#end === undefined && this.#holder.isTrusted
  }

  /** Milliseconds for which the lease may be trusted without another heartbeat; 0 when it is not held. */
  get expiresInMs(): number {
    return this.#end === undefined ? Math.floor(this.#holder.trustLeftMs) : 0
  }

  /** Listens to an event of this lease; the returned function stops it. */
  on<Name extends keyof LeaseEvents>(
    name: Name,
    listener: (event: LeaseEvents[Name]) => unknown,
  ): () => void {
    return this.#events.on(name, listener)
  }

  /**
   * Throws unless the lease is held right now.
   *
   * @throws LeaseLostError, LeaseReleasedError
   */
  assertHeld(): void {
    if (this.#end === 'released') throw new LeaseReleasedError(this.name, this.token)
    if (this.isHeld) return
    throw this.#abort.signal.reason ?? new LeaseLostError(this.name, this.token, 'expired')
  }

  /**
   * Gives the lease back. Never throws: see `ReleaseOutcome`. It waits for fenced transactions of this term that are
   * still open. Calling it again returns the first call's outcome.
   */
  release(): Promise<ReleaseOutcome> {
    this.#release ??= this.#giveBack()
    return this.#release
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }

  /** Called by the holder. */
  atRisk(leftMs: number, cause: unknown): void {
    if (this.#end === undefined) this.#events.emit('at-risk', { expiresInMs: Math.floor(leftMs), cause })
  }

  /** Called by the holder. */
  lost(reason: LossReason, cause: unknown): void {
    if (this.#end !== undefined) return
    this.#end = 'lost'
    const error = new LeaseLostError(this.name, this.token, reason, cause === undefined ? {} : { cause })
    this.#options.onOver(this)
    this.#abort.abort(error)
    this.#events.emit('lost', error)
  }

  async #giveBack(): Promise<ReleaseOutcome> {
    // A blocked event loop may have kept the deadline's timer from running: it is lost, not released.
    if (this.#end === undefined && !this.#holder.isAlive) this.#holder.lose('expired')
    if (this.state === 'lost') return 'not-held'
    this.#end = 'released'
    this.#holder.removeListener(this)
    const outcome = await this.#options.giveBack(this.#term, this.#holder)
    this.#options.onOver(this)
    this.#events.emit('released', { outcome })
    return outcome
  }
}

// What console.log shows: not the holder's id, which is a secret.
Object.defineProperty(HeldLease.prototype, inspect.custom, {
  value(this: HeldLease): string {
    return `Lease { name: ${JSON.stringify(this.name)}, token: ${this.token}n, state: '${this.state}' }`
  },
})
