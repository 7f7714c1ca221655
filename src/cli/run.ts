import { setTimeout as sleep } from 'node:timers/promises'
import { durationMs } from '../duration.ts'
import { InvalidArgumentError, NotAcquiredError } from '../errors.ts'
import { Fencepost } from '../fencepost.ts'
import type { Lease } from '../fence/lease.ts'
import { checkName } from '../lease/name.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode, exitCodeOf } from './exit-code.ts'
import { graceFor } from './grace.ts'
import { signalCode } from './process-group.ts'
import { SignalGuard } from './signal-guard.ts'
import { supervise } from './supervise.ts'

export interface RunOptions extends DatabaseOptions {
  readonly ttl: string
  readonly wait: string
  readonly grace?: string
  readonly label?: string
  readonly conflictExitCode?: string
}

const dayMs = 24 * 3_600_000

/**
 * A database that does not answer must not keep a finished command from being reported: after these the wrapper goes,
 * and the lease frees itself.
 */
const releaseWithinMs = 4000
const closeWithinMs = 2000

/** Runs a command while holding a lease. stdout belongs to the command; what fencepost has to say goes to stderr. */
export async function runCommand(
  name: string,
  command: readonly string[],
  options: RunOptions,
): Promise<number> {
  const settings = checkedSettings(name, options)
  const url = await databaseUrl(options)
  using guard = new SignalGuard()
  let fencepost: Fencepost | undefined
  try {
    fencepost = await guard.orStopped(
      Fencepost.open({ connectionString: url, ttl: settings.ttlMs, label: options.label }),
    )
    const lease = await fencepost.acquire(name, { wait: settings.waitMs, signal: guard.stopped })
    return await runUnder(lease, command, settings.graceMs, guard)
  } catch (error) {
    if (guard.received !== undefined) return signalCode(guard.received)
    say(error instanceof Error ? error.message : String(error))
    return error instanceof NotAcquiredError ? settings.conflictExitCode : exitCodeOf(error)
  } finally {
    if (fencepost !== undefined) await within(closeWithinMs, fencepost.close())
  }
}

async function runUnder(
  lease: Lease,
  command: readonly string[],
  graceMs: number,
  guard: SignalGuard,
): Promise<number> {
  const { code, isLost } = await supervise(lease, command, { graceMs, guard, say })
  // A lease that was given up has no more time to be given back than it had left.
  const limitMs = isLost ? Math.min(releaseWithinMs, lease.expiresInMs) : releaseWithinMs
  const outcome = await within(limitMs, lease.release())
  // "not-held" is how a loss comes out that no heartbeat has met yet.
  if (isLost || outcome === 'not-held') {
    // A database that answers again in time has not lost it, but the command has been ended for it.
    const what = outcome === 'released' ? 'given up' : 'lost'
    const when = code === undefined ? 'before the command was started' : 'while the command ran'
    say(`lease "${lease.name}" (token ${lease.token}) was ${what} ${when}`)
    return exitCode.leaseLost
  }
  if (outcome !== 'released') {
    say(
      `lease "${lease.name}" could not be given back: it is free after its TTL, and when its fenced transactions have ended`,
    )
  }
  guard.stopped.throwIfAborted()
  return code ?? exitCode.failed
}

interface Settings {
  readonly ttlMs: number
  readonly waitMs: number
  readonly graceMs: number
  readonly conflictExitCode: number
}

/** Everything is checked before a database is asked, so that wrong usage is never taken for an unavailable database. */
function checkedSettings(name: string, options: RunOptions): Settings {
  checkName('the name of a lease', name)
  if (options.label !== undefined) checkName('--label', options.label)
  // The command line is no place for test-sized TTLs, so the library's own bounds hold.
  const ttlMs = durationMs('--ttl', options.ttl, { minMs: 1000, maxMs: dayMs })
  return {
    ttlMs,
    waitMs: durationMs('--wait', options.wait, { minMs: 0, maxMs: 366 * dayMs }),
    graceMs: graceFor(ttlMs, options.grace),
    conflictExitCode: readExitCode(options.conflictExitCode),
  }
}

function readExitCode(text: string | undefined): number {
  if (text === undefined) return exitCode.notAcquired
  const code = Number(text)
  if (!/^\d{1,3}$/.test(text) || code > 255) {
    throw new InvalidArgumentError(
      '--conflict-exit-code',
      text,
      `--conflict-exit-code must be a whole number from 0 to 255; got "${text}"`,
    )
  }
  return code
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

function say(message: string): void {
  process.stderr.write(`fencepost: ${message}\n`)
}
