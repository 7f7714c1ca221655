import Table, { type HorizontalAlignment } from 'cli-table3'
import { fitted, harmlessText } from './fit.ts'

const gap = '  '
const plain = { top: '', bottom: '', left: '', right: '', mid: '', middle: gap }
const corners = [
  'top-mid',
  'top-left',
  'top-right',
  'bottom-mid',
  'bottom-left',
  'bottom-right',
  'left-mid',
  'mid-mid',
  'right-mid',
]

/** Columns under their heads, without lines, as people and `awk` read them; cut to fit into `width` columns, where there is one. */
export function asTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  colAligns: readonly HorizontalAlignment[],
  width?: number,
): string {
  const [shownHead = [], ...shown] = fitted(
    [head, ...rows.map((row) => row.map(harmlessText))],
    width,
    gap.length,
  )
  const table = new Table({
    head: shownHead,
    chars: { ...plain, ...Object.fromEntries(corners.map((corner) => [corner, ''])) },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
    colAligns: [...colAligns],
  })
  table.push(...shown)
  return table
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')
}
