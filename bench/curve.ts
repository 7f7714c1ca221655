import { asTable } from '../src/cli/table.ts'
import type { Meter } from './meter.ts'
import { type Effort, type Load, type Round, type Turn, load, turns } from './rounds.ts'
import { type Spread, median, number, ratios, shown, spread } from './spread.ts'

/** What an operation costs at one size. Times are medians of the rounds. */
export interface Point {
  readonly size: number
  /** The time that passed ÷ the operations that were done meanwhile, by whatever number of workers, in microseconds. */
  readonly wallUs: number
  /** ÷ that at the smallest size, round by round. */
  readonly wall: Spread
  readonly clientCpuUs: number
  /** CPU time of all processes of the server, in microseconds. Undefined where it cannot be read. */
  readonly serverCpuUs?: number | undefined
  readonly serverCpu?: Spread | undefined
  readonly walBytes?: number | undefined
}

/** One kind of operation, at all sizes. */
interface Series {
  readonly name: string
  readonly points: readonly Point[]
}

/** How the cost of an operation grows with something. */
export interface Curve {
  /** What there is more and more of. */
  readonly of: string
  readonly series: readonly Series[]
}

interface Sized extends Turn {
  readonly size: number
}

/** So many workers that do a step, again and again, where there are `size` of what the curve is of. */
export function sized(
  server: Meter,
  size: number,
  workers: number,
  step: (worker: number) => Promise<unknown>,
): Sized {
  const run = (count: number, forMs: number): Promise<Load> => load(count, forMs, step)
  return { size, workers, contender: { name: String(size), server, run } }
}

/** Half of what other measures take: they have two or three turns to a round, a curve a dozen. */
const shareOfTurn = 0.5

/** All sizes of all series take turns. The first size of each is what the others are compared with. Prints the table. */
export async function curve(
  of: string,
  cases: Readonly<Record<string, readonly Sized[]>>,
  { rounds, forMs }: Effort,
): Promise<Curve> {
  const all = Object.entries(cases).flatMap(([name, own]) => own.map((each) => ({ name, ...each })))
  const taken = await turns(all, { rounds, forMs: Math.max(100, forMs * shareOfTurn) })
  const series = Object.keys(cases).map((name): Series => {
    const own = all.flatMap((each, index) =>
      each.name === name ? [[each.size, taken[index]!] as const] : [],
    )
    return { name, points: own.map(([size, its]) => point(size, its, own[0]![1])) }
  })
  const drawn = { of, series }
  console.log(curveTable(drawn))
  return drawn
}

function point(size: number, rounds: readonly Round[], smallest: readonly Round[]): Point {
  const [cpu, floor] = [cpuOf(rounds), cpuOf(smallest)]
  const wal = rounds.flatMap(({ walBytes }) => (walBytes === undefined ? [] : [walBytes]))
  return {
    size,
    wallUs: median(wallOf(rounds)),
    wall: spread(ratios(wallOf(rounds), wallOf(smallest))),
    clientCpuUs: median(rounds.map(({ clientCpuUs }) => clientCpuUs)),
    ...(cpu.length === 0 ? {} : { serverCpuUs: median(cpu), serverCpu: spread(ratios(cpu, floor)) }),
    ...(wal.length === 0 ? {} : { walBytes: median(wal) }),
  }
}

function curveTable({ of, series }: Curve): string {
  const head = [of.toUpperCase(), 'AN OPERATION IS', 'SERVER CPU ÷ FIRST', 'WALL ÷ FIRST']
  head.push('SERVER µS', 'WALL µS', 'CLIENT µS', 'WAL BYTES')
  const rows = series.flatMap(({ name, points }) =>
    points.map((each) => [
      each.size.toLocaleString('en'),
      name,
      each.serverCpu === undefined ? '-' : shown(each.serverCpu),
      shown(each.wall),
      known(each.serverCpuUs),
      number(each.wallUs),
      number(each.clientCpuUs),
      known(each.walBytes),
    ]),
  )
  const [left, right] = ['left', 'right'] as const
  return asTable(head, rows, [right, left, right, right, right, right, right, right])
}

function known(value: number | undefined): string {
  return value === undefined ? '-' : number(value)
}

function wallOf(rounds: readonly Round[]): number[] {
  return rounds.map(({ perSecond }) => 1e6 / perSecond)
}

function cpuOf(rounds: readonly Round[]): number[] {
  return rounds.flatMap(({ serverCpuUs }) => (serverCpuUs === undefined ? [] : [serverCpuUs]))
}
