import { fixed, page, text } from './svg.ts'

interface LinePoint {
  readonly x: number
  readonly y: number
  readonly min: number
  readonly max: number
}

export interface Line {
  readonly name: string
  readonly points: readonly LinePoint[]
}

/** Both scales are logarithmic. */
interface Panel {
  readonly title: string
  readonly lines: readonly Line[]
}

export interface LineChart {
  readonly title: string
  /** What the numbers are, and which way is better. */
  readonly subtitle: string
  readonly panels: readonly Panel[]
}

const width = 760
const columns = 2
const [panelWidth, columnGap] = [366, 28]
const [axisWidth, endWidth] = [34, 36]
const [titleHeight, nameHeight, plotHeight, tickHeight, rowGap] = [18, 15, 130, 18, 22]
const colours = ['first', 'second', 'third'] as const

/** Small multiples as SVG, all with one vertical scale, so that what is steep in one is steep in all. */
export function lineSvg({ title, subtitle, panels }: LineChart): string {
  const lines = panels.flatMap((panel) => panel.lines)
  const points = lines.flatMap((line) => line.points)
  const lowest = Math.floor(Math.log10(Math.min(0.5, ...points.map(({ min }) => min))) * 2) / 2
  const highest = Math.ceil(Math.log10(Math.max(2, ...points.map(({ max }) => max))) * 2) / 2
  const y = (value: number): number => ((highest - Math.log10(value)) / (highest - lowest)) * plotHeight
  const mostNames = Math.max(...panels.map((panel) => panel.lines.length))
  const rowHeight = titleHeight + mostNames * nameHeight + plotHeight + tickHeight + rowGap
  const parts = panels.flatMap((panel, index) => {
    const left = (index % columns) * (panelWidth + columnGap)
    const top = 78 + Math.floor(index / columns) * rowHeight
    return drawn(panel, left, top, mostNames, { y, lowest, highest })
  })
  const height = 78 + Math.ceil(panels.length / columns) * rowHeight - 14
  return page({ title, subtitle, description: description(subtitle, panels), width, height, parts })
}

interface Vertical {
  readonly y: (value: number) => number
  readonly lowest: number
  readonly highest: number
}

function drawn(
  panel: Panel,
  left: number,
  top: number,
  names: number,
  { y, lowest, highest }: Vertical,
): string[] {
  const parts = [text(left, top, panel.title, 'group')]
  for (const [index, { name }] of panel.lines.entries()) {
    const middle = top + titleHeight + index * nameHeight
    parts.push(`<path class="line ${colours[index]}" d="M${left} ${fixed(middle - 4)}h18"/>`)
    parts.push(text(left + 24, middle, name, 'small'))
  }
  const [plotLeft, plotTop] = [left + axisWidth, top + titleHeight + names * nameHeight]
  const plotWidth = panelWidth - axisWidth - endWidth
  const xs = [...new Set(panel.lines.flatMap(({ points }) => points.map((point) => point.x)))]
  const largest = Math.log10(Math.max(...xs, 2))
  const x = (value: number): number => plotLeft + (Math.log10(value) / largest) * plotWidth
  for (let power = Math.ceil(lowest); power <= highest; power += 1) {
    const at = plotTop + y(10 ** power)
    const kind = power === 0 ? 'one' : 'grid'
    parts.push(`<path class="${kind}" d="M${plotLeft} ${fixed(at)}h${plotWidth}"/>`)
    parts.push(text(plotLeft - 6, at + 4, String(10 ** power), 'small label'))
  }
  for (const size of xs) parts.push(text(x(size), plotTop + plotHeight + 14, short(size), 'small centred'))
  const ends = apart(panel.lines.map(({ points }) => y(points.at(-1)!.y)))
  for (const [index, { points }] of panel.lines.entries()) {
    const colour = colours[index]!
    const at = points.map((point) => [x(point.x), plotTop + y(point.y)] as const)
    for (const [place, { min, max }] of points.entries()) {
      if (min === max) continue
      const [across] = at[place]!
      parts.push(
        `<path class="reach ${colour}" d="M${fixed(across)} ${fixed(plotTop + y(max))}V${fixed(plotTop + y(min))}"/>`,
      )
    }
    parts.push(
      `<path class="line ${colour}" d="M${at.map(([a, b]) => `${fixed(a)} ${fixed(b)}`).join('L')}"/>`,
    )
    for (const [a, b] of at)
      parts.push(`<circle class="dot ${colour}" cx="${fixed(a)}" cy="${fixed(b)}" r="2.2"/>`)
    parts.push(
      text(
        x(points.at(-1)!.x) + 7,
        plotTop + ends[index]! + 4,
        points.at(-1)!.y.toFixed(2),
        `${index === 0 ? 'own ' : ''}of-${colour}`,
      ),
    )
  }
  return parts
}

/** Moves what would be written over one another apart, in the order that it has. */
function apart(places: readonly number[]): number[] {
  const moved = [...places]
  const order = places.map((_, index) => index).toSorted((a, b) => places[a]! - places[b]!)
  for (const [rank, index] of order.entries()) {
    if (rank > 0) moved[index] = Math.max(moved[index]!, moved[order[rank - 1]!]! + 13)
  }
  return moved
}

/** 1, 10, 1k, 5M */
function short(size: number): string {
  return size < 1000 ? String(size) : size < 1e6 ? `${size / 1000}k` : `${size / 1e6}M`
}

function description(subtitle: string, panels: readonly Panel[]): string {
  const said = panels.map(({ title, lines }) => {
    const each = lines.map(
      ({ name, points }) => `${name}: ${points.map(({ x, y }) => `${short(x)} ${y.toFixed(2)}`).join(', ')}`,
    )
    return `${title}: ${each.join('; ')}`
  })
  return `${subtitle}. ${said.join('. ')}.`
}
