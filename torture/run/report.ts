import { writeFile } from 'node:fs/promises'
import { styleText } from 'node:util'
import { renderVerdict, type Verdict } from '../check/check.ts'
import type { Figures } from './figures.ts'
import type { TortureOptions } from './options.ts'
import type { Outcome } from './run.ts'

const width = 100

/** Colours where they are wanted: not in a pipe, and not with NO_COLOR. */
const bold = (text: string): string => styleText('bold', text)
const dim = (text: string): string => styleText('dim', text)
const green = (text: string): string => styleText('green', text)
const red = (text: string): string => styleText('red', text)

/** What was asked for, and how to ask for it again. */
export function heading(options: TortureOptions): string {
  const { seconds, clients, leases, liveness, control, ttlMs } = options
  const what = [
    `${seconds} s`,
    `${clients} clients`,
    `${leases} leases`,
    ...(ttlMs === undefined ? [] : [`TTL ${ttlMs} ms`]),
    ...(liveness ? ['liveness'] : []),
    ...(control === undefined ? [] : [`control ${control.name}`]),
  ]
  return `${bold('torture')}  seed ${bold(options.seed)}  ${what.join(', ')}, faults: ${options.faultNames}`
}

/** The command that runs the same plan again. */
export function rerun(options: TortureOptions): string {
  const { seed, seconds, clients, leases, liveness, control, ttlMs, faultNames } = options
  const words = [
    ...[
      '--seconds',
      seconds,
      '--seed',
      seed,
      '--faults',
      faultNames,
      '--clients',
      clients,
      '--leases',
      leases,
    ],
    ...(ttlMs === undefined ? [] : ['--ttl', ttlMs]),
    ...(liveness ? ['--liveness'] : []),
    ...(control === undefined ? [] : ['--control', control.name]),
  ]
  return `npm run torture -- ${words.join(' ')}`
}

export function progressLine(elapsedMs: number, figures: Figures): string {
  const { operations, grants, refusedWrites, outcomes, faults } = figures
  const inflicted = sum(Object.values(faults))
  return (
    `${`${Math.round(elapsedMs / 1000)} s`.padStart(7)}  ${count(operations)} operations, ${count(grants)} grants, ` +
    `${count(refusedWrites)} writes refused, ${count(outcomes.unknown)} unknown, ${count(inflicted)} faults`
  )
}

/** What has come of it, for people. */
export function summary(options: TortureOptions, outcome: Outcome): string {
  const { figures, verdict, missed, casualties, processes, ranForMs } = outcome
  const { summary: told } = verdict
  const { acquire, write, release, close } = told.asked
  const happened = sum(Object.values(told.unknown).map((each) => each.happened))
  const hadNot = sum(Object.values(told.unknown).map((each) => each.hadNot))
  const worst = told.worstTakeOverUs === null ? '' : `, the slowest after ${ms(told.worstTakeOverUs)}`
  const lines = [
    row(
      'ran for',
      `${(ranForMs / 1000).toFixed(1)} s, ${options.clients} clients at a time, ${processes} in all`,
    ),
    row(
      'asked',
      `${count(figures.operations)}: ${count(acquire)} acquires, ${count(write)} writes, ${count(release)} releases, ${count(close)} closes`,
    ),
    row('granted', `${count(told.grants)} terms, ${count(told.takeOvers)} of them take-overs${worst}`),
    row(
      'written',
      `${count(told.writes)} committed, ${count(figures.refusedWrites)} refused, ${count(figures.failedWrites)} rolled back or not begun`,
    ),
    row('in doubt', `${count(happened + hadNot)}: ${count(happened)} had happened, ${count(hadNot)} had not`),
    row('judged', `${count(told.transactions)} transactions, ${count(told.samples)} samples of trust`),
    ...rows('faults', counted(figures.faults)),
    ...rows('no chance', counted(tally(missed.map(({ fault }) => fault)))),
  ]
  const found = verdict.violations.length + casualties.length
  const end =
    found === 0
      ? green('no violation')
      : [
          ...(verdict.violations.length > 0 ? [violationsOf(verdict)] : []),
          ...casualties.map(({ client, what }) => `client ${client} ${what}`),
          '',
          red(`${found} found.`),
        ].join('\n')
  return `\n${lines.join('\n')}\n\n${end}`
}

/** The same for programs. */
export async function writeReport(file: string, options: TortureOptions, outcome: Outcome): Promise<void> {
  const { verdict, figures, ranForMs, processes, missed, casualties, unavailable } = outcome
  const { seed, seconds, clients, leases, ttlMs, liveness, control, faultNames } = options
  const report = {
    ...{ seed, seconds, clients, leases, ttlMs, liveness, control: control?.name, asked: faultNames },
    rerun: rerun(options),
    ranForMs: Math.round(ranForMs),
    processes,
    steps: figures.operations,
    faults: figures.faults,
    missed: tally(missed.map(({ fault }) => fault)),
    unavailable,
    grants: verdict.summary.grants,
    refusedWrites: figures.refusedWrites,
    failedWrites: figures.failedWrites,
    unknown: verdict.summary.unknown,
    takeOvers: verdict.summary.takeOvers,
    worstTakeOverMs:
      verdict.summary.worstTakeOverUs === null ? null : Math.round(verdict.summary.worstTakeOverUs / 1000),
    ...{ violations: verdict.violations, casualties, summary: verdict.summary },
  }
  await writeFile(file, `${JSON.stringify(report, undefined, 1)}\n`)
}

/** What has become of one control. */
export interface ControlResult {
  readonly control: string
  /** What was taken out. */
  readonly without: string
  readonly isCaught: boolean
  /** The kinds of violations that it was caught by. */
  readonly as: readonly string[]
  readonly afterMs: number
  readonly seed: string
}

export function controlLine({ control, isCaught, as, afterMs, seed }: ControlResult): string {
  const seconds = `${(afterMs / 1000).toFixed(1)} s`
  const end = isCaught ? green(`caught after ${seconds}`) : red(`not caught in ${seconds}, seed ${seed}`)
  return `  ${control.padEnd(22)} ${end}${isCaught ? dim(`  ${as.join(', ')}`) : ''}`
}

export async function writeControls(file: string, results: readonly ControlResult[]): Promise<void> {
  await writeFile(file, `${JSON.stringify(results, undefined, 1)}\n`)
}

/** The numbers, which come last, stand above already. */
function violationsOf(verdict: Verdict): string {
  return renderVerdict(verdict).split('\n\n').slice(0, -1).join('\n\n')
}

function row(name: string, text: string): string {
  return `  ${dim(name.padEnd(10))} ${text}`
}

/** As many as fit on a line. */
function rows(name: string, words: readonly string[]): string[] {
  const lines: string[] = []
  for (const word of words) {
    const last = lines.at(-1)
    if (last !== undefined && last.length + word.length + 2 <= width - 13)
      lines[lines.length - 1] = `${last}, ${word}`
    else lines.push(word)
  }
  return lines.map((line, number) => row(number === 0 ? name : '', line))
}

function counted(counts: Readonly<Record<string, number>>): string[] {
  return Object.entries(counts)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, times]) => `${name} ${times}`)
}

function tally(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}

function count(number: number): string {
  return number.toLocaleString('en')
}

function ms(us: number): string {
  return `${count(Math.round(us / 1000))} ms`
}
