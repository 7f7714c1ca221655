import type { LeaseInfo } from '../lease/lease-list.ts'

/** The documented shape: tokens are strings, because they may be larger than a JSON number holds, and what is not known is null. */
export function leaseJson(lease: LeaseInfo): Record<string, unknown> {
  return {
    name: lease.name,
    token: lease.token.toString(),
    state: lease.state,
    holder: lease.holder ?? null,
    host: lease.host ?? null,
    pid: lease.pid ?? null,
    since: lease.since?.toISOString() ?? null,
    remainingMs: lease.remainingMs ?? null,
    sequence: lease.sequence,
    waiters: lease.waiters.map(({ holder, host, pid, since }) => {
      return { holder, host: host ?? null, pid: pid ?? null, since: since.toISOString() }
    }),
  }
}

export function asJson(value: unknown): string {
  return JSON.stringify(value, undefined, 2)
}
