/** What a picture needs that stands alone: no script, no font of its own, and readable on light and on dark ground. */
export interface Page {
  readonly title: string
  readonly subtitle: string
  /** The picture in words, for those who cannot see it. */
  readonly description: string
  readonly width: number
  readonly height: number
  readonly parts: readonly string[]
}

export function page({ title, subtitle, description, width, height, parts }: Page): string {
  const [outer, tall] = [width + 24, fixed(height)]
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 ${outer} ${tall}" width="${outer}" height="${tall}" role="img">
<title>${escaped(title)}</title>
<desc>${escaped(description)}</desc>
<style>${style}</style>
<rect class="ground" x="-12" y="0" width="${outer}" height="${tall}" rx="6"/>
${text(0, 28, title, 'title')}
${text(0, 48, subtitle, 'small')}
${parts.join('\n')}
</svg>
`
}

export function text(x: number, y: number, content: string, kind: string): string {
  return `<text x="${fixed(x)}" y="${fixed(y)}"${kind === '' ? '' : ` class="${kind}"`}>${escaped(content)}</text>`
}

export function fixed(value: number): string {
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
  '.label{text-anchor:end}.own{font-weight:600}.centred{text-anchor:middle}',
  '.ground{fill:#fff}.ours{fill:#0969da}.other{fill:#8c959f}.floor{fill:#c8ced4}',
  '.lesser{fill:none;stroke:#8c959f;stroke-width:1.2}',
  '.range{stroke:#1f2328;stroke-width:1;opacity:.55;fill:none}.mark{stroke:#bc4c00;stroke-width:1;stroke-dasharray:3 3}',
  '.grid{stroke:#c8ced4;stroke-width:.6}.one{stroke:#8c959f;stroke-width:1;stroke-dasharray:3 3}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}',
  '.first{stroke:#0969da}.second{stroke:#bc4c00}.third{stroke:#8c959f}',
  '.dot.first{fill:#0969da}.dot.second{fill:#bc4c00}.dot.third{fill:#8c959f}',
  '.of-first{fill:#0969da}.of-second{fill:#bc4c00}.of-third{fill:#6e7781}',
  '.reach{fill:none;stroke-width:1;opacity:.5}',
  '@media(prefers-color-scheme:dark){text{fill:#e6edf3;stroke:#0d1117}.small{fill:#9198a1}.ground{fill:#0d1117}.ours{fill:#4493f8}',
  '.other{fill:#7d8590}.floor{fill:#484f58}.lesser{stroke:#7d8590}.range{stroke:#e6edf3}.mark{stroke:#db6d28}',
  '.grid{stroke:#30363d}.one{stroke:#7d8590}.of-first{fill:#4493f8}.of-second{fill:#db6d28}.of-third{fill:#9198a1}',
  '.first{stroke:#4493f8}.second{stroke:#db6d28}.third{stroke:#7d8590}',
  '.dot.first{fill:#4493f8}.dot.second{fill:#db6d28}.dot.third{fill:#7d8590}}',
].join('')
