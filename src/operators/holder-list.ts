import type { TextRow } from '../database/connection.ts'

/** A live participant, as the view `fencepost.holders` shows it: usually one per process and TTL. */
export interface HolderInfo {
  /** Its label, host and process id, and more, as it told them. */
  readonly holder: string
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly meta: Readonly<Record<string, unknown>>
  /** `expired`: its heartbeats have stopped, and nobody has taken a lease of it yet. */
  readonly state: 'alive' | 'expired'
  readonly ttlMs: number
  /** When it joined. */
  readonly since: Date
  /** Milliseconds until its TTL ends unless it renews; negative since it has ended. */
  readonly remainingMs: number
  /** How many leases it holds, and how many it stands in line for. */
  readonly leases: number
  readonly waits: number
}

export const listHolders = `
  select h.holder, h.host, h.pid::text as pid, h.meta::text as meta, h.state,
         (extract(epoch from h.ttl) * 1000)::bigint::text as ttl_ms,
         (extract(epoch from h.since) * 1000)::bigint::text as since_ms,
         (extract(epoch from h.remaining) * 1000)::bigint::text as remaining_ms,
         h.leases::text as leases, h.waits::text as waits
    from fencepost.holders h
   order by h.since, h.holder`

export function readHolderInfo(row: TextRow): HolderInfo {
  return {
    holder: row['holder'] ?? '',
    host: row['host'] ?? undefined,
    pid: row['pid'] == null ? undefined : Number(row['pid']),
    meta: JSON.parse(row['meta'] ?? '{}') as Record<string, unknown>,
    state: row['state'] as HolderInfo['state'],
    ttlMs: Number(row['ttl_ms']),
    since: new Date(Number(row['since_ms'])),
    remainingMs: Number(row['remaining_ms']),
    leases: Number(row['leases']),
    waits: Number(row['waits']),
  }
}
