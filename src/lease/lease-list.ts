import type { TextRow } from '../database/connection.ts'

/** One lease as the view `fencepost.leases` shows it. */
export interface LeaseInfo {
  readonly name: string
  /** The token of the current or, when nobody holds it, the last term. */
  readonly token: bigint
  /**
   * `held`: its holder is alive. `expired`: its holder is not, and nobody has taken it yet. `draining`: the term is
   * over, but a fenced transaction of it is still open. `withheld`: nobody holds it, and nobody is granted it yet, for a
   * minimum hold or the grace after a crash. `free`: it was released.
   */
  readonly state: 'held' | 'expired' | 'draining' | 'withheld' | 'free'
  /** The holder's label, host and process id, as it told them. */
  readonly holder: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly since: Date | undefined
  /** Milliseconds until the holder's TTL ends unless it renews, or its maximum hold; of a withheld lease, until it may be granted. */
  readonly remainingMs: number | undefined
  readonly sequence: string
  /** Who stands in line for it, the first one first: one per process and TTL, however many callers wait there. */
  readonly waiters: readonly WaiterInfo[]
}

export interface WaiterInfo {
  /** The holder that the lease is to be granted to: its label, host and process id, as it told them. */
  readonly holder: string
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly since: Date
}

/** Leases and those who stand in line, in one statement; $1: the name of one lease, or null for all. */
export const listLeases = `
  with waiting as (
    select lease, json_agg(json_build_object('holder', holder, 'host', host, 'pid', pid,
             'sinceMs', (extract(epoch from since) * 1000)::bigint) order by place)::text as waiters
      from fencepost.waiters
     where $1::text is null or lease = $1
     group by lease)
  select l.name, l.token::text as token, l.state, l.holder, l.host, l.pid::text as pid,
         (extract(epoch from l.since) * 1000)::bigint::text as since_ms,
         (extract(epoch from l.remaining) * 1000)::bigint::text as remaining_ms,
         l.sequence, w.waiters
    from fencepost.leases l left join waiting w on w.lease = l.name
   where $1::text is null or l.name = $1
   order by l.name`

interface WaiterJson {
  readonly holder: string
  readonly host: string | null
  readonly pid: number | null
  readonly sinceMs: number
}

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
    waiters: readWaiters(row['waiters']),
  }
}

function readWaiters(json: string | null | undefined): WaiterInfo[] {
  const waiters = JSON.parse(json ?? '[]') as WaiterJson[]
  return waiters.map(({ holder, host, pid, sinceMs }) => {
    return { holder, host: host ?? undefined, pid: pid ?? undefined, since: new Date(sinceMs) }
  })
}

/** A number that may be absent. */
export function optionalNumber(text: string | null | undefined): number | undefined {
  return text === null || text === undefined ? undefined : Number(text)
}
