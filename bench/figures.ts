import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { type Chart, svg } from './chart.ts'
import { chartsOf } from './charts.ts'
import type { Curve } from './curve.ts'
import { type Verdict, goals, verdict } from './goals.ts'
import { lineSvg } from './line-chart.ts'
import { blocksOf, fill } from './performance-page.ts'
import type { Results, Run } from './results.ts'
import { curveNames, scaleCharts } from './scale-charts.ts'
import type { Spread } from './spread.ts'

const folder = new URL('../docs/charts/', import.meta.url)
const figuresFile = new URL('figures.json', folder)
const pageFile = new URL('../docs/performance.md', import.meta.url)

/**
 * What the charts and the tables of docs/performance.md are made of: medians and ranges, with when and where they were measured. It is kept
 * with the source, unlike the results with all their rounds, so that either can be drawn anew without measuring.
 */
export interface Figures {
  readonly runs: Readonly<Record<string, Run>>
  /** By what the goal is about. */
  readonly goals: Readonly<Record<string, Spread>>
  /** The same of the least that does the work, where that is measured. */
  readonly byHand?: Readonly<Record<string, Spread>>
  readonly charts: Readonly<Record<string, Chart>>
  readonly curves: Readonly<Record<string, Curve>>
}

/** The figures of a run, and those that are kept for what it has not measured. What is no goal any more is dropped. */
export function figuresOf(results: Results, kept?: Figures): Figures {
  const measured = goals.flatMap((goal) => {
    const figure = goal.figure(results) ?? kept?.goals[goal.what]
    return figure === undefined ? [] : [[goal.what, figure] as const]
  })
  const byHand = goals.flatMap((goal) => {
    const figure = goal.byHand?.(results) ?? kept?.byHand?.[goal.what]
    return figure === undefined ? [] : [[goal.what, figure] as const]
  })
  const charts = Object.entries(chartsOf(results)).flatMap(([name, fresh]) => {
    const chart = fresh ?? kept?.charts[name]
    return chart === undefined ? [] : [[name, chart] as const]
  })
  const curves = curveNames.flatMap((name) => {
    const drawn = results[name] ?? kept?.curves[name]
    return drawn === undefined ? [] : [[name, drawn] as const]
  })
  return {
    runs: { ...kept?.runs, ...results.runs },
    goals: Object.fromEntries(measured),
    byHand: Object.fromEntries(byHand),
    charts: Object.fromEntries(charts),
    curves: Object.fromEntries(curves),
  }
}

/** Every goal with the figure that is kept of it. */
export function verdictsOf({ goals: kept, byHand }: Figures): Verdict[] {
  return goals.map((goal) =>
    verdict(goal, (goal.atLeast ?? goal.atMost)!, kept[goal.what], byHand?.[goal.what]),
  )
}

/** Writes everything that shows figures. Returns the files. */
export async function writeFigures(
  results: Results,
): Promise<{ readonly written: readonly string[]; readonly verdicts: readonly Verdict[] }> {
  const figures = figuresOf(results, await keptFigures())
  const verdicts = verdictsOf(figures)
  const contents = new Map<URL, string>([[figuresFile, `${JSON.stringify(figures, undefined, 1)}\n`]])
  for (const [name, chart] of Object.entries(figures.charts)) {
    contents.set(new URL(`${name}.svg`, folder), svg(chart))
  }
  for (const [name, chart] of Object.entries(scaleCharts(figures))) {
    contents.set(new URL(`${name}.svg`, folder), lineSvg(chart))
  }
  contents.set(pageFile, fill(await readFile(pageFile, 'utf8'), blocksOf(figures, verdicts)))
  await mkdir(folder, { recursive: true })
  for (const [file, content] of contents) await writeFile(file, content)
  return { written: [...contents.keys()].map((file) => fileURLToPath(file)), verdicts }
}

async function keptFigures(): Promise<Figures | undefined> {
  try {
    return JSON.parse(await readFile(figuresFile, 'utf8')) as Figures
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ENOENT') return undefined
    throw error
  }
}
