import { setTimeout as sleep } from 'node:timers/promises'
import { Child } from '../child.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, number, quantile, ratios, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

export interface CrowdFigures {
  readonly holders: number
  readonly waiters: number
  /** The p99 of acquiring a free lease with the crowd ÷ without it. */
  readonly p99: Spread
  readonly p50: Spread
  /** For orientation only. */
  readonly idleP99Ms: number
  readonly crowdP99Ms: number
}

const ttlMs = 30_000

export const crowd: Measure<CrowdFigures> = {
  name: 'crowd',
  group: 'scale',
  what: 'acquiring a free lease while 1,000 holders beat and 10,000 waiters stand in line, p99 ÷ while they do not; less is better',
  async run({ rounds, forMs, isQuick }) {
    const holders = isQuick ? 50 : 1000
    const [holderProcesses, waiterProcesses] = [2, 5]
    // Two leases for each holder, and each waited for by every process of waiters.
    const leases = 2 * holders
    const waiters = waiterProcesses * leases
    await using closing = new AsyncDisposableStack()
    const server = closing.use(
      await BenchServer.start({ settings: { max_connections: String(holders + 100) } }),
    )
    const { url } = server
    const children: Child[] = []
    const share = leases / holderProcesses
    for (let index = 0; index < holderProcesses; index += 1) {
      const range = [index * share, (index + 1) * share]
      children.push(closing.use(await Child.start('many', ['hold-spread', url, 'held', ...range, ttlMs])))
    }
    for (let index = 0; index < waiterProcesses; index += 1) {
      children.push(closing.use(await Child.start('many', ['wait', url, 'held', 0, leases, ttlMs])))
    }
    await untilAllStand(server, waiters)
    const fencepost = await server.open()

    /** The times of acquiring a free lease, one after the other. */
    const acquires = async (): Promise<number[]> => {
      const takenMs: number[] = []
      for (const startedMs = performance.now(); performance.now() - startedMs < forMs;) {
        const askedMs = performance.now()
        const lease = await fencepost.acquire('free')
        takenMs.push(performance.now() - askedMs)
        await lease.release()
      }
      return takenMs
    }
    const idle: number[][] = []
    const crowded: number[][] = []
    for (let round = 0; round <= rounds; round += 1) {
      // The same rows and connections both times: the crowd is stopped, for far less than its TTL.
      for (const child of children) child.signal('SIGSTOP')
      await sleep(200)
      const without = await acquires()
      for (const child of children) child.signal('SIGCONT')
      // What they have missed meanwhile they make up for first.
      await sleep(1000)
      const within = await acquires()
      if (round === 0) continue
      idle.push(without)
      crowded.push(within)
    }
    await untilAllStand(server, waiters)
    const figures: CrowdFigures = {
      holders,
      waiters,
      p99: spread(ratios(at(crowded, 0.99), at(idle, 0.99))),
      p50: spread(ratios(at(crowded, 0.5), at(idle, 0.5))),
      idleP99Ms: spread(at(idle, 0.99)).median,
      crowdP99Ms: spread(at(crowded, 0.99)).median,
    }
    console.log(`${holders} holders, ${waiters} waiters: acquire with them ÷ without them`)
    console.log(
      `p99  ${shown(figures.p99)}, ${number(figures.crowdP99Ms)} and ${number(figures.idleP99Ms)} ms`,
    )
    console.log(`p50  ${shown(figures.p50)}`)
    return figures
  },
}

function at(times: readonly number[][], share: number): number[] {
  return times.map((round) => quantile(round, share))
}

/** None of them is served: what they wait for is held throughout. */
async function untilAllStand({ db }: BenchServer, waiters: number): Promise<void> {
  for (const giveUpAt = Date.now() + 120_000; ; await sleep(100)) {
    const { rows } = await db.query<{ standing: string }>('select count(*) as standing from fencepost.waiter')
    const standing = Number(rows[0]!.standing)
    if (standing === waiters) return
    if (Date.now() > giveUpAt) throw new Error(`${standing} of ${waiters} waiters stand in line`)
  }
}
