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

/** A bar chart as SVG that stands alone: no script, no font of its own, and readable on light and on dark ground. */
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
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 ${width + 24} ${y}" width="${width + 24}" height="${y}" role="img">
<title>${escaped(chart.title)}</title>
<desc>${escaped(description(chart))}</desc>
<style>${style}</style>
<rect class="ground" x="-12" y="0" width="${width + 24}" height="${y}" rx="6"/>
${text(0, 28, chart.title, 'title')}
${text(0, 48, chart.subtitle, 'small')}
${parts.join('\n')}
</svg>
`
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

function text(x: number, y: number, content: string, kind: string): string {
  return `<text x="${fixed(x)}" y="${fixed(y)}"${kind === '' ? '' : ` class="${kind}"`}>${escaped(content)}</text>`
}

function fixed(value: number): string {
  return String(Math.round(value * 10) / 10)
}

function escaped(content: string): string {
  return content
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
}

// The ground is part of the picture: where a page is dark although the reader's system is not, it stays readable.
const style = [
  'text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2328;stroke:#fff;stroke-width:3px;paint-order:stroke}',
  '.title{font-size:17px;font-weight:600}.group{font-size:13px;font-weight:600}.small{font-size:11px;fill:#59636e}',
  '.label{text-anchor:end}.own{font-weight:600}',
  '.ground{fill:#fff}.ours{fill:#0969da}.other{fill:#8c959f}.floor{fill:#c8ced4}',
  '.lesser{fill:none;stroke:#8c959f;stroke-width:1.2}',
  '.range{stroke:#1f2328;stroke-width:1;opacity:.55;fill:none}.mark{stroke:#bc4c00;stroke-width:1;stroke-dasharray:3 3}',
  '@media(prefers-color-scheme:dark){text{fill:#e6edf3;stroke:#0d1117}.small{fill:#9198a1}.ground{fill:#0d1117}.ours{fill:#4493f8}',
  '.other{fill:#7d8590}.floor{fill:#484f58}.lesser{stroke:#7d8590}.range{stroke:#e6edf3}.mark{stroke:#db6d28}}',
].join('')
