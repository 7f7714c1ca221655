import { durationMs, formatMs } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { checkName } from '../lease/name.ts'
import type { DatabaseOptions } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { graceFor } from './grace.ts'

/** The options of `fencepost run`, as the command line has them. */
export interface RunOptions extends DatabaseOptions {
  readonly ttl: string
  readonly wait: string
  readonly noWait?: boolean
  readonly minHold?: string
  readonly maxHold?: string
  readonly grace?: string
  readonly label?: string
  readonly meta?: readonly string[]
  readonly onConflict?: 'fail' | 'skip'
  readonly conflictExitCode?: string
  readonly fence?: boolean
  readonly foreground?: boolean
  readonly quiet?: boolean
  readonly json?: boolean
}

/** The same, checked and in milliseconds. */
export interface RunSettings {
  readonly ttlMs: number
  /** Infinity: for ever. */
  readonly waitMs: number
  readonly minHoldMs: number
  readonly maxHoldMs: number | undefined
  readonly graceMs: number
  readonly label: string | undefined
  readonly meta: Readonly<Record<string, string>>
  readonly isSkippedOnConflict: boolean
  readonly conflictExitCode: number
  readonly isFenced: boolean
  readonly isForeground: boolean
}

const dayMs = 24 * 3_600_000
const yearMs = 366 * dayMs

/** `--wait` counts from the start, but a database may take so long to be connected to, however short it is. */
const shortestOpenMs = 5000
/** Beyond that a bound of its own holds, which is the same for each request. */
const longestOpenMs = 60_000

/** How long the database may take to be connected to. */
export function openWithinMs(waitMs: number): number {
  return Math.min(Math.max(shortestOpenMs, waitMs), longestOpenMs)
}

/** Everything is checked before a database is asked, so that wrong usage is never taken for an unavailable database. */
export function checkedSettings(name: string, options: RunOptions): RunSettings {
  checkName('the name of a lease', name)
  if (options.label !== undefined) checkName('--label', options.label)
  // The command line is no place for test-sized TTLs, so the library's own bounds hold.
  const ttlMs = durationMs('--ttl', options.ttl, { minMs: 1000, maxMs: dayMs })
  const minHoldMs = durationMs('--min-hold', options.minHold ?? '0s', { minMs: 0, maxMs: dayMs })
  const maxHoldMs =
    options.maxHold === undefined
      ? undefined
      : durationMs('--max-hold', options.maxHold, { minMs: Math.max(1000, minHoldMs), maxMs: yearMs })
  const isSkippedOnConflict = options.onConflict === 'skip'
  return {
    ttlMs,
    waitMs: waitFor(options),
    minHoldMs,
    maxHoldMs,
    graceMs: graceFor(ttlMs, options.grace, maxHoldMs),
    label: options.label,
    meta: readMeta(options.meta ?? []),
    isSkippedOnConflict,
    conflictExitCode: isSkippedOnConflict ? exitCode.done : readExitCode(options.conflictExitCode),
    isFenced: options.fence === true,
    isForeground: options.foreground === true,
  }
}

function waitFor({ wait, noWait }: RunOptions): number {
  if (noWait === true) return 0
  if (wait === 'forever') return Number.POSITIVE_INFINITY
  try {
    return durationMs('--wait', wait, { minMs: 0, maxMs: yearMs })
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error
    throw new InvalidArgumentError('--wait', wait, `${error.message}. Or: --wait forever`)
  }
}

/** What people see of the holder. The same key twice is a mistake that would be seen too late. */
function readMeta(pairs: readonly string[]): Record<string, string> {
  const meta = new Map<string, string>()
  for (const pair of pairs) {
    const at = pair.indexOf('=')
    const key = pair.slice(0, Math.max(at, 0))
    if (key === '' || meta.has(key)) {
      const fault = key === '' ? 'must have the form KEY=VALUE' : `names "${key}" twice`
      throw new InvalidArgumentError('--meta', pair, `--meta ${fault}; got "${pair}"`)
    }
    meta.set(key, pair.slice(at + 1))
  }
  const json = Object.fromEntries(meta)
  if (JSON.stringify(json).length > 8192) {
    throw new InvalidArgumentError('--meta', pairs, '--meta must be at most 8192 characters of JSON in all')
  }
  return json
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

/** A length of time as it is told: short, and no more exact than it is useful. */
export function spoken(ms: number): string {
  return ms < 1000 ? formatMs(Math.round(ms)) : formatMs(Math.round(ms / 1000) * 1000)
}
