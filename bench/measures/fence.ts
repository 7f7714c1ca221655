import { Fencepost } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

export const fence: Measure<readonly Figure[]> = {
  name: 'fence',
  group: 'throughput',
  what: 'a fenced transaction with one update ÷ the same transaction without the fence, and the same on a protected table; more is better',
  async run(effort) {
    await using server = await BenchServer.start()
    await server.createFloor()
    await server.createFloor('wall')
    const fencepost = await server.open()
    const held = await fencepost.acquire('bench-fence')
    await Fencepost.protect('wall', { connectionString: server.url, lease: 'bench-fence' })
    const unfenced: Contender = {
      name: 'unfenced',
      server,
      run(workers, forMs) {
        const pool = server.pool(workers)
        return load(workers, forMs, async (worker) => {
          const client = await pool.connect()
          await client.query('begin')
          await client.query(update('floor', worker))
          await client.query('commit')
          client.release()
        })
      },
    }
    const fenced = (name: string, table: string): Contender => ({
      name,
      server,
      run(workers, forMs) {
        const pool = server.pool(workers)
        return load(workers, forMs, (worker) =>
          held.transaction(pool, (client) => client.query(update(table, worker))),
        )
      },
    })
    const figures = await interleave(
      [unfenced, fenced('fenced', 'floor'), fenced('fenced, protected table', 'wall')],
      [1, 8, 64],
      effort,
    )
    console.log(figureTable(figures))
    return figures
  },
}

function update(table: string, worker: number): { name: string; text: string; values: unknown[] } {
  return { name: table, text: `update ${table} set value = value + 1 where id = $1`, values: [worker] }
}
