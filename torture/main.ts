// npm run torture [-- OPTIONS]: tries to break fencepost, and judges what has come of it. See torture/README.md.
import { open } from 'node:fs/promises'
import { UsageError, readOptions, usage } from './run/options.ts'
import type { TortureOptions } from './run/options.ts'
import {
  type ControlResult,
  controlLine,
  heading,
  progressLine,
  rerun,
  summary,
  writeControls,
  writeReport,
} from './run/report.ts'
import { isCaught, run } from './run/run.ts'

const tellEveryMs = 10_000

// What a fault has left open must not keep a run that is over from ending.
process.exit(await main(process.argv.slice(2)))

async function main(args: readonly string[]): Promise<number> {
  let options: readonly TortureOptions[] | 'help'
  try {
    options = readOptions(args)
    // Before anything runs: half an hour later it would be too late.
    const file = options === 'help' ? undefined : options[0]?.report
    if (file !== undefined) await assertWritable(file)
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    console.error(error.message)
    return 2
  }
  if (options === 'help') {
    console.log(usage)
    return 0
  }
  const interrupted = untilInterrupted()
  const [first] = options
  return options.length === 1 ? torture(first!, interrupted) : tryControls(options, interrupted)
}

async function assertWritable(file: string): Promise<void> {
  try {
    await (await open(file, 'a')).close()
  } catch (error) {
    throw new UsageError('report', `--report cannot write there: ${(error as Error).message}`)
  }
}

/** Each control in a run of its own, and a line for each. */
async function tryControls(all: readonly TortureOptions[], interrupted: AbortSignal): Promise<number> {
  const results: ControlResult[] = []
  for (const options of all) {
    // oxlint-disable-next-line no-await-in-loop -- One after the other, so that none is slower for another one's sake.
    const outcome = await run(options, () => {}, interrupted)
    if (outcome === undefined) {
      console.log('interrupted')
      return 130
    }
    const control = options.control!
    const kinds = new Set(outcome.verdict.violations.map(({ kind }) => kind))
    const result = {
      control: control.name,
      without: control.without,
      isCaught: isCaught(control, outcome.verdict),
      as: control.caughtAs.filter((kind) => kinds.has(kind)),
      afterMs: Math.round(outcome.ranForMs),
      seed: options.seed,
    }
    results.push(result)
    console.log(controlLine(result))
  }
  const file = all[0]!.report
  if (file !== undefined) await writeControls(file, results)
  return results.every(({ isCaught: each }) => each) ? 0 : 1
}

async function torture(options: TortureOptions, interrupted: AbortSignal): Promise<number> {
  console.log(`${heading(options)}\n`)
  const outcome = await run(options, progress(), interrupted)
  if (outcome === undefined) {
    console.log('interrupted')
    return 130
  }
  console.log(summary(options, outcome))
  if (options.report !== undefined) await writeReport(options.report, options, outcome)
  const found = outcome.verdict.violations.length + outcome.casualties.length
  if (options.control !== undefined) {
    return toldOfControl(options.control.name, isCaught(options.control, outcome.verdict), outcome.ranForMs)
  }
  if (found === 0) return 0
  console.log(`\nAgain: ${rerun(options)}\nHistories and logs: ${outcome.keptIn}`)
  return 1
}

function toldOfControl(name: string, isFound: boolean, afterMs: number): number {
  const seconds = (afterMs / 1000).toFixed(1)
  console.log(
    isFound
      ? `\nThe control ${name} was caught after ${seconds} s.`
      : `\nThe control ${name} was not caught in ${seconds} s.`,
  )
  return isFound ? 0 : 1
}

/** A line now and then; in a terminal one that changes. */
function progress(): Parameters<typeof run>[1] {
  const { stdout } = process
  let toldMs = 0
  return (elapsedMs, figures) => {
    const line = progressLine(elapsedMs, figures)
    if (stdout.isTTY) stdout.write(`\r\u001B[K${line}`)
    else if (elapsedMs - toldMs >= tellEveryMs) {
      toldMs = elapsedMs
      console.log(line)
    }
  }
}

/** The first time everything is cleared away; the second time is the end. */
function untilInterrupted(): AbortSignal {
  const interrupted = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (interrupted.signal.aborted) process.exit(130)
      interrupted.abort()
    })
  }
  return interrupted.signal
}
