import type { Clock } from '../clock.ts'
import { FencepostError, LeaseLostError } from '../errors.ts'
import type { HandOverOutcome, LeaseState } from '../lease/held-lease.ts'
import type { Token } from '../lease/term.ts'
import type { Logger } from '../logger.ts'

/** What an election needs of a lease. */
export interface ElectedLease {
  readonly name: string
  readonly token: Token
  readonly signal: AbortSignal
  readonly state: LeaseState
  readonly isHeld: boolean
  on(event: 'lost', listener: (error: LeaseLostError) => unknown): () => void
  /** Gives the lease to whoever waits for it. Never throws. */
  handOver(): Promise<HandOverOutcome>
  /** Aborts the signal with this reason. The lease stays held. */
  askToStop(reason: unknown): void
  /** Renews no more: the lease is lost one TTL from now at the latest, unless it is given back before. */
  letExpire(): Promise<void>
}

/**
 * Why a term ended:
 *   - `returned`: `lead` returned;
 *   - `failed`: `lead` threw;
 *   - `stopped`: `lead` settled after `stop()` had asked it to;
 *   - `abandoned`: `lead` did not settle within `stopTimeout` of `stop()`, and the lease has run out;
 *   - `lost`: the lease was lost while `lead` ran;
 *   - `closed`: the Fencepost was closed while `lead` ran.
 */
export type EndReason = 'returned' | 'failed' | 'stopped' | 'abandoned' | 'lost' | 'closed'

export interface OfficeEnd {
  readonly reason: EndReason
  /** What `lead` threw, for `failed`; the LeaseLostError for `abandoned`, `lost` and `closed`. */
  readonly error: unknown
}

export interface OfficeOptions<L extends ElectedLease> {
  readonly lease: L
  readonly lead: (lease: L) => unknown
  readonly clock: Clock
  readonly logger: Logger
  /** How long `lead` may take to settle once it has been told to stop, before that is worth a warning. */
  readonly stopTimeoutMs: number
  /** Called once, when this process leads no more. `lead` may still be running when the lease was lost. */
  onEnd(end: OfficeEnd): void
  /** Called when `lead` threw something else than what its signal had told it. */
  onFailure(error: unknown): void
}

/**
 * One term in which this process leads, from the grant until `lead` has settled and the lease is not held any more.
 *
 *     leading ──lead settled──▶ (ended) giving up the lease ──▶ over
 *        │
 *        └──lost──▶ (ended) draining ──lead settled──▶ over
 *
 * It ends exactly once: when `lead` settles or when the lease is lost, whichever comes first. The lease is given up
 * after `lead` has settled and never before.
 */
export class Office<L extends ElectedLease> {
  readonly #options: OfficeOptions<L>
  readonly #leadSettled = Promise.withResolvers<void>()
  readonly #over = Promise.withResolvers<HandOverOutcome>()
  #isLeadSettled = false
  #isAsked = false
  #isAbandoned = false
  #end: OfficeEnd | undefined
  #ledMs = 0
  #cancelWarning: () => void = () => {}

  constructor(options: OfficeOptions<L>) {
    this.#options = options
  }

  /** The lease, until the term has ended. */
  get lease(): L | undefined {
    return this.#end === undefined ? this.#options.lease : undefined
  }

  get end(): OfficeEnd | undefined {
    return this.#end
  }

  /** How long `lead` ran. */
  get ledMs(): number {
    return this.#ledMs
  }

  /** Runs `lead` and gives up the lease. Settles when this process may stand again. Never rejects. */
  async serve(): Promise<HandOverOutcome> {
    const { lease, lead, clock, logger } = this.#options
    const stopListening = lease.on('lost', (error) => this.#lost(error))
    const startedMs = clock.monotonicMs()
    try {
      // Whoever heard that it was elected may have stopped the election at once, or have taken very long to hear it.
      if (!this.#isAsked && lease.state !== 'lost') await lead(lease)
      this.#settle('returned', undefined)
    } catch (error) {
      this.#settle('failed', error)
    }
    this.#cancelWarning()
    this.#ledMs = clock.monotonicMs() - startedMs
    this.#leadSettled.resolve()
    const outcome = lease.state === 'lost' ? 'not-held' : await handOver(lease, logger)
    stopListening()
    this.#over.resolve(outcome)
    return outcome
  }

  /** Asks `lead` to stop and waits for it, and for what becomes of the lease then. */
  async stop(reason: unknown): Promise<HandOverOutcome | 'abandoned'> {
    const { lease, logger, stopTimeoutMs } = this.#options
    if (this.#isLeadSettled) return this.#over.promise
    this.#isAsked = true
    if (this.#end === undefined) lease.askToStop(reason)
    if (await this.#settlesWithin(stopTimeoutMs)) return this.#over.promise
    this.#isAbandoned = true
    logger.warn(
      `fencepost: lead of election "${lease.name}" did not settle within ${stopTimeoutMs} ms of stop(). Its lease is not given ` +
        'back early: it runs out.',
    )
    if (this.#end === undefined) {
      lease.letExpire().catch((error: unknown) => {
        logger.error(`fencepost: lease "${lease.name}" could not be left to expire: ${String(error)}`)
      })
    }
    return 'abandoned'
  }

  async #settlesWithin(ms: number): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const cancel = this.#options.clock.after(ms, () => resolve(false))
    void this.#leadSettled.promise.then(() => resolve(true))
    const isSettled = await promise
    cancel()
    // Both may have come in one step of a busy event loop.
    return isSettled || this.#isLeadSettled
  }

  #settle(how: 'returned' | 'failed', error: unknown): void {
    const { lease } = this.#options
    this.#isLeadSettled = true
    // The heartbeat may not have got to say so yet.
    if (this.#end === undefined && lease.state === 'lost') this.#lost(lossOf(lease))
    if (how === 'failed' && !isToldBy(lease, error)) this.#options.onFailure(error)
    this.#finish(this.#isAsked ? { reason: 'stopped', error: undefined } : { reason: how, error })
  }

  #lost(error: LeaseLostError): void {
    const { lease, clock, logger, stopTimeoutMs } = this.#options
    if (this.#end !== undefined) return
    const reason = error.reason === 'closed' ? 'closed' : this.#isAbandoned ? 'abandoned' : 'lost'
    if (!this.#isLeadSettled && !this.#isAbandoned) {
      this.#cancelWarning = clock.after(stopTimeoutMs, () =>
        logger.warn(
          `fencepost: election "${lease.name}" lost its lease ${stopTimeoutMs} ms ago and lead is still running. This process ` +
            'cannot stand again before it has settled: let it listen to lease.signal.',
        ),
      )
    }
    this.#finish({ reason, error })
  }

  #finish(end: OfficeEnd): void {
    if (this.#end !== undefined) return
    this.#end = end
    this.#options.onEnd(end)
  }
}

/** Gives a lease up. It promises never to throw; whoever relies on it for a loop that must not end makes sure. */
export async function handOver(lease: ElectedLease, logger: Logger): Promise<HandOverOutcome> {
  try {
    return await lease.handOver()
  } catch (error) {
    logger.error(`fencepost: lease "${lease.name}" could not be handed over: ${String(error)}`)
    return 'unknown'
  }
}

function lossOf(lease: ElectedLease): LeaseLostError {
  const { reason } = lease.signal as { readonly reason: unknown }
  return reason instanceof LeaseLostError ? reason : new LeaseLostError(lease.name, lease.token, 'expired')
}

/** Codes of errors that mean no more than that the lease is lost, once it is. */
const consequences = new Set(['LEASE_LOST', 'LEASE_RELEASED', 'STALE_TERM', 'HOLDER_EXPIRED'])

/** Whether an error is nothing but the signal's own news: its reason, an AbortError, or a write refused after a loss. */
function isToldBy({ signal, state }: ElectedLease, error: unknown): boolean {
  if (!(error instanceof Error)) return signal.aborted && error === signal.reason
  if (state === 'lost' && error instanceof FencepostError && consequences.has(error.code)) return true
  return (
    signal.aborted &&
    (error === signal.reason || error.cause === signal.reason || error.name === 'AbortError')
  )
}
