import type { Clock } from '../clock.ts'
import type { TextRow } from '../database/connection.ts'
import { isRetryable } from '../database/failure.ts'
import { type Duration, durationMs, show } from '../duration.ts'
import { DatabaseError, InvalidArgumentError } from '../errors.ts'
import { optionalNumber } from '../lease/lease-list.ts'
import { checkName } from '../lease/name.ts'
import { type Ask, asOperator } from './ask.ts'

export interface ForceReleaseOptions {
  /** Why, for whoever looks later: `forcedReleases` of `describe` and the view `fencepost.forced_releases` show it. 1 to 4,000 bytes. */
  readonly reason: string
  /**
   * How long to wait for the term's open fenced transactions to end; meanwhile new ones have to wait as well. 0 to 5 minutes, default
   * 5 s; with `cancel`, 0.
   */
  readonly wait?: Duration | undefined
  /**
   * Ends the server sessions whose fenced transactions are still open after `wait`: they are rolled back, and their clients see their
   * connection closed. The database role needs the right to do so (pg_signal_backend, or to be a member of their role). Default false.
   */
  readonly cancel?: boolean | undefined
}

/** What became of a forced release. Only `released` has changed the lease; with `cancel`, sessions may have been ended all the same. */
export interface ForcedRelease {
  /**
   * `released`: the term is over. `wrong-token`: the lease has another token, which is `token`. `not-held`: nobody holds it, or it is
   * unknown. `draining`: a fenced transaction of the term is still open.
   */
  readonly outcome: 'released' | 'wrong-token' | 'not-held' | 'draining'
  /** The token of the term that was taken away; else the current one, or the last one. Undefined when the lease is unknown. */
  readonly token: bigint | undefined
  /** Whom it was taken from; else who has it: label, host and process id as the holder told them. */
  readonly holder: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  /** When that term was granted. */
  readonly since: Date | undefined
  /** The term of the first in line, who was granted the lease with the same commit. Undefined when nobody waited. */
  readonly next: { readonly token: bigint; readonly holder: string } | undefined
  /** The server sessions that were ended. */
  readonly cancelled: readonly number[]
}

interface Parts {
  readonly ask: Ask
  readonly clock: Clock
  /** The bound on one statement. */
  readonly timeoutMs: number
  /** Tells those who were granted a lease. */
  readonly wake: (wakes: readonly string[]) => Promise<void>
}

const maxToken = 2n ** 63n - 1n
/** One statement waits for so long at most, and for half of its own bound: fenced transactions of the lease wait as long. */
const longestWaitMs = 2000
const pauseMs = 10
/** So long it may take until sessions that were told to end have ended. */
const endingMs = 10_000

/** Takes a term away from its holder, if it is still the one with this token. */
export async function forceRelease(
  parts: Parts,
  name: string,
  token: bigint,
  options: ForceReleaseOptions,
): Promise<ForcedRelease> {
  const { clock, timeoutMs } = parts
  const { reason, cancel = false } = options
  checkName('the name of a lease', name)
  checkToken('token', token)
  checkReason(reason)
  if (typeof cancel !== 'boolean') {
    throw new InvalidArgumentError('cancel', cancel, `cancel must be true or false; got ${show(cancel)}`)
  }
  const waitAtOnceMs = Math.min(longestWaitMs, timeoutMs / 2)
  const waitMs = durationMs('wait', options.wait ?? (cancel ? 0 : 5000), { minMs: 0, maxMs: 300_000 })
  const attempt = (forMs: number, cancelled: readonly number[]): Promise<Attempt> =>
    attemptRelease(parts, [name, token.toString(), reason, Math.ceil(forMs), cancelled])

  const waitDue = clock.monotonicMs() + waitMs
  let answer = await attempt(Math.min(waitMs, waitAtOnceMs), [])
  while (answer.outcome === 'draining' && clock.monotonicMs() < waitDue) {
    // Somebody who is working on the lease is done in a moment.
    // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
    await new Promise<void>((resolve) => clock.after(pauseMs, resolve))
    // oxlint-disable-next-line no-await-in-loop
    answer = await attempt(Math.max(0, Math.min(waitDue - clock.monotonicMs(), waitAtOnceMs)), [])
  }
  const cancelled = new Set<number>()
  if (answer.outcome === 'draining' && cancel) {
    const endDue = clock.monotonicMs() + endingMs
    let vainly = 0
    do {
      // oxlint-disable-next-line no-await-in-loop
      const ended = await endSessions(parts.ask, name, token)
      vainly = ended.length === 0 ? vainly + 1 : 0
      for (const pid of ended) cancelled.add(pid)
      // Those that have begun in between are met in the next round; none begins while this one waits.
      // oxlint-disable-next-line no-await-in-loop
      answer = await attempt(waitAtOnceMs / 2, [...cancelled])
      // Where there is nothing to end again and again, a prepared transaction keeps it.
    } while (answer.outcome === 'draining' && vainly < 2 && clock.monotonicMs() < endDue)
  }
  await parts.wake(answer.wakes)
  return { ...readRelease(answer.row, answer.outcome), cancelled: [...cancelled] }
}

interface Attempt {
  readonly outcome: ForcedRelease['outcome']
  readonly row: TextRow
  readonly wakes: readonly string[]
}

const outcomes: Readonly<Record<string, ForcedRelease['outcome']>> = {
  released: 'released',
  wrong_token: 'wrong-token',
  not_held: 'not-held',
}

async function attemptRelease({ ask }: Parts, values: readonly unknown[]): Promise<Attempt> {
  try {
    const [row = {}] = await asOperator(ask, 'force_release(text, bigint, text, bigint, integer[])', [
      `release lease "${String(values[0])}" by force`,
      `select f.outcome, f.token::text as token, f.holder, f.host, f.pid::text as pid, f.since_ms::text as since_ms,
              f.next_token::text as next_token, f.next_holder, array_to_json(f.wakes)::text as wakes
         from fencepost.force_release($1::text, $2::bigint, $3::text, $4::bigint, $5::integer[]) f`,
      values,
    ])
    const wakes = JSON.parse(row['wakes'] ?? '[]') as string[]
    return { outcome: outcomes[row['outcome'] ?? ''] ?? 'draining', row, wakes }
  } catch (error) {
    // Where the role's isolation is strict, a change made while it waited rolls it back: another time.
    if (!(error instanceof DatabaseError) || !isRetryable(error.sqlState)) throw error
    return { outcome: 'draining', row: {}, wakes: [] }
  }
}

/** With the rights of the session that asks: whom it may end is for the server to say. */
async function endSessions(ask: Ask, name: string, token: bigint): Promise<number[]> {
  const rows = await asOperator(ask, 'fenced_sessions(text, bigint)', [
    `end the sessions that keep lease "${name}"`,
    `select s.pid::text as pid from fencepost.fenced_sessions($1::text, $2::bigint) s (pid)
      where pg_catalog.pg_terminate_backend(s.pid)`,
    [name, token.toString()],
  ])
  return rows.map(({ pid }) => Number(pid))
}

function readRelease(row: TextRow, outcome: ForcedRelease['outcome']): Omit<ForcedRelease, 'cancelled'> {
  const sinceMs = optionalNumber(row['since_ms'])
  const nextToken = row['next_token'] ?? undefined
  const token = row['token'] ?? undefined
  return {
    outcome,
    token: token === undefined ? undefined : BigInt(token),
    holder: row['holder'] ?? undefined,
    host: row['host'] ?? undefined,
    pid: optionalNumber(row['pid']),
    since: sinceMs === undefined ? undefined : new Date(sinceMs),
    next:
      nextToken === undefined ? undefined : { token: BigInt(nextToken), holder: row['next_holder'] ?? '' },
  }
}

/** A token, or a floor for tokens: 0 to 2^63 − 1. */
export function checkToken(option: string, value: unknown): asserts value is bigint {
  if (typeof value === 'bigint' && value >= 0n && value <= maxToken) return
  throw new InvalidArgumentError(
    option,
    value,
    `${option} must be a bigint between 0 and 2^63 - 1; got ${show(value)}`,
  )
}

function checkReason(reason: unknown): void {
  const bytes = typeof reason === 'string' ? Buffer.byteLength(reason.trim()) : 0
  if (bytes > 0 && Buffer.byteLength(reason as string) <= 4000 && !(reason as string).includes('\0')) return
  throw new InvalidArgumentError(
    'reason',
    reason,
    `reason must be a text of 1 to 4000 bytes that says why; got ${show(reason)}`,
  )
}
