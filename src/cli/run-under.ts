import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../clock.ts'
import { NotAcquiredError } from '../errors.ts'
import type { Grants } from '../database/grants.ts'
import { type Fencepost, openOn } from '../fencepost.ts'
import type { Lease } from '../fence/lease.ts'
import { exitCode } from './exit-code.ts'
import { signalCode } from './process-group.ts'
import { fencedEnvironment, urlOfCommand, whyUnfenced } from './run-fence.ts'
import { type RunSettings, spoken } from './run-options.ts'
import type { RunReport } from './run-report.ts'
import { WaitingWatch } from './run-waiting.ts'
import type { SignalGuard } from './signal-guard.ts'
import { type CommandEnd, supervise } from './supervise.ts'
import { Watchdog } from './watchdog.ts'

/**
 * A database that does not answer must not keep a finished command from being reported: after these the wrapper goes,
 * and the lease frees itself.
 */
const releaseWithinMs = 4000
const closeWithinMs = 2000
/** Whether the fence gets through is asked while the command runs; one that has ended sooner is not held up for it. */
const fenceToldWithinMs = 1000

interface RunContext {
  readonly settings: RunSettings
  readonly url: string
  /** To the database that the URL names. */
  readonly grants: Grants
  readonly report: RunReport
  /** Disposed of when all is over. */
  readonly guard: SignalGuard
  /** By the monotonic clock. */
  readonly startedMs: number
}

/** One call of `fencepost run`, from the connection to the exit code. */
export class Run {
  readonly #name: string
  readonly #command: readonly string[]
  readonly #settings: RunSettings
  readonly #url: string
  readonly #grants: Grants
  readonly #report: RunReport
  readonly #guard: SignalGuard
  readonly #startedMs: number

  constructor(name: string, command: readonly string[], context: RunContext) {
    this.#name = name
    this.#command = command
    this.#settings = context.settings
    this.#url = context.url
    this.#grants = context.grants
    this.#report = context.report
    this.#guard = context.guard
    this.#startedMs = context.startedMs
  }

  /** The exit code, when all is over. */
  async end(): Promise<number> {
    using guard = this.#guard
    const { graceMs, isForeground } = this.#settings
    let fencepost: Fencepost | undefined
    let watchdog: Watchdog | undefined
    try {
      const opening = guard.orStopped(this.#open())
      // Starting it takes its time, which is there while the database is connected to.
      watchdog = new Watchdog({ graceMs, isSession: !isForeground })
      fencepost = await opening
      const lease = await this.#acquire(fencepost, guard)
      return await this.#runUnder(lease, guard, watchdog)
    } catch (error) {
      const signal = guard.received
      if (signal !== undefined) {
        const code = signalCode(signal)
        this.#report.tell('stopped', `stopped by ${signal}`, { signal, exitCode: code })
        return code
      }
      if (error instanceof NotAcquiredError) return this.#conflict(error)
      throw error
    } finally {
      watchdog?.over()
      if (fencepost !== undefined) await within(closeWithinMs, fencepost.close())
    }
  }

  #open(): Promise<Fencepost> {
    const { ttlMs, label, meta } = this.#settings
    return openOn(this.#grants, { connectionString: this.#url, ttl: ttlMs, label, meta })
  }

  async #acquire(fencepost: Fencepost, guard: SignalGuard): Promise<Lease> {
    const { ttlMs, waitMs, minHoldMs, maxHoldMs, label } = this.#settings
    const leftMs = Math.max(0, waitMs - this.#sinceStartMs())
    const host = hostname()
    using watch = new WaitingWatch({
      inspect: () => fencepost.inspect(this.#name),
      self: { label: label ?? `${host}:${process.pid}`, host, pid: process.pid },
      report: this.#report,
    })
    const lease = await fencepost.acquire(this.#name, {
      wait: Number.isFinite(leftMs) ? leftMs : undefined,
      minHold: minHoldMs,
      maxHold: maxHoldMs,
      signal: guard.stopped,
    })
    const waitedMs = Math.round(this.#sinceStartMs())
    const facts = { token: String(lease.token), waitedMs, ttlMs }
    const message = `granted lease "${this.#name}" (token ${lease.token}) after ${spoken(waitedMs)}`
    this.#report.tell('granted', message, facts, { isTold: watch.hasSaid })
    return lease
  }

  async #runUnder(lease: Lease, guard: SignalGuard, watchdog: Watchdog): Promise<number> {
    const { graceMs, maxHoldMs, isForeground, isFenced } = this.#settings
    const endsAtMs = systemClock.monotonicMs() + (maxHoldMs ?? 0)
    const unfenced = isFenced && !this.#report.isQuiet ? this.#warnUnlessFenced(lease) : undefined
    const end = await supervise(lease, this.#command, {
      graceMs,
      guard,
      report: this.#report,
      watchdog,
      isForeground,
      environment: isFenced ? fencedEnvironment(lease) : {},
      maxHold: maxHoldMs === undefined ? undefined : { ms: maxHoldMs, endsAtMs },
    })
    const code = await this.#giveBack(lease, end, guard)
    if (unfenced !== undefined) await within(fenceToldWithinMs, unfenced)
    return code
  }

  async #giveBack(lease: Lease, { code, loss }: CommandEnd, guard: SignalGuard): Promise<number> {
    // A lease that was given up has no more time to be given back than it had left.
    const limitMs = loss === undefined ? releaseWithinMs : Math.min(releaseWithinMs, lease.expiresInMs)
    const outcome = await within(limitMs, lease.release())
    const token = String(lease.token)
    const which = `lease "${lease.name}" (token ${token})`
    // "not-held" is how a loss comes out that no heartbeat has met yet.
    if (loss !== undefined || outcome === 'not-held') {
      const when = code === undefined ? 'before the command was started' : 'while the command ran'
      // A database that answers again in time has not lost it, but the command has been ended for it.
      const what = outcome === 'released' ? 'given up' : 'lost'
      const message =
        loss === 'overdue'
          ? `${which} was held for its maximum of ${spoken(this.#settings.maxHoldMs ?? 0)}, which has ended the command`
          : `${which} was ${what} ${when}`
      const reason = loss === 'overdue' ? loss : outcome === 'released' ? 'given-up' : lease.loss?.reason
      this.#report.tell('lost', message, {
        token,
        reason: reason ?? 'ended',
        commandExitCode: code ?? null,
        exitCode: exitCode.leaseLost,
      })
      return exitCode.leaseLost
    }
    const isReleased = outcome === 'released'
    if (!isReleased) {
      this.#report.warn(
        `lease "${lease.name}" could not be given back: it is free after its TTL, and when its fenced transactions have ended`,
      )
    }
    // Unless a signal has come before the command was started.
    guard.stopped.throwIfAborted()
    const ended = code ?? exitCode.failed
    this.#report.tell(
      'released',
      isReleased ? `gave back ${which}` : `the command is gone; ${which} was not given back`,
      {
        token,
        outcome: isReleased ? 'released' : 'unknown',
        exitCode: ended,
      },
    )
    return ended
  }

  #conflict(error: NotAcquiredError): number {
    const { isSkippedOnConflict, conflictExitCode } = this.#settings
    const { label, host, pid, since } = error.contender ?? {}
    const consequence = isSkippedOnConflict ? ' The command is skipped, as --on-conflict skip wants it.' : ''
    this.#report.tell('conflict', `${error.message}${consequence}`, {
      holder: label ?? null,
      host: host ?? null,
      pid: pid ?? null,
      since: since?.toISOString() ?? null,
      waitedMs: Math.round(this.#sinceStartMs()),
      exitCode: conflictExitCode,
    })
    return conflictExitCode
  }

  async #warnUnlessFenced(lease: Lease): Promise<void> {
    const reason = await whyUnfenced(urlOfCommand(this.#url), lease)
    if (reason !== undefined) this.#report.warn(`--fence: ${reason}`)
  }

  #sinceStartMs(): number {
    return systemClock.monotonicMs() - this.#startedMs
  }
}

/** The promise's outcome, or undefined when it takes longer. */
async function within<T>(limitMs: number, promise: Promise<T>): Promise<T | undefined> {
  const over = new AbortController()
  try {
    const limit = sleep(limitMs, undefined, { signal: over.signal }).catch(() => undefined)
    return await Promise.race([promise, limit])
  } finally {
    over.abort()
  }
}
