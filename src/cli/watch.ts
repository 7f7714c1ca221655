import { setTimeout as sleep } from 'node:timers/promises'
import { durationMs } from '../duration.ts'
import { DatabaseError } from '../errors.ts'
import { Fencepost } from '../fencepost.ts'
import type { LeaseInfo } from '../lease/lease-list.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { cut, harmlessText, terminalWidth } from './fit.ts'
import { leaseJson } from './lease-json.ts'
import { leaseTable } from './lease-table.ts'
import { type SelectOptions, selection } from './select-leases.ts'

export interface WatchOptions extends DatabaseOptions, SelectOptions {
  readonly json?: boolean
  readonly interval?: string
}

/** What is shown after each look. */
interface View {
  show(leases: readonly LeaseInfo[]): void
  /** A look that failed. The next one may succeed. */
  fail(error: Error): void
  close(): void
}

/** Looks again and again until it is told to stop, or nobody reads it any more. */
export async function runWatch(pattern: string | undefined, options: WatchOptions): Promise<number> {
  const intervalMs = durationMs('the interval', options.interval ?? '1s', { minMs: 100, maxMs: 3_600_000 })
  const select = selection(pattern, options)
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const stop = stopSignal()
  const stopped = new Promise<void>((resolve) => stop.addEventListener('abort', () => resolve()))
  const view = options.json === true || !process.stdout.isTTY ? changes() : screen(intervalMs)
  try {
    while (!stop.aborted) {
      // A database that does not answer must not keep anybody from leaving.
      // oxlint-disable-next-line no-await-in-loop -- One look after the other is the point.
      await Promise.race([look(fencepost, view, select), stopped])
      // oxlint-disable-next-line no-await-in-loop
      await sleep(intervalMs, undefined, { signal: stop }).catch(() => {})
    }
  } finally {
    view.close()
  }
  return exitCode.done
}

async function look(
  fencepost: Fencepost,
  view: View,
  select: (leases: readonly LeaseInfo[]) => LeaseInfo[],
): Promise<void> {
  try {
    view.show(select(await fencepost.leases()))
  } catch (error) {
    const isOutage =
      error instanceof DatabaseError &&
      (error.code === 'DATABASE_UNAVAILABLE' || error.code === 'OUTCOME_UNKNOWN')
    if (!isOutage) throw error
    view.fail(error)
  }
}

/** Aborts at INT, TERM and HUP, and when whoever read standard output is gone. */
function stopSignal(): AbortSignal {
  const controller = new AbortController()
  const stop = (): void => controller.abort()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, stop)
  process.stdout.once('error', stop)
  return controller.signal
}

/** One line of JSON per change: `{at, event, lease}`. */
function changes(): View {
  let before: Map<string, { readonly lease: object; readonly print: string }> | undefined
  let isFailing = false
  return {
    show(leases) {
      isFailing = false
      const at = new Date().toISOString()
      const tell = (event: string, lease: object): void => {
        process.stdout.write(`${JSON.stringify({ at, event, lease })}\n`)
      }
      const now = new Map(
        leases.map((lease) => [lease.name, { lease: leaseJson(lease), print: printOf(lease) }]),
      )
      for (const [name, { lease, print }] of now) {
        const known = before?.get(name)
        if (known === undefined) tell(before === undefined ? 'present' : 'appeared', lease)
        else if (known.print !== print) tell('changed', lease)
      }
      for (const [name, { lease }] of before ?? []) if (!now.has(name)) tell('gone', lease)
      before = now
    },
    fail(error) {
      // Once for each outage.
      if (!isFailing) process.stderr.write(`fencepost: ${error.message}\n`)
      isFailing = true
    },
    close() {},
  }
}

/** What makes two looks at a lease differ. The time left does so always, so it does not count. */
function printOf(lease: LeaseInfo): string {
  return JSON.stringify({ ...leaseJson(lease), remainingMs: null })
}

/** The leases on the alternate screen of a terminal, drawn anew after each look and when the terminal changes its size. */
function screen(intervalMs: number): View {
  const { stdout } = process
  let leases: readonly LeaseInfo[] = []
  let trouble = ''
  const draw = (): void => {
    const width = terminalWidth(stdout)
    const height = stdout.rows > 2 ? stdout.rows : 24
    const table = leases.length === 0 ? 'no leases' : leaseTable(leases, width)
    const title = `fencepost: ${leases.length} lease${leases.length === 1 ? '' : 's'}, every ${intervalMs / 1000}s, ${new Date().toISOString()}`
    const lines = [title, ...(trouble === '' ? [] : [trouble]), '', ...table.split('\n')]
    const shown =
      lines.length < height
        ? lines
        : [...lines.slice(0, height - 2), `… ${lines.length - height + 2} more lines`]
    const fit = shown.map((line) => `${width === undefined ? line : cut(line, width)}\u001b[K`)
    stdout.write(`\u001b[H${fit.join('\r\n')}\u001b[J`)
  }
  stdout.write('\u001b[?1049h\u001b[?25l\u001b[2J')
  stdout.on('resize', draw)
  return {
    show(now) {
      leases = now
      trouble = ''
      draw()
    },
    fail(error) {
      trouble = harmlessText(error.message)
      draw()
    },
    close() {
      stdout.off('resize', draw)
      stdout.write('\u001b[?25h\u001b[?1049l')
    },
  }
}
