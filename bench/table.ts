import { asTable } from '../src/cli/table.ts'
import type { Figure } from './rounds.ts'
import { number, shown } from './spread.ts'

/** Figures of throughput as a table for people, by number of workers. */
export function figureTable(
  figures: readonly Figure[],
  durability: Readonly<Record<string, string>> = {},
): string {
  const head = ['WORKERS', 'WHAT', '÷ FIRST', 'P50 MS', 'P99 MS', 'WAL BYTES', 'CLIENT µS', 'SERVER µS', '']
  const rows = figures.map((each) => [
    String(each.workers),
    each.contender,
    shown(each.ratio),
    number(each.p50Ms),
    number(each.p99Ms),
    known(each.walBytes),
    known(each.clientCpuUs),
    known(each.serverCpuUs),
    durability[each.contender] ?? '',
  ])
  const [left, right] = ['left', 'right'] as const
  return asTable(head, rows, [right, left, left, right, right, right, right, right, left])
}

function known(value: number | undefined): string {
  return value === undefined ? '-' : number(value)
}
