import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { type Spread, type Summary, spread } from './summary.ts'
import type { PatroniOutcome } from './patroni-round.ts'

const file = fileURLToPath(new URL('results.json', import.meta.url))

export interface Patroni {
  readonly isSynchronous: boolean
  readonly runs: number
  readonly answered: number
  readonly lostGrants: number
  readonly committed: number
  readonly lostWrites: number
  readonly lostInSwitchover: number
  readonly staleWrites: number
  readonly switchoverMs: Spread
  readonly failoverMs: Spread
}

/** What has been measured so far. What a run does not measure keeps its figures. */
export interface Results {
  readonly summaries: readonly Summary[]
  readonly patroni: readonly Patroni[]
}

export async function readResults(): Promise<Results> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Results
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return { summaries: [], patroni: [] }
  }
}

export async function keep(results: Results): Promise<void> {
  // Lists of kinds in one line, as the formatter has them.
  const text = JSON.stringify(results, null, 2).replaceAll(/\[\s+("[^\]]+")\s+\]/g, (_, list: string) => {
    return `[${list.replaceAll(/\s+/g, ' ')}]`
  })
  await writeFile(file, `${text}\n`)
}

export function withSummary(results: Results, summary: Summary): Results {
  const others = results.summaries.filter(
    ({ setup, kinds }) => setup !== summary.setup || kinds.join() !== summary.kinds.join(),
  )
  return { ...results, summaries: [...others, summary] }
}

export function withPatroni(
  results: Results,
  isSynchronous: boolean,
  outcomes: readonly PatroniOutcome[],
): Results {
  const sum = (of: (outcome: PatroniOutcome) => number): number =>
    outcomes.reduce((all, one) => all + of(one), 0)
  const others = results.patroni.filter((one) => one.isSynchronous !== isSynchronous)
  const one: Patroni = {
    isSynchronous,
    runs: outcomes.length,
    answered: sum(({ answered }) => answered),
    lostGrants: sum(({ lostGrants }) => lostGrants),
    committed: sum(({ writes }) => writes.won),
    lostWrites: sum(({ lostWrites }) => lostWrites),
    lostInSwitchover: sum(({ lostInSwitchover }) => lostInSwitchover),
    staleWrites: sum(({ staleWrites }) => staleWrites),
    switchoverMs: spread(outcomes.map(({ switchoverMs }) => switchoverMs)),
    failoverMs: spread(outcomes.map(({ failoverMs }) => failoverMs)),
  }
  return { ...results, patroni: [...others, one] }
}
