import type { Result } from './run-pair.ts'

/** Why tests were skipped, on how many pairs, and how often in all. */
export function reasonsFor(results: readonly Result[]): string {
  const all = results.flatMap(({ reasons, postgres, node }) =>
    reasons.map((reason) => ({ reason, pair: `${postgres}/${node}` })),
  )
  const lines = [...Map.groupBy(all, ({ reason }) => reason)].map(([reason, each]) => {
    const pairs = [...new Set(each.map(({ pair }) => pair))].join(', ')
    return `  ${each.length} on ${pairs}: ${reason}`
  })
  return lines.length === 0 ? '' : `\nskipped:\n${lines.join('\n')}`
}

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
