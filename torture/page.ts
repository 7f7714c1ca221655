// node torture/page.ts RUN.json… [--controls CONTROLS.json]: writes what the reports of `npm run torture` say into docs/torture.md.
import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import type { Summary } from './check/verdict.ts'
import type { ControlResult } from './run/report.ts'

/** What `writeReport` writes, as far as it is shown. */
interface Run {
  readonly seed: string
  readonly ranForMs: number
  readonly processes: number
  readonly steps: number
  readonly faults: Readonly<Record<string, number>>
  readonly grants: number
  readonly takeOvers: number
  readonly worstTakeOverMs: number | null
  readonly refusedWrites: number
  readonly unknown: Summary['unknown']
  readonly violations: readonly unknown[]
  readonly casualties: readonly unknown[]
  readonly summary: Pick<Summary, 'writes' | 'transactions' | 'samples'>
}

const page = fileURLToPath(new URL('../docs/torture.md', import.meta.url))

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { controls: { type: 'string' } },
})
const runs = await Promise.all(positionals.map((file) => read<Run>(file)))
if (runs.length > 0) {
  await fill('runs', columns(runs))
  await fill('faults', faultList(runs))
}
if (values.controls !== undefined) await fill('controls', controlTable(await read(values.controls)))

async function read<T>(file: string): Promise<T> {
  return JSON.parse(await readFile(file, 'utf8')) as T
}

/** A row for each figure, a column for each seed. */
function columns(all: readonly Run[]): string {
  const rows: readonly (readonly [title: string, cell: (run: Run) => string])[] = [
    ['minutes', ({ ranForMs }) => (ranForMs / 60_000).toFixed(1)],
    ['client processes', ({ processes }) => count(processes)],
    ['steps: what clients asked for', ({ steps }) => count(steps)],
    ['faults', ({ faults }) => count(total(Object.values(faults)))],
    ['grants', ({ grants }) => count(grants)],
    ['of them take-overs', ({ takeOvers }) => count(takeOvers)],
    ['the slowest take-over, s', ({ worstTakeOverMs }) => ((worstTakeOverMs ?? 0) / 1000).toFixed(1)],
    ['writes committed', ({ summary }) => count(summary.writes)],
    ['writes refused', ({ refusedWrites }) => count(refusedWrites)],
    ['answers in doubt: had happened', ({ unknown }) => count(doubts(unknown, 'happened'))],
    ['answers in doubt: had not', ({ unknown }) => count(doubts(unknown, 'hadNot'))],
    ['transactions judged', ({ summary }) => count(summary.transactions)],
    ['samples of trust judged', ({ summary }) => count(summary.samples)],
    ['violations', ({ violations, casualties }) => count(violations.length + casualties.length)],
  ]
  return [
    line(['seed', ...all.map(({ seed }) => `\`${seed}\``)]),
    line(['---', ...all.map(() => '---')]),
    ...rows.map(([title, cell]) => line([title, ...all.map((run) => cell(run))])),
  ].join('\n')
}

function faultList(all: readonly Run[]): string {
  const times = new Map<string, number>()
  for (const { faults } of all)
    for (const [fault, often] of Object.entries(faults)) times.set(fault, (times.get(fault) ?? 0) + often)
  const sorted = [...times].toSorted(([a], [b]) => (a < b ? -1 : 1))
  return sorted.map(([fault, often]) => `\`${fault}\` ${count(often)}`).join(', ')
}

function controlTable(results: readonly ControlResult[]): string {
  return [
    line(['control', 'taken out', 'caught as', 'after, s']),
    line(['---', '---', '---', '---']),
    ...results.map(({ control, without, isCaught, as, afterMs }) =>
      line([
        `\`${control}\``,
        without.replace(/[.:]$/, ''),
        as.map((kind) => `\`${kind}\``).join(', '),
        isCaught ? (afterMs / 1000).toFixed(1) : 'not caught',
      ]),
    ),
  ].join('\n')
}

async function fill(name: string, text: string): Promise<void> {
  const before = await readFile(page, 'utf8')
  const place = new RegExp(`(<!-- figures: ${name} -->\n)[^]*?(<!-- end of figures -->)`)
  if (!place.test(before)) throw new Error(`docs/torture.md has no place for "${name}"`)
  await writeFile(
    page,
    before.replace(place, (_, begin: string, end: string) => `${begin}\n${text}\n\n${end}`),
  )
}

function line(cells: readonly string[]): string {
  return `| ${cells.join(' | ')} |`
}

function doubts(unknown: Run['unknown'], how: 'happened' | 'hadNot'): number {
  return total(Object.values(unknown).map((each) => each[how]))
}

function total(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0)
}

function count(number: number): string {
  return number.toLocaleString('en')
}
