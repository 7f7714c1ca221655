import { Fencepost } from '../fencepost.ts'
import type { LeaseInfo } from '../lease/lease-list.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { asTable } from './table.ts'

export interface LsOptions extends DatabaseOptions {
  readonly json?: boolean
}

export async function runLs(options: LsOptions): Promise<number> {
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const leases = await fencepost.leases()
  console.log(options.json === true ? JSON.stringify(leases.map(asJson), undefined, 2) : leaseTable(leases))
  return exitCode.done
}

/** The documented shape: tokens are strings, because they may be larger than a JSON number holds. */
function asJson(lease: LeaseInfo): Record<string, unknown> {
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

function leaseTable(leases: readonly LeaseInfo[]): string {
  if (leases.length === 0) return 'no leases yet'
  return asTable(
    ['LEASE', 'TOKEN', 'STATE', 'HOLDER', 'SINCE', 'EXPIRES IN'],
    leases.flatMap((lease) => [
      [
        lease.name,
        lease.token.toString(),
        lease.state,
        lease.holder ?? '',
        lease.since?.toISOString() ?? '',
        lease.remainingMs === undefined ? '' : `${(lease.remainingMs / 1000).toFixed(1)}s`,
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
  )
}
