import type { LeaseInfo } from '../lease/lease-list.ts'
import { asTable } from './table.ts'

/** Leases for people, and below each who waits for it in line. */
export function leaseTable(leases: readonly LeaseInfo[], width: number | undefined): string {
  return asTable(
    ['LEASE', 'TOKEN', 'STATE', 'HOLDER', 'SINCE', 'EXPIRES IN'],
    leases.flatMap((lease) => [
      [
        lease.name,
        lease.token.toString(),
        lease.state,
        lease.holder ?? '',
        lease.since?.toISOString() ?? '',
        seconds(lease.remainingMs),
      ],
      // The name again, so that each line can be read by itself.
      ...lease.waiters.map(({ holder, since }) => [
        lease.name,
        '',
        'waiting',
        holder,
        since.toISOString(),
        '',
      ]),
    ]),
    ['left', 'right', 'left', 'left', 'left', 'right'],
    width,
  )
}

/** As a column shows it: 24.1s. */
export function seconds(ms: number | undefined): string {
  return ms === undefined ? '' : `${(ms / 1000).toFixed(1)}s`
}
