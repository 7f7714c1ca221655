import type { TextRow } from '../database/connection.ts'

/** One lease as the view `fencepost.leases` shows it. */
export interface LeaseInfo {
  readonly name: string
  /** The token of the current or, when nobody holds it, the last term. */
  readonly token: bigint
  /**
   * `held`: its holder is alive. `expired`: its holder is not, and nobody has taken it yet. `draining`: the term is
   * over, but a fenced transaction of it is still open. `free`: it was released.
   */
  readonly state: 'held' | 'expired' | 'draining' | 'free'
  /** The holder's label, host and process id, as it told them. */
  readonly holder: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly since: Date | undefined
  /** Milliseconds until the holder's TTL ends unless it renews. */
  readonly remainingMs: number | undefined
  readonly sequence: string
}

export const listLeases = `
  select name, token::text as token, state, holder, host, pid::text as pid,
         (extract(epoch from since) * 1000)::bigint::text as since_ms,
         (extract(epoch from remaining) * 1000)::bigint::text as remaining_ms,
         sequence
    from fencepost.leases
   order by name`

export function readLeaseInfo(row: TextRow): LeaseInfo {
  const sinceMs = optionalNumber(row['since_ms'])
  return {
    name: row['name'] ?? '',
    token: BigInt(row['token'] ?? 0),
    state: row['state'] as LeaseInfo['state'],
    holder: row['holder'] ?? undefined,
    host: row['host'] ?? undefined,
    pid: optionalNumber(row['pid']),
    since: sinceMs === undefined ? undefined : new Date(sinceMs),
    remainingMs: optionalNumber(row['remaining_ms']),
    sequence: row['sequence'] ?? 'default',
  }
}

/** A number that may be absent. */
export function optionalNumber(text: string | null | undefined): number | undefined {
  return text === null || text === undefined ? undefined : Number(text)
}
