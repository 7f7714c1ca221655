import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Patroni, Results } from './results.ts'
import { setupNames, titles } from './scenarios.ts'
import type { Spread, Summary } from './summary.ts'

const page = fileURLToPath(new URL('../../docs/failover.md', import.meta.url))

type Column<Row> = readonly [title: string, cell: (row: Row) => string | number]

const scenario: readonly Column<Summary>[] = [
  ['setup', ({ setup }) => titles.get(setup)!],
  ['tokens', ({ kinds }) => kinds.map((kind) => `\`${kind}\``).join(', ')],
  ['failovers', ({ failovers }) => failovers],
]

const inside: readonly Column<Summary>[] = [
  ...scenario,
  ['grants answered', ({ answered }) => answered],
  ['of them lost', ({ lostGrants }) => lostGrants],
  ['writes committed', ({ committed }) => committed],
  ['of them lost', ({ lostWrites }) => lostWrites],
  ['answers `unknown`', ({ acquires, writes }) => acquires.unknown + writes.unknown],
  ['stale writes refused', ({ refusedWrites }) => refusedWrites],
  ['stale writes accepted', ({ staleWrites }) => staleWrites],
  ['next grant after', ({ nextGrantMs }) => times(nextGrantMs)],
]

const outside: readonly Column<Summary>[] = [
  ...scenario,
  ['numbers given twice', ({ twice }) => twice],
  ['for the same lease', ({ twiceForSameLease }) => twiceForSameLease],
  ['one number let in for two terms', ({ passedTwice }) => passedTwice],
  ['lost terms let in late', ({ passedLate }) => passedLate],
  ['current terms shut out', ({ shutOut }) => shutOut],
  ['trust in a lost term', trust],
  ['leases stuck', ({ stuck }) => stuck],
]

const patroni: readonly Column<Patroni>[] = [
  ['`synchronous_mode`', ({ isSynchronous }) => (isSynchronous ? 'on' : 'off')],
  ['runs', ({ runs }) => runs],
  ['grants answered', ({ answered }) => answered],
  ['of them lost', ({ lostGrants }) => lostGrants],
  ['writes committed', ({ committed }) => committed],
  ['of them lost', ({ lostWrites }) => lostWrites],
  ['of both, by the switchover', ({ lostInSwitchover }) => lostInSwitchover],
  ['stale writes accepted', ({ staleWrites }) => staleWrites],
  ['next grant after a switchover', ({ switchoverMs }) => times(switchoverMs)],
  ['after the death of the primary', ({ failoverMs }) => times(failoverMs)],
]

/** Writes the tables between their marks. */
export async function writePage({ summaries, patroni: driven }: Results): Promise<void> {
  const ordered = summaries.toSorted((a, b) => setupNames.indexOf(a.setup) - setupNames.indexOf(b.setup))
  const tables = {
    inside: table(inside, ordered),
    outside: table(outside, ordered),
    patroni: table(patroni, driven),
  }
  let text = await readFile(page, 'utf8')
  for (const [name, lines] of Object.entries(tables)) {
    const mark = new RegExp(`(<!-- figures: ${name} -->\n)[^]*?(<!-- end of figures -->)`)
    if (!mark.test(text)) throw new Error(`docs/failover.md has no place for "${name}"`)
    text = text.replace(mark, (_, begin: string, end: string) => `${begin}\n${lines}\n\n${end}`)
  }
  await writeFile(page, text)
}

function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  return [
    line(columns.map(([title]) => title)),
    line(columns.map(() => '---')),
    ...rows.map((row) => line(columns.map(([, cell]) => cell(row)))),
  ].join('\n')
}

function line(cells: readonly (string | number)[]): string {
  return `| ${cells.join(' | ')} |`
}

function times({ median, worst }: Spread): string {
  return median === worst ? `${seconds(median)} s` : `${seconds(median)} s, at most ${seconds(worst)} s`
}

function trust({ overlaps, longestOverlapMs }: Summary): string {
  if (overlaps === 0) return 'never'
  const longest = longestOverlapMs === null ? 'without end' : `at most ${seconds(longestOverlapMs)} s`
  return `in ${overlaps}, ${longest}`
}

function seconds(ms: number): string {
  return (ms / 1000).toFixed(ms < 1000 ? 2 : 1)
}
