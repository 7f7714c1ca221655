import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { Client } from 'pg'
import type { Kind, Terms } from './children/queue-worker.ts'
import { median } from './side-by-side.ts'

const program = fileURLToPath(new URL('children/queue-worker.ts', import.meta.url))

export interface HandOver {
  readonly waiters: number
  readonly floor: Kind
  /** fencepost's p50, the median of all rounds: for orientation only. */
  readonly ms: number
  /** The floor's own p50, for orientation only. */
  readonly floorMs: number
  readonly ratio: { readonly median: number; readonly min: number; readonly max: number }
  /** Questions to the database for each hand-over: calls of acquire, whatever they lead to. */
  readonly tries: number
  /** All statements for each hand-over. */
  readonly statements: number
}

/** Several processes with so many waiters in all, which begin and stop together. */
class Crowd {
  readonly #children: readonly ChildProcess[]

  private constructor(children: readonly ChildProcess[]) {
    this.#children = children
  }

  static async start(kind: Kind, url: string, waiters: number, holdMs: number): Promise<Crowd> {
    const processes = Math.min(4, waiters)
    const children = Array.from({ length: processes }, (_, index) => {
      const share = Math.floor(waiters / processes) + (index < waiters % processes ? 1 : 0)
      return fork(program, [kind, url, String(share), String(holdMs)])
    })
    await Promise.all(children.map((child) => told(child)))
    return new Crowd(children)
  }

  /** The time from each call of release to the next grant, in milliseconds. Throws when two terms overlap. */
  async handOvers(forMs: number): Promise<number[]> {
    const answers = this.#children.map((child) => told(child) as Promise<Terms>)
    for (const child of this.#children) child.send('begin')
    await new Promise((resolve) => setTimeout(resolve, forMs))
    for (const child of this.#children) child.send('stop')
    const terms = (await Promise.all(answers)).flatMap((answer) => answer.terms)
    const inOrder = terms.toSorted(([a], [b]) => a - b)
    return inOrder.slice(1).map(([grantedMs], index) => {
      const gapMs = grantedMs - inOrder[index]![1]
      if (gapMs < 0) throw new Error(`two terms overlap by ${-gapMs} ms`)
      return gapMs
    })
  }

  async end(): Promise<void> {
    await Promise.all(
      this.#children.map(async (child) => {
        const ended = new Promise((resolve) => child.once('exit', resolve))
        child.send('end')
        await ended
      }),
    )
  }
}

async function told(child: ChildProcess): Promise<unknown> {
  const { promise, resolve, reject } = Promise.withResolvers<unknown>()
  const ended = (code: number | null): void =>
    reject(new Error(`a process of the measurement ended with ${code}`))
  child.once('message', resolve)
  child.once('exit', ended)
  try {
    return await promise
  } finally {
    child.off('exit', ended)
  }
}

/**
 * The time from "release is called" to "the next one has it", p50 of each round, in as many processes as there are waiters but at most
 * four: fencepost ÷ the floor, round by round.
 */
export async function compareHandOver(
  url: string,
  waiters: number,
  rounds: number,
  forMs: number,
  floorKind: Exclude<Kind, 'fencepost'>,
): Promise<HandOver> {
  const holdMs = 2
  const db = new Client({ connectionString: url })
  await db.connect()
  const crowd = await Crowd.start('fencepost', url, waiters, holdMs)
  const floor = await Crowd.start(floorKind, url, waiters, holdMs)
  try {
    const floors: number[] = []
    const own: number[] = []
    const ratios: number[] = []
    const tries: number[] = []
    const statements: number[] = []
    for (let round = 0; round <= rounds; round += 1) {
      const base = median(await floor.handOvers(forMs))
      await db.query('select pg_stat_statements_reset()')
      const gaps = await crowd.handOvers(forMs)
      const counts = await db.query<{ tries: string; total: string }>(
        `select sum(calls) filter (where query ~ 'fencepost.acquire') as tries, sum(calls) as total
           from pg_stat_statements where query ~ 'fencepost' and query !~ 'beat' and toplevel`,
      )
      if (round === 0) continue
      floors.push(base)
      own.push(median(gaps))
      ratios.push(median(gaps) / base)
      tries.push(Number(counts.rows[0]!.tries) / gaps.length)
      statements.push(Number(counts.rows[0]!.total) / gaps.length)
    }
    return {
      waiters,
      floor: floorKind,
      ms: median(own),
      floorMs: median(floors),
      ratio: { median: median(ratios), min: Math.min(...ratios), max: Math.max(...ratios) },
      tries: median(tries),
      statements: median(statements),
    }
  } finally {
    await Promise.all([crowd.end(), floor.end(), db.end()])
  }
}
