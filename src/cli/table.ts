import Table, { type HorizontalAlignment } from 'cli-table3'

const plain = { top: '', bottom: '', left: '', right: '', mid: '', middle: '  ' }
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

/** Columns under their heads, without lines, as people and `awk` read them. */
export function asTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  colAligns: readonly HorizontalAlignment[],
): string {
  const table = new Table({
    head: [...head],
    chars: { ...plain, ...Object.fromEntries(corners.map((corner) => [corner, ''])) },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
    colAligns: [...colAligns],
  })
  table.push(...rows.map((row) => [...row]))
  return table
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')
}
