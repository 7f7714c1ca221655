import { fixed, page, text } from './svg.ts'

/** A bar, with how far its value reaches. */
export interface Bar {
  readonly label: string
  readonly value: number
  readonly min: number
  readonly max: number
  /** Ours stands out, a floor steps back, and what gives less (is not durable, say) is only outlined. */
  readonly kind: 'ours' | 'floor' | 'other' | 'lesser'
}

export interface BarGroup {
  readonly title: string
  readonly bars: readonly Bar[]
}

export interface Chart {
  readonly title: string
  /** What the numbers are, and which way is better. */
  readonly subtitle: string
  readonly groups: readonly BarGroup[]
  /** Where a line is drawn through all groups. */
  readonly mark?: { readonly value: number; readonly label: string }
  /** For values that differ by orders of magnitude, which are above 0. */
  readonly isLogarithmic?: boolean
  /** Below the groups: what the kinds mean. */
  readonly legend: readonly (readonly [Bar['kind'], string])[]
}

const width = 760
const [left, right] = [250, 150]
const [rowHeight, barHeight, groupGap] = [22, 13, 34]
const plotWidth = width - left - right

/** A bar chart as SVG. */
export function svg(chart: Chart): string {
  const scale = scaleOf(chart)
  const parts: string[] = []
  let y = 78
  for (const group of chart.groups) {
    parts.push(text(0, y, group.title, 'group'))
    y += 10
    const top = y
    parts.push(...group.bars.flatMap((bar, index) => strokes(bar, top + index * rowHeight, scale)))
    if (chart.mark !== undefined) {
      const [x, bottom] = [fixed(left + scale(chart.mark.value)), top + group.bars.length * rowHeight]
      parts.push(`<line class="mark" x1="${x}" y1="${top}" x2="${x}" y2="${bottom}"/>`)
      parts.push(text(Number(x) + 4, top - 3, chart.mark.label, 'small'))
    }
    parts.push(...group.bars.flatMap((bar, index) => words(bar, top + index * rowHeight, scale)))
    y += group.bars.length * rowHeight
    y += groupGap
  }
  let x = 0
  for (const [kind, what] of chart.legend) {
    parts.push(`<rect class="${kind}" x="${x + 1}" y="${y - 22}" width="12" height="12" rx="2"/>`)
    parts.push(text(x + 20, y - 12, what, 'small'))
    x += 20 + what.length * 6.2 + 24
  }
  const { title, subtitle } = chart
  return page({ title, subtitle, description: description(chart), width, height: y, parts })
}

function strokes(bar: Bar, y: number, scale: (value: number) => number): string[] {
  const middle = y + rowHeight / 2
  const length = Math.max(1, scale(bar.value))
  const [from, to] = [left + scale(bar.min), left + scale(bar.max)]
  return [
    `<rect class="${bar.kind}" x="${left}" y="${fixed(middle - barHeight / 2)}" width="${fixed(length)}" height="${barHeight}" rx="2"/>`,
    `<path class="range" d="M${fixed(from)} ${middle}H${fixed(to)}M${fixed(from)} ${middle - 3}v6M${fixed(to)} ${middle - 3}v6"/>`,
  ]
}

/** On top of everything, so that no line runs through them. */
function words(bar: Bar, y: number, scale: (value: number) => number): string[] {
  const base = y + rowHeight / 2 + 4
  const end = left + Math.max(1, scale(bar.value), scale(bar.max))
  return [
    text(left - 8, base, bar.label, bar.kind === 'ours' ? 'label own' : 'label'),
    text(end + 7, base, valueOf(bar), bar.kind === 'ours' ? 'own' : ''),
  ]
}

/** From a value to its distance from the left edge of the bars. */
function scaleOf({ groups, mark, isLogarithmic = false }: Chart): (value: number) => number {
  const bars = groups.flatMap((group) => group.bars)
  const largest = Math.max(...bars.map((bar) => bar.max), mark?.value ?? 0)
  if (!isLogarithmic) return (value) => (Math.max(0, value) / largest) * plotWidth
  const smallest = Math.min(...bars.map((bar) => bar.min), mark?.value ?? Infinity) / 1.5
  return (value) =>
    (Math.log(Math.max(value, smallest) / smallest) / Math.log(largest / smallest)) * plotWidth
}

function valueOf({ value, min, max }: Bar): string {
  return min === max ? short(value) : `${short(value)} (${short(min)} … ${short(max)})`
}

function short(value: number): string {
  return value < 10 ? value.toFixed(2) : value.toFixed(1)
}

/** The chart in words, for those who cannot see it. */
function description({ subtitle, groups }: Chart): string {
  const said = groups.map(
    ({ title, bars }) => `${title}: ${bars.map((bar) => `${bar.label} ${valueOf(bar)}`).join(', ')}`,
  )
  return `${subtitle}. ${said.join('. ')}.`
}
