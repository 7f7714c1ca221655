import { setTimeout as sleep } from 'node:timers/promises'
import { Child } from '../child.ts'
import type { Kind, Terms } from '../children/queue-worker.ts'
import type { Effort } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, median, number, ratios, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

export interface HandOverFigure {
  readonly waiters: number
  readonly floor: Exclude<Kind, 'fencepost'>
  /** fencepost's p50, the median of all rounds: for orientation only. */
  readonly ms: number
  /** The floor's own p50, for orientation only. */
  readonly floorMs: number
  readonly ratio: Spread
  /** Questions to the database for each hand-over: calls of acquire, whatever they lead to. */
  readonly tries: Spread
  /** All statements for each hand-over. */
  readonly statements: number
}

export const handOver: Measure<readonly HandOverFigure[]> = {
  name: 'hand-over',
  group: 'waiting',
  what: 'from "release is called" to "the next one has it" ÷ the same of a blocking advisory lock, and of the least that a durable lock with wake-ups does; less is better',
  async run(effort) {
    // A session for each of the floor's waiters.
    await using server = await BenchServer.start({ counted: true, settings: { max_connections: '1200' } })
    await server.db.query('create table bench_lock (id integer primary key, holder integer)')
    await server.db.query('insert into bench_lock values (1, null)')
    const cases = [
      [2, 'notify'],
      [2, 'advisory'],
      [50, 'advisory'],
      [1000, 'advisory'],
    ] as const
    const figures: HandOverFigure[] = []
    for (const [waiters, floor] of effort.isQuick ? cases.slice(0, 3) : cases) {
      const figure = await compare(server, waiters, floor, effort)
      figures.push(figure)
      console.log(
        `${String(waiters).padStart(4)} waiters ÷ ${floor.padEnd(8)}  ${shown(figure.ratio)}  ${number(figure.ms)} ms, floor ` +
          `${number(figure.floorMs)} ms, ${shown(figure.tries)} questions and ${number(figure.statements)} statements each`,
      )
    }
    return figures
  },
}

/** Several processes with so many waiters in all, which begin and stop together. */
class Crowd implements AsyncDisposable {
  readonly #children: readonly Child[]

  private constructor(children: readonly Child[]) {
    this.#children = children
  }

  static async start(kind: Kind, url: string, waiters: number, holdMs: number): Promise<Crowd> {
    const processes = Math.min(4, waiters)
    const shares = Array.from(
      { length: processes },
      (_, index) => Math.floor(waiters / processes) + (index < waiters % processes ? 1 : 0),
    )
    return new Crowd(
      await Promise.all(shares.map((share) => Child.start('queue-worker', [kind, url, share, holdMs]))),
    )
  }

  /** The time from each call of release to the next grant, in milliseconds. Throws when two terms overlap. */
  async handOvers(forMs: number): Promise<number[]> {
    const answers = this.#children.map((child) => child.ask<Terms>('begin'))
    await sleep(forMs)
    for (const child of this.#children) child.tell('stop')
    const terms = (await Promise.all(answers)).flatMap((answer) => answer.terms)
    const inOrder = terms.toSorted(([a], [b]) => a - b)
    return inOrder.slice(1).map(([grantedMs], index) => {
      const gapMs = grantedMs - inOrder[index]![1]
      if (gapMs < 0) throw new Error(`two terms overlap by ${-gapMs} ms`)
      return gapMs
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#children.map((child) => child[Symbol.asyncDispose]()))
  }
}

/**
 * The time from "release is called" to "the next one has it", p50 of each round, in as many processes as there are waiters but at most
 * four: fencepost ÷ the floor, round by round.
 */
async function compare(
  server: BenchServer,
  waiters: number,
  floor: Exclude<Kind, 'fencepost'>,
  { rounds, forMs }: Effort,
): Promise<HandOverFigure> {
  const holdMs = 2
  await using crowd = await Crowd.start('fencepost', server.url, waiters, holdMs)
  await using base = await Crowd.start(floor, server.url, waiters, holdMs)
  const floors: number[] = []
  const own: number[] = []
  const tries: number[] = []
  const statements: number[] = []
  for (let round = 0; round <= rounds; round += 1) {
    const baseMs = median(await base.handOvers(forMs))
    await server.db.query('select pg_stat_statements_reset()')
    const gaps = await crowd.handOvers(forMs)
    const counts = await server.db.query<{ tries: string; total: string }>(
      `select sum(calls) filter (where query ~ 'fencepost.acquire') as tries, sum(calls) as total
         from pg_stat_statements where query ~ 'fencepost' and query !~ 'beat' and toplevel`,
    )
    if (round === 0) continue
    floors.push(baseMs)
    own.push(median(gaps))
    tries.push(Number(counts.rows[0]!.tries) / gaps.length)
    statements.push(Number(counts.rows[0]!.total) / gaps.length)
  }
  return {
    waiters,
    floor,
    ms: median(own),
    floorMs: median(floors),
    ratio: spread(ratios(own, floors)),
    tries: spread(tries),
    statements: median(statements),
  }
}
