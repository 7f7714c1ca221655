import type { Curve, Point } from './curve.ts'
import type { LineChart } from './line-chart.ts'
import type { Run } from './results.ts'
import type { Spread } from './spread.ts'

/** The measures that give curves, in the order in which they are shown. */
export const curveNames = [
  'scale-leases',
  'scale-holders',
  'scale-waiters',
  'scale-processes',
  'scale-transactions',
  'scale-batch',
] as const

interface Curves {
  readonly runs: Readonly<Record<string, Run>>
  readonly curves: Readonly<Record<string, Curve>>
}

/** The curves as small multiples, by the names of their files: none where none was measured. */
export function scaleCharts({ runs, curves }: Curves): Readonly<Record<string, LineChart>> {
  const present = curveNames.filter((name) => curves[name] !== undefined)
  if (present.length === 0) return {}
  const chart = (title: string, what: string, of: (point: Point) => Spread | undefined): LineChart => ({
    title,
    subtitle: `${what} ÷ that at the smallest size (less is better; logarithmic). ${rounds(present.map((name) => runs[name]))}`,
    panels: present.map((name) => ({
      title: `Number of ${curves[name]!.of}`,
      lines: curves[name]!.series.flatMap(({ name: line, points }) => {
        const drawn = points.flatMap((point) => {
          const ratio = of(point)
          return ratio === undefined
            ? []
            : [{ x: point.size, y: ratio.median, min: ratio.min, max: ratio.max }]
        })
        return drawn.length === 0 ? [] : [{ name: line, points: drawn }]
      }),
    })),
  })
  const [cpu, wall] = [
    chart(
      'What an operation costs the server as things grow',
      "The server's CPU time",
      (point) => point.serverCpu,
    ),
    chart(
      'How long an operation takes as things grow',
      'Time passed ÷ operations done',
      (point) => point.wall,
    ),
  ]
  const hasCpu = cpu.panels.every((panel) => panel.lines.length > 0)
  return { ...(hasCpu ? { 'scale-cpu': cpu } : {}), 'scale-wall': wall }
}

function rounds(runs: readonly (Run | undefined)[]): string {
  const counts = [...new Set(runs.flatMap((run) => (run === undefined ? [] : [run.rounds])))]
  return counts.length === 1
    ? `Medians of ${counts[0]} rounds (lowest … highest).`
    : 'Medians (lowest … highest).'
}
