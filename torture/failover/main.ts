// npm run failover [-- OPTIONS]: promotes a standby under working clients, again and again, judges what is left, and writes the tables of
// docs/failover.md. On servers of Debian's PostgreSQL of its own, on this machine's loopback, in folders that are gone afterwards.
import { parseArgs } from 'node:util'
import { Fencepost } from '../../src/index.ts'
import { DebianFolder, debianBinaries } from '../../test/support/debian-server.ts'
import { keepLedger } from './ledger.ts'
import { Outside } from './outside.ts'
import { writePage } from './page.ts'
import { Pairs } from './pair.ts'
import { withoutPatroni } from './patroni.ts'
import { type PatroniOutcome, patroniOnce } from './patroni-round.ts'
import { keep, readResults, withPatroni, withSummary } from './results.ts'
import { type Outcome, failOverOnce } from './round.ts'
import { scenarios, setupNames } from './scenarios.ts'
import { type Summary, summarize } from './summary.ts'

const names = [...setupNames, 'patroni']
const usage = `npm run failover [-- OPTIONS]

  --only NAME     only this; may be given several times:
                  ${names.slice(0, 4).join(', ')},
                  ${names.slice(4).join(', ')}
  --rounds N      failovers of each setup with each kind of token sequence, 10 by default, of about
                  eight seconds each; Patroni, which takes longer, once in five
  --write         writes the figures to torture/failover/results.json and the tables of docs/failover.md
  --tables        measures nothing: writes the tables from the figures

Exit code: 0 as it must be, 1 something was lost or accepted that must not be, 64 wrong arguments,
69 no PostgreSQL to do it with, 130 interrupted.`

const options = given()
const rounds = Number(options.rounds)
const unknown = options.only.find((name) => !names.includes(name))
const binaries = debianBinaries()

if (options.help) console.log(usage)
else if (unknown !== undefined) refuse(`--only knows no "${unknown}".`)
else if (!Number.isSafeInteger(rounds) || rounds < 1) {
  refuse(`--rounds takes a whole number from 1, not "${options.rounds}".`)
} else if (options.tables) await writePage(await readResults())
else if (binaries === undefined) {
  console.error("Debian's PostgreSQL is not installed: apt-get install postgresql-15")
  process.exitCode = 69
} else await measure(binaries)

function given() {
  try {
    return parseArgs({
      options: {
        only: { type: 'string', multiple: true, default: [] },
        rounds: { type: 'string', default: '10' },
        write: { type: 'boolean', default: false },
        tables: { type: 'boolean', default: false },
        help: { type: 'boolean', default: false },
      },
    }).values
  } catch (error) {
    refuse((error as Error).message)
  }
}

function refuse(what: string): never {
  console.error(`${what}\n\n${usage}`)
  process.exit(64)
}

async function measure(programs: string): Promise<void> {
  const isAsked = (name: string): boolean => options.only.length === 0 || options.only.includes(name)
  let results = await readResults()
  await using servers = new AsyncDisposableStack()
  for (const [signal, code] of [
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const) {
    process.once(signal, () => {
      // Servers outlive the process that started them.
      console.error('interrupted: stopping the servers')
      void servers.disposeAsync().finally(() => process.exit(code))
    })
  }
  const folder = servers.use(await DebianFolder.make(programs))
  const outside = servers.use(await Outside.start(folder))
  const pairs = servers.use(
    await Pairs.make(programs, async (server) => {
      await Fencepost.migrate({ connectionString: server.url })
      await keepLedger(server)
    }),
  )
  for (const scenario of scenarios.filter(({ name }) => isAsked(name))) {
    const outcomes: Outcome[] = []
    for (let round = 0; round < rounds * scenario.kinds.length; round += 1) {
      const kind = scenario.kinds[round % scenario.kinds.length]!
      // To stderr, as the results are for programs as well.
      console.error(`${scenario.name}, ${kind}: failover ${round + 1} of ${rounds * scenario.kinds.length}`)
      // oxlint-disable-next-line no-await-in-loop -- One failover at a time.
      outcomes.push(await failOverOnce(pairs, outside, scenario, kind))
    }
    const summary = summarize(scenario.name, scenario.kinds, outcomes)
    console.log(JSON.stringify(summary))
    if (isBroken(summary)) process.exitCode = 1
    results = withSummary(results, summary)
    // oxlint-disable-next-line no-await-in-loop -- What has been measured is kept, whatever comes after it.
    if (options.write) await keep(results)
  }
  const reason = withoutPatroni()
  if (isAsked('patroni') && reason !== undefined) console.log(`without Patroni: ${reason}`)
  for (const isSynchronous of isAsked('patroni') && reason === undefined ? [true, false] : []) {
    const outcomes: PatroniOutcome[] = []
    for (let run = 0; run < Math.ceil(rounds / 5); run += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One cluster at a time, each in a folder of its own.
      await using own = servers.use(await DebianFolder.make(programs))
      // oxlint-disable-next-line no-await-in-loop -- As above.
      outcomes.push(await patroniOnce(own, outside, isSynchronous, 'clock'))
    }
    results = withPatroni(results, isSynchronous, outcomes)
    const [summary] = results.patroni.slice(-1)
    console.log(JSON.stringify(summary))
    if (summary!.staleWrites > 0 || (isSynchronous && summary!.lostGrants + summary!.lostWrites > 0))
      process.exitCode = 1
  }
  if (options.write) {
    await keep(results)
    await writePage(results)
  }
}

/** What no setup may do, what a synchronous one may not, and what the clock rules out as long as one primary grants at a time. */
function isBroken({
  setup,
  kinds,
  staleWrites,
  lostGrants,
  lostWrites,
  twice,
  passedTwice,
}: Summary): boolean {
  const isSynchronous = setup.startsWith('synchronous') || setup === 'remote-apply'
  return (
    staleWrites > 0 ||
    (isSynchronous && lostGrants + lostWrites + twice > 0) ||
    (kinds.every((kind) => kind === 'clock') && twice + passedTwice > 0)
  )
}
