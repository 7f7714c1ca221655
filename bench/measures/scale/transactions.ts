import { Pool } from 'pg'
import { type Curve, curve, sized } from '../../curve.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import type { Lease } from '../../../src/index.ts'
import type { Measure } from '../measure.ts'

const counts = [1, 4, 16, 64, 256]

/** A connection for each transaction: PostgreSQL's own cost of so many of them is the first series. */
export const scaleTransactions: Measure<Curve> = {
  name: 'scale-transactions',
  group: 'scale',
  what: 'a transaction with one update, 1 to 256 in parallel, fenced by one lease, by a lease each and not, cost ÷ that of one; less is better',
  async run(effort) {
    const largest = counts.at(-1)!
    await using closing = new AsyncDisposableStack()
    const server = closing.use(
      await BenchServer.start({ settings: { max_connections: String(largest + 50) } }),
    )
    await server.createFloor()
    const fencepost = await server.open()
    const shared = await fencepost.acquire('bench-shared')
    const granted = await fencepost.acquireMany(Array.from({ length: largest }, (_, n) => `bench-${n}`))
    const own = [...granted.values()]
    const pool = new Pool({ connectionString: server.url, max: largest, idleTimeoutMillis: 0 })
    closing.defer(() => pool.end())
    const unfenced = async (worker: number): Promise<void> => {
      const client = await pool.connect()
      await client.query('begin')
      await client.query(update(worker))
      await client.query('commit')
      client.release()
    }
    const fenced = (leaseOf: (worker: number) => Lease) => (worker: number) =>
      leaseOf(worker).transaction(pool, (client) => client.query(update(worker)))
    const turn = (step: (worker: number) => Promise<unknown>) =>
      counts.map((size) => sized(server, size, size, step))
    return await curve(
      'transactions in parallel',
      {
        'fenced by one lease': turn(fenced(() => shared)),
        'fenced by a lease each': turn(fenced((worker) => own[worker]!)),
        'not fenced': turn(unfenced),
      },
      effort,
    )
  },
}

function update(worker: number): { name: string; text: string; values: unknown[] } {
  return { name: 'update', text: 'update floor set value = value + 1 where id = $1', values: [worker] }
}
