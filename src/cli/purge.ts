import { durationMs } from '../duration.ts'
import { Fencepost } from '../fencepost.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { asJson } from './lease-json.ts'
import { progress } from './progress.ts'

export interface PurgeOptions extends DatabaseOptions {
  readonly olderThan: string
  readonly json?: boolean
}

const centuryMs = 100 * 366 * 86_400_000

export async function runPurge(options: PurgeOptions): Promise<number> {
  const olderThan = durationMs('--older-than', options.olderThan, { minMs: 0, maxMs: centuryMs })
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  using shown = progress('forgetting leases')
  const forgotten = await fencepost.purge({
    olderThan,
    onProgress: (count) => shown.update(`forgetting leases: ${count} so far`),
  })
  shown.done()
  console.log(
    options.json === true
      ? asJson({ forgotten })
      : `forgot ${forgotten} lease${forgotten === 1 ? '' : 's'} that nobody has held for ${options.olderThan}`,
  )
  return exitCode.done
}
