import { Client } from 'pg'
import { type Curve, curve, sized } from '../../curve.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import { holderId, writeHolders, writeLine } from '../../written-rows.ts'
import type { Measure } from '../measure.ts'
import { powers } from './sizes.ts'

const lease = 'line'

/**
 * The waiters are rows of holders that live for a day, all in one line. Nobody is behind them whom the library could serve, so the hand-over
 * is done by the statements that it sends: the holder lets go, which grants to the first in line, and stands at the end.
 */
export const scaleWaiters: Measure<Curve> = {
  name: 'scale-waiters',
  group: 'scale',
  what: 'a hand-over in a line of 1 to 50,000, and acquire and release of another lease meanwhile, cost ÷ that with one; less is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const handOvers = []
    const grants = []
    for (const count of powers(50_000)) {
      const url = await server.createDatabase(`waiters_${count}`)
      const fencepost = await server.open({ connectionString: url })
      const db = new Client({ connectionString: url })
      closing.defer(() => db.end())
      await db.connect()
      const ring = await Ring.start(db, count)
      handOvers.push(sized(server, count, 1, () => ring.handOver()))
      grants.push(sized(server, count, 1, async () => (await fencepost.acquire('free')).release()))
    }
    return await curve(
      'waiters',
      { 'a hand-over in that line': handOvers, 'acquire and release': grants },
      effort,
    )
  },
}

/** One holds the lease and the others stand in line; who lets it go stands at the end. */
class Ring {
  readonly #db: Client
  readonly #size: number
  #first = 0
  #token: string
  #attempt = 2

  private constructor(db: Client, size: number, token: string) {
    this.#db = db
    this.#size = size
    this.#token = token
  }

  static async start(db: Client, waiters: number): Promise<Ring> {
    await writeHolders(db, waiters + 1)
    const { rows } = await db.query<{ token: string }>(acquire(0, 1))
    await db.query(acquire(1, 1))
    await writeLine(db, lease, waiters)
    return new Ring(db, waiters + 1, rows[0]!.token)
  }

  async handOver(): Promise<void> {
    const released = await this.#db.query<{ outcome: string; wake: string | null }>({
      name: 'release',
      text: 'select name, outcome, wake from fencepost.release($1::text[], $2::bigint[], $3::uuid)',
      values: [[lease], [this.#token], holderId(this.#first)],
    })
    const token = released.rows[0]?.wake?.split(':')[1]
    if (token === undefined) throw new Error('the lease was not handed over')
    const stood = await this.#db.query<{ ticket: string | null }>(acquire(this.#first, this.#attempt))
    if (stood.rows[0]?.ticket == null) throw new Error('there was no place in line')
    this.#token = token
    this.#first = (this.#first + 1) % this.#size
    this.#attempt += 1
  }
}

function acquire(holder: number, attempt: number): { name: string; text: string; values: unknown[] } {
  return {
    name: 'acquire',
    text: 'select token, ticket from fencepost.acquire($1::text[], $2::uuid, $3::bigint, p_stand => true)',
    values: [[lease], holderId(holder), attempt],
  }
}
