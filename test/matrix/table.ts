import type { Result } from './run-pair.ts'

/** One line for each pair. */
export function table(results: readonly Result[]): string {
  const rows = [
    ['PostgreSQL', 'Node', 'passed', 'failed', 'skipped', 'seconds'],
    ...results.map(({ postgres, node, passed, failed, skipped, seconds }) => [
      postgres,
      node,
      String(passed),
      String(failed),
      String(skipped),
      seconds.toFixed(0),
    ]),
  ]
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)))
  return rows.map((row) => row.map((cell, column) => cell.padStart(widths[column]!)).join('  ')).join('\n')
}
