import { Fencepost } from '../fencepost.ts'
import type { HolderInfo } from '../operators/holder-list.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { terminalWidth } from './fit.ts'
import { asJson } from './lease-json.ts'
import { seconds } from './lease-table.ts'
import { asTable } from './table.ts'

export interface HoldersOptions extends DatabaseOptions {
  readonly json?: boolean
}

export async function runHolders(options: HoldersOptions): Promise<number> {
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const holders = await fencepost.holders()
  console.log(options.json === true ? asJson(holders.map(holderJson)) : asText(holders))
  return exitCode.done
}

function holderJson(one: HolderInfo): Record<string, unknown> {
  return {
    holder: one.holder,
    host: one.host ?? null,
    pid: one.pid ?? null,
    meta: one.meta,
    state: one.state,
    ttlMs: one.ttlMs,
    since: one.since.toISOString(),
    remainingMs: one.remainingMs,
    leases: one.leases,
    waits: one.waits,
  }
}

function asText(holders: readonly HolderInfo[]): string {
  if (holders.length === 0) return 'no holders'
  return asTable(
    ['HOLDER', 'HOST', 'PID', 'STATE', 'TTL', 'SINCE', 'EXPIRES IN', 'LEASES', 'WAITS'],
    holders.map((one) => [
      one.holder,
      one.host ?? '',
      one.pid?.toString() ?? '',
      one.state,
      seconds(one.ttlMs),
      one.since.toISOString(),
      seconds(one.remainingMs),
      String(one.leases),
      String(one.waits),
    ]),
    ['left', 'left', 'right', 'left', 'right', 'left', 'right', 'right', 'right'],
    terminalWidth(process.stdout),
  )
}
