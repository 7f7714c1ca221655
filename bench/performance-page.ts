import * as capacity from './capacity.ts'
import type { Curve } from './curve.ts'
import type { Verdict } from './goals.ts'
import type { Run } from './results.ts'
import { curveNames } from './scale-charts.ts'
import { number, shown } from './spread.ts'

/** What stands between `<!-- figures: NAME -->` and `<!-- end of figures -->` in docs/performance.md, by name. */
export type Blocks = Readonly<Record<string, string>>

interface Shown {
  readonly runs: Readonly<Record<string, Run>>
  readonly curves: Readonly<Record<string, Curve>>
}

const notMeasured = 'Not measured yet.'

export function blocksOf({ runs, curves }: Shown, verdicts: readonly Verdict[]): Blocks {
  const costs = capacity.costsOf(curves)
  const withCosts = (block: (costs: capacity.Costs) => string): string =>
    costs === undefined ? notMeasured : block(costs)
  return {
    goals: goalBlock(runs, verdicts),
    curves: curveBlock(runs, curves),
    costs: withCosts(costBlock),
    grants: withCosts(grantBlock),
    sequence: withCosts(sequenceBlock),
    holders: withCosts(holderBlock),
    fenced: withCosts(fencedBlock),
  }
}

/**
 * The page with its blocks written anew.
 *
 * @throws when the page lacks one, or has one that nobody writes.
 */
export function fill(text: string, blocks: Blocks): string {
  const left = new Set(Object.keys(blocks))
  const filled = text.replaceAll(
    /(<!-- figures: (\S+) -->\n)[^]*?(<!-- end of figures -->)/g,
    (_, begin: string, name: string, end: string) => {
      const block = blocks[name]
      if (block === undefined) throw new Error(`nobody writes the figures "${name}"`)
      left.delete(name)
      return `${begin}\n${block}\n\n${end}`
    },
  )
  if (left.size > 0) throw new Error(`there is no place for the figures "${[...left].join('", "')}"`)
  return filled
}

function goalBlock(runs: Shown['runs'], verdicts: readonly Verdict[]): string {
  const rows = verdicts.map(({ goal, bound, figure, byHand, isReached }) => [
    String(goal.number),
    goal.what,
    `${goal.atLeast === undefined ? '≤' : '≥'} ${number(bound)}`,
    figure === undefined ? '–' : shown(figure),
    isReached === undefined ? 'not measured' : isReached ? 'yes' : '**no**',
    byHand === undefined ? '' : shown(byHand),
  ])
  const names = new Set<string>(verdicts.map(({ goal }) => goal.measure))
  const of = Object.entries(runs).filter(([name]) => names.has(name))
  return `${howMeasured(of)}\n\n${table(['goal', 'what', 'bound', 'median (lowest … highest)', 'reached', 'by hand'], rows)}`
}

function curveBlock(runs: Shown['runs'], curves: Shown['curves']): string {
  const present = curveNames.filter((name) => curves[name] !== undefined)
  if (present.length === 0) return notMeasured
  const rows = present.flatMap((name) => {
    const { of, series } = curves[name]!
    return series.map((each) => {
      const [first, last] = [each.points[0]!, each.points.at(-1)!]
      return [
        `${first.size.toLocaleString('en')} to ${last.size.toLocaleString('en')} ${of}`,
        each.name,
        last.serverCpu === undefined ? '–' : shown(last.serverCpu),
        shown(last.wall),
        ...[first, last].map((point) =>
          point.serverCpuUs === undefined ? '–' : `${number(point.serverCpuUs)} µs`,
        ),
        ...[first, last].map((point) => (point.walBytes === undefined ? '–' : number(point.walBytes))),
      ]
    })
  })
  const head = ['from … to', 'an operation is', 'server CPU, last ÷ first', 'time, last ÷ first']
  head.push('server CPU first', 'last', 'WAL bytes first', 'last')
  const of = present.flatMap((name) => (runs[name] === undefined ? [] : [[name, runs[name]] as const]))
  return `${howMeasured(of)}\n\n${table(head, rows)}`
}

/** Where, when and how; runs that were alike together. */
function howMeasured(runs: readonly (readonly [string, Run])[]): string {
  const alike = new Map<string, string[]>()
  for (const [name, { at, cores, node, postgres, rounds, forMs }] of runs) {
    const how = `${at}, ${cores} cores, Node ${node}, PostgreSQL ${postgres}, ${rounds} rounds of ${forMs} ms`
    alike.set(how, [...(alike.get(how) ?? []), name])
  }
  if (alike.size === 0) return notMeasured
  if (alike.size === 1) return `Measured on ${[...alike.keys()][0]}.`
  return [...alike].map(([how, names]) => `${names.join(', ')}: ${how}.`).join('<br>\n')
}

function costBlock(costs: capacity.Costs): string {
  return table(
    ['', 'CPU time of the server', 'of the client'],
    [
      ['grant and release, for each call of the two', us(costs.call), '–'],
      ['… and for each lease in the call', us(costs.lease), us(costs.clientLease)],
      ['grant and release of one lease alone', us(costs.call + costs.lease), us(costs.clientAlone)],
      ['heartbeat, whatever number of leases', us(costs.beat), '–'],
      ['fenced transaction with one update', us(costs.fenced), '–'],
      ['the same without a fence', us(costs.unfenced), '–'],
    ],
  )
}

/** In seconds, with what has it. */
const commits = [
  [0.0002, '0.2 ms, NVMe'],
  [0.001, '1 ms, SSD, or a synchronous standby next door'],
  [0.005, '5 ms, network disk, or a standby in the next zone'],
  [0.02, '20 ms, a synchronous standby in another region'],
] as const
const batches = [1, 10, 100, 1000, 2000] as const

function grantBlock(costs: capacity.Costs): string {
  const head = ['commit latency', ...batches.map((size) => `${size.toLocaleString('en')} in a call`)]
  const rows = commits.map(([seconds, name]) => [
    name,
    ...batches.map((size) => round(capacity.grantsPerSecond(costs, size, seconds, 1, 2))),
  ])
  const limit = (cores: number): string[] => [
    `what ${cores} cores allow`,
    ...batches.map((size) => round(capacity.grantsByCpu(costs, size, cores))),
  ]
  return table(head, [...rows, limit(2), limit(16)])
}

function sequenceBlock(costs: capacity.Costs): string {
  const processes = [10, 100] as const
  const head = ['commit latency', 'calls per second', 'a grant, one process alone']
  head.push(...processes.map((n) => `… each of ${n} at once`))
  head.push('leases in a call until CPU counts more', 'sequences for 2 cores with one in a call')
  const rows = commits.map(([seconds, name]) => {
    const turn = 1 / capacity.grantsBySequence(costs, 1, seconds)
    return [
      name,
      round(1 / turn),
      ...[1, ...processes].map((n) => `${number(n * turn * 1000)} ms`),
      round(capacity.batchForCpu(costs, seconds)),
      round(capacity.sequencesForCpu(costs, seconds, 2)),
    ]
  })
  return table(head, rows)
}

function holderBlock(costs: capacity.Costs): string {
  const ttls = [1, 10, 30, 300] as const
  const head = ['', ...ttls.map((ttl) => `TTL ${ttl} s`)]
  const cpu = (cores: number): string[] => [
    `a tenth of ${cores} cores`,
    ...ttls.map((ttl) => round(capacity.holdersByCpu(costs, ttl, cores, 0.1))),
  ]
  const flushes = commits.map(([seconds, name]) => [
    `no flush shared, ${name}`,
    ...ttls.map((ttl) => round(capacity.holdersByFlush(ttl, seconds))),
  ])
  return table(head, [cpu(2), cpu(16), ...flushes])
}

function fencedBlock(costs: capacity.Costs): string {
  const connections = [1, 16, 64, 256] as const
  const head = ['commit latency', ...connections.map((n) => `${n} connection${n === 1 ? '' : 's'}`)]
  head.push('what 2 cores allow')
  const rows = commits.map(([seconds, name]) => [
    name,
    ...connections.map((n) => round(capacity.fencedPerSecond(costs, n, seconds, 2))),
    round(2 / costs.fenced),
  ])
  return table(head, rows)
}

/** Two figures: more of them such arithmetic does not give. */
function round(value: number): string {
  return Number(value.toPrecision(2)).toLocaleString('en')
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n')
}

function line(cells: readonly string[]): string {
  return `| ${cells.join(' | ')} |`
}

function us(seconds: number): string {
  return `${number(seconds * 1e6)} µs`
}
