import type { TextRow } from '../database/connection.ts'
import { type LeaseInfo, listLeases, readLeaseInfo } from '../lease/lease-list.ts'
import type { SequenceKind } from './sequences.ts'

/** One lease with all that the database knows of it. */
export interface LeaseDetail extends LeaseInfo {
  /** How its token sequence goes on. */
  readonly sequenceKind: SequenceKind
  /** The fenced transactions that are open under it, the oldest first: each of them keeps the lease. */
  readonly transactions: readonly FencedTransactionInfo[]
  /** What was taken away by force, the last one first; at most 10. */
  readonly forcedReleases: readonly ForcedReleaseInfo[]
}

/**
 * An open fenced transaction. Of the sessions of other roles, a role that is no member of pg_read_all_stats sees neither the state nor the
 * time.
 */
export interface FencedTransactionInfo {
  /** The server's number of the session; undefined for a prepared transaction, which has none. */
  readonly pid: number | undefined
  /** As pg_stat_activity has it: `active`, `idle in transaction` …; or `prepared`. */
  readonly state: string | undefined
  readonly role: string | undefined
  readonly application: string | undefined
  readonly since: Date | undefined
  readonly ageMs: number | undefined
}

export interface ForcedReleaseInfo {
  /** The term that was taken away, and from whom. */
  readonly token: bigint
  readonly holder: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly reason: string
  readonly at: Date
  /** The database role that did it. */
  readonly by: string
  /** The server sessions that were ended for it. */
  readonly cancelled: readonly number[]
}

/** $1: the name of the lease. */
export const describeLease: string = `
  select d.*, (select s.kind from fencepost.sequences s where s.name = d.sequence) as sequence_kind,
         (select json_agg(json_build_object('pid', t.pid, 'state', t.state, 'role', t.role, 'application', t.application,
                   'sinceMs', (extract(epoch from t.since) * 1000)::bigint,
                   'ageMs', (extract(epoch from clock_timestamp() - t.since) * 1000)::bigint) order by t.since, t.pid)
            from fencepost.fenced_transactions t where t.lease = $1::text)::text as transactions,
         (select json_agg(json_build_object('token', f.token::text, 'holder', f.holder, 'host', f.host, 'pid', f.pid,
                   'reason', f.reason, 'atMs', (extract(epoch from f.released_at) * 1000)::bigint, 'by', f.released_by,
                   'cancelled', f.cancelled) order by f.id desc)
            from (select * from fencepost.forced_releases r where r.lease = $1::text order by r.id desc limit 10) f
         )::text as forced_releases
    from (${listLeases}) d`

interface TransactionJson {
  readonly pid: number | null
  readonly state: string | null
  readonly role: string | null
  readonly application: string | null
  readonly sinceMs: number | null
  readonly ageMs: number | null
}

interface ForcedReleaseJson {
  readonly token: string
  readonly holder: string | null
  readonly host: string | null
  readonly pid: number | null
  readonly reason: string
  readonly atMs: number
  readonly by: string
  readonly cancelled: readonly number[]
}

export function readLeaseDetail(row: TextRow): LeaseDetail {
  const transactions = JSON.parse(row['transactions'] ?? '[]') as TransactionJson[]
  const forcedReleases = JSON.parse(row['forced_releases'] ?? '[]') as ForcedReleaseJson[]
  return {
    ...readLeaseInfo(row),
    sequenceKind: (row['sequence_kind'] ?? 'counter') as SequenceKind,
    transactions: transactions.map(({ pid, state, role, application, sinceMs, ageMs }) => ({
      pid: pid ?? undefined,
      state: state ?? undefined,
      role: role ?? undefined,
      application: application ?? undefined,
      since: sinceMs === null ? undefined : new Date(sinceMs),
      ageMs: ageMs ?? undefined,
    })),
    forcedReleases: forcedReleases.map(({ token, holder, host, pid, reason, atMs, by, cancelled }) => ({
      token: BigInt(token),
      holder: holder ?? undefined,
      host: host ?? undefined,
      pid: pid ?? undefined,
      reason,
      at: new Date(atMs),
      by,
      cancelled,
    })),
  }
}
