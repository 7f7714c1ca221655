import { Fencepost } from '../fencepost.ts'
import type { LeaseInfo } from '../lease/lease-list.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { terminalWidth } from './fit.ts'
import { asJson, leaseJson } from './lease-json.ts'
import { leaseTable } from './lease-table.ts'
import { type SelectOptions, selection } from './select-leases.ts'

export interface LsOptions extends DatabaseOptions, SelectOptions {
  readonly json?: boolean
  /** True, or how long to wait between two looks. */
  readonly watch?: string | true
}

export async function runLs(pattern: string | undefined, options: LsOptions): Promise<number> {
  if (options.watch !== undefined) {
    const { runWatch } = await import('./watch.ts')
    const { watch, ...rest } = options
    return runWatch(pattern, watch === true ? rest : { ...rest, interval: watch })
  }
  const select = selection(pattern, options)
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const all = await fencepost.leases()
  const leases = select(all)
  console.log(options.json === true ? asJson(leases.map(leaseJson)) : asText(leases, all))
  return exitCode.done
}

function asText(leases: readonly LeaseInfo[], all: readonly LeaseInfo[]): string {
  if (leases.length > 0) return leaseTable(leases, terminalWidth(process.stdout))
  return all.length === 0
    ? 'no leases yet'
    : `none of ${all.length} lease${all.length === 1 ? '' : 's'} matches`
}
