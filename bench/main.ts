// npm run bench [-- OPTIONS]: measures fencepost beside what others do, on servers of its own on this machine's loopback and disk, and
// tells which of its goals are reached. See bench/README.md.
import { readFile, writeFile } from 'node:fs/promises'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { writeFigures } from './figures.ts'
import { goalTable } from './goal-table.ts'
import { judge, told } from './goals.ts'
import { bulk } from './measures/bulk.ts'
import { crowd } from './measures/crowd.ts'
import { fence } from './measures/fence.ts'
import { handOver } from './measures/hand-over.ts'
import { heartbeat } from './measures/heartbeat.ts'
import { lease } from './measures/lease.ts'
import { locks } from './measures/locks.ts'
import type { Measure } from './measures/measure.ts'
import { repository } from './measures/repository.ts'
import { rows } from './measures/rows.ts'
import { scaleBatch } from './measures/scale/batch.ts'
import { scaleHolders } from './measures/scale/holders.ts'
import { scaleLeases } from './measures/scale/leases.ts'
import { scaleProcesses } from './measures/scale/processes.ts'
import { scaleTransactions } from './measures/scale/transactions.ts'
import { scaleWaiters } from './measures/scale/waiters.ts'
import { session } from './measures/session.ts'
import { startUp } from './measures/start-up.ts'
import { takeOver } from './measures/take-over.ts'
import type { Results, Run } from './results.ts'
import type { Effort } from './rounds.ts'
import { BenchServer } from './servers/bench-server.ts'

const measures: readonly Measure<unknown>[] = [
  ...[lease, fence, session, repository, bulk, locks],
  ...[handOver, takeOver, startUp, heartbeat, rows, crowd],
  ...[scaleLeases, scaleHolders, scaleWaiters, scaleProcesses, scaleTransactions, scaleBatch],
]
/** Those with a bound that CI can hold them against, in about a minute and a half. */
const quickMeasures = [lease, fence, repository, bulk, handOver, startUp, heartbeat].map(({ name }) => name)

const usage = `npm run bench [-- OPTIONS]

  --only NAME     measure only this; may be given several times. Names, and what is measured:
${measures.map(({ name, what }) => `                    ${name.padEnd(18)} ${what}`).join('\n')}
                  Groups of them: ${[...new Set(measures.map(({ group }) => group))].join(', ')}
  --rounds N      rounds that are counted, 9 by default; one more comes before them
  --ms N          how long each contender's turn in a round is, 1000 by default
  --json FILE     where the figures go, bench/results.json by default; measures that are not run keep theirs
  --charts        measure nothing: draw docs/charts/*.svg and write the tables of docs/performance.md from that file (what it does not have,
                  from docs/charts/figures.json), and print the goals
  --quick         for CI: 3 short rounds without other packages, held against wide bounds; exits with 1 outside of them`

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', multiple: true, default: [] },
    rounds: { type: 'string' },
    ms: { type: 'string' },
    json: { type: 'string' },
    charts: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
})

// Servers and processes that are still there are killed on the way out.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(130))

if (options.help) console.log(usage)
else if (options.charts) await draw()
else await measure()

function defaultFile(): string {
  return new URL('results.json', import.meta.url).pathname
}

async function draw(): Promise<void> {
  const results = await readResults(options.json ?? defaultFile())
  const { written, verdicts } = await writeFigures(results)
  for (const file of written) console.log(`wrote ${file}`)
  console.log(`\n${goalTable(verdicts)}`)
}

async function measure(): Promise<void> {
  const isQuick = options.quick
  const effort: Effort = {
    rounds: whole('rounds', options.rounds ?? (isQuick ? '3' : '9')),
    forMs: whole('ms', options.ms ?? (isQuick ? '300' : '1000')),
    isQuick,
  }
  const wanted = chosen(options.only)
  // A quick run leaves no figures behind unless it is asked to: they are no measure of anything.
  const file = options.json ?? (isQuick ? undefined : defaultFile())
  let results: Results = file === undefined ? {} : await readResults(file)
  const run = await describe(effort)
  for (const each of wanted) {
    console.log(`\n== ${each.name}: ${each.what}`)
    try {
      const figures = await each.run(effort)
      results = { ...results, runs: { ...results.runs, [each.name]: run }, [each.name]: figures }
    } catch (error) {
      // The others are measured all the same: some of them take long.
      console.error(`${each.name} failed:`, error)
      process.exitCode = 1
    }
    if (file !== undefined) await writeFile(file, `${JSON.stringify(results, undefined, 1)}\n`)
  }
  const verdicts = told(
    judge(results, isQuick),
    wanted.map(({ name }) => name),
  )
  console.log(`\nMedians of ${effort.rounds} rounds of ${effort.forMs} ms (lowest … highest).`)
  if (verdicts.length > 0) console.log(`\n${goalTable(verdicts)}`)
  if (isQuick && verdicts.some(({ isReached }) => isReached === false)) process.exitCode = 1
}

function chosen(names: readonly string[]): readonly Measure<unknown>[] {
  if (names.length === 0) {
    return options.quick ? measures.filter(({ name }) => quickMeasures.includes(name)) : measures
  }
  for (const name of names) {
    if (!measures.some((each) => each.name === name || each.group === name)) {
      console.error(`There is no measure ${name}.\n\n${usage}`)
      process.exit(64)
    }
  }
  return measures.filter(({ name, group }) => names.includes(name) || names.includes(group))
}

function whole(name: string, text: string): number {
  const value = Number(text)
  if (Number.isInteger(value) && value > 0) return value
  console.error(`--${name} takes a whole number above 0, not ${text}`)
  process.exit(64)
}

async function readResults(file: string): Promise<Results> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Results
  } catch (error) {
    // A file that somebody has named to draw from is there.
    const isNeeded = options.charts && options.json !== undefined
    if ((error as { code?: unknown }).code === 'ENOENT' && !isNeeded) return {}
    throw error
  }
}

async function describe({ rounds, forMs }: Effort): Promise<Run> {
  await using server = await BenchServer.start()
  const { rows: versions } = await server.db.query<{ version: string }>(
    `select current_setting('server_version') as version`,
  )
  return {
    at: new Date().toISOString().slice(0, 10),
    cores: cpus().length,
    node: process.versions.node,
    postgres: versions[0]!.version,
    rounds,
    forMs,
  }
}
