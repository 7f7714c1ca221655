import { readFileSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { systemClock } from '../clock.ts'
import { connectionConfig } from '../database/connect-options.ts'
import { connectAhead, grantsConnection } from '../database/grants.ts'
import { InvalidArgumentError } from '../errors.ts'
import { silent } from '../logger.ts'
import type { Invocation } from './commands/invocation.ts'
import { databaseUrl } from './database-url.ts'
import { exitCodeOf } from './exit-code.ts'
import { type RunOptions, checkedSettings, openWithinMs } from './run-options.ts'
import { RunReport } from './run-report.ts'
import { SignalGuard } from './signal-guard.ts'
import { Voice } from './voice.ts'

/** Nothing is left to be done but to be heard. */
const lastWordsWithinMs = 500

/**
 * Runs a command while holding a lease. stdout belongs to the command; what fencepost has to say goes to stderr.
 *
 * A pipeline waits for the command to start, so the database is connected to while the rest of the program is still being
 * loaded.
 */
export async function runCommand(name: string, invocation: Invocation, options: RunOptions): Promise<number> {
  const { command, guard = new SignalGuard() } = invocation
  giveBackStreams()
  const startedMs = systemClock.monotonicMs()
  const voice = new Voice()
  const report = new RunReport({
    lease: name,
    isJson: options.json === true,
    isQuiet: options.quiet === true,
    write: (line) => voice.say(line),
  })
  try {
    const settings = checkedSettings(name, options)
    assertUnchanged(command)
    const url = await databaseUrl(options)
    const config = connectionConfig({ connectionString: url })
    const grants = connectAhead(grantsConnection(config, systemClock, silent), openWithinMs(settings.waitMs))
    // The connection is begun in the next tick, and loading would come before.
    await setImmediate()
    const { Run } = await import('./run-under.ts')
    return await new Run(name, command, { settings, url, grants, report, guard, startedMs }).end()
  } catch (error) {
    const code = exitCodeOf(error)
    report.tell('error', error instanceof Error ? error.message : String(error), { exitCode: code })
    return code
  } finally {
    invocation.isHeldUp = !(await voice.finish(lastWordsWithinMs))
  }
}

/**
 * Node makes pipes non-blocking when it looks at its standard streams, which loading a module is enough for: for all who share them,
 * and they may not expect it. A run says nothing by way of these streams, and its command gets them as they are.
 */
function giveBackStreams(): void {
  for (const stream of [process.stdin, process.stdout, process.stderr]) {
    const { _handle: handle } = stream as { _handle?: { setBlocking?(isBlocking: boolean): void } | null }
    handle?.setBlocking?.(true)
  }
}

/** Node reads arguments as UTF-8, and what is none would reach the command as something else. */
function assertUnchanged(command: readonly string[]): void {
  const index = command.findIndex((arg) => arg.includes('\u{fffd}'))
  if (index < 0 || isUtf8()) return
  throw new InvalidArgumentError(
    'command',
    command[index],
    `argument ${index} of the command is not UTF-8, and cannot be passed on as it is: have a script hold it`,
  )
}

/** Whether the arguments of this process are, as far as can be seen. */
function isUtf8(): boolean {
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(readFileSync('/proc/self/cmdline'))
    return true
  } catch (error) {
    return !(error instanceof TypeError)
  }
}
