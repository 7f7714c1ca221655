import { systemClock } from '../clock.ts'
import { connectionConfig } from '../database/connect-options.ts'
import { connectAhead, grantsConnection } from '../database/grants.ts'
import { silent } from '../logger.ts'
import { databaseUrl } from './database-url.ts'
import { exitCodeOf } from './exit-code.ts'
import { type RunOptions, checkedSettings } from './run-options.ts'
import { RunReport } from './run-report.ts'

/** As long as a connection that the library opens may take. */
const connectWithinMs = 10_000

/**
 * Runs a command while holding a lease. stdout belongs to the command; what fencepost has to say goes to stderr.
 *
 * A pipeline waits for the command to start, so the database is connected to while the rest of the program is still being
 * loaded.
 */
export async function runCommand(
  name: string,
  command: readonly string[],
  options: RunOptions,
): Promise<number> {
  const startedMs = systemClock.monotonicMs()
  const report = new RunReport({
    lease: name,
    isJson: options.json === true,
    isQuiet: options.quiet === true,
    write: (line) => void process.stderr.write(line),
  })
  try {
    const settings = checkedSettings(name, options)
    const url = await databaseUrl(options)
    const config = connectionConfig({ connectionString: url })
    const grants = connectAhead(grantsConnection(config, systemClock, silent), connectWithinMs)
    const { Run } = await import('./run-under.ts')
    return await new Run(name, command, { settings, url, grants, report, startedMs }).end()
  } catch (error) {
    const code = exitCodeOf(error)
    report.tell('error', error instanceof Error ? error.message : String(error), { exitCode: code })
    return code
  }
}
