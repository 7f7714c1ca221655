import type { Bar, BarGroup, Chart } from './chart.ts'
import type { Results } from './results.ts'
import type { Spread } from './spread.ts'

/** The bar charts that the README shows, by the names of their files. Undefined where the figures are missing. */
export function chartsOf(results: Results): Readonly<Record<string, Chart | undefined>> {
  return {
    throughput: throughput(results),
    'hand-over': handOver(results),
    'take-over': takeOver(results),
  }
}

function throughput({ lease, runs }: Results): Chart | undefined {
  if (lease === undefined) return undefined
  const groups = [1, 8, 64].map((workers): BarGroup => {
    const bars = lease.figures
      .filter((figure) => figure.workers === workers && figure.contender !== 'floor')
      .map((figure): Bar => {
        const isDurable = lease.durability[figure.contender] === 'durable'
        return bar(figure.contender, figure.ratio, isDurable ? 'other' : 'lesser')
      })
    return {
      title: `${workers} worker${workers === 1 ? '' : 's'}`,
      bars: bars.toSorted((a, b) => b.value - a.value),
    }
  })
  return {
    title: 'Acquire and release, beside what others do',
    subtitle: `Pairs per second ÷ two prepared one-row UPDATEs (more is better; logarithmic). ${how(runs?.['lease'])}`,
    groups,
    mark: { value: 1, label: 'floor' },
    isLogarithmic: true,
    legend: [
      ['ours', 'fencepost, durable'],
      ['other', 'durable: a grant survives a crash of the server'],
      ['lesser', 'not durable'],
    ],
  }
}

function handOver(results: Results): Chart | undefined {
  const figures = results['hand-over']
  if (figures === undefined) return undefined
  const groups = [...new Set(figures.map(({ waiters }) => waiters))].map((waiters): BarGroup => {
    const ofThese = figures.filter((figure) => figure.waiters === waiters)
    const bars = ofThese.map((figure) =>
      bar('fencepost', figure.ratio, 'ours', `÷ ${floorNames[figure.floor]}`),
    )
    return { title: `${waiters.toLocaleString('en')} waiters`, bars }
  })
  return {
    title: 'Hand-over: from "release is called" to "the next one has it"',
    subtitle: `p50 ÷ that of PostgreSQL's own means (less is better). ${how(results.runs?.['hand-over'])}`,
    groups,
    mark: { value: 1, label: '1' },
    legend: [
      [
        'ours',
        'fencepost, with up to four processes: a durable release and grant in one commit, and a notification',
      ],
    ],
  }
}

function takeOver(results: Results): Chart | undefined {
  const figures = results['take-over']
  if (figures === undefined) return undefined
  return {
    title: 'Take-over: after a holder was killed',
    subtitle: `Until a waiter has the lease (less is better). ${how(results.runs?.['take-over'])}`,
    groups: [
      {
        title: `÷ the TTL of ${figures.ttlMs} ms, which began with the last heartbeat`,
        bars: [bar('fencepost', figures.ratio, 'ours')],
      },
    ],
    mark: { value: 1, label: 'TTL' },
    legend: [['ours', `${figures.lateMs.median.toFixed(1)} ms after the TTL has ended`]],
  }
}

const floorNames = { advisory: 'blocking advisory lock', notify: 'bare UPDATEs and NOTIFY' } as const

function bar(name: string, ratio: Spread, kind: Bar['kind'], label = name): Bar {
  const isOurs = name === 'fencepost'
  return { label, value: ratio.median, min: ratio.min, max: ratio.max, kind: isOurs ? 'ours' : kind }
}

function how(run: { readonly rounds: number } | undefined): string {
  return run === undefined ? '' : `Medians of ${run.rounds} rounds (lowest … highest).`
}
