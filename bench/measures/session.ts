import { Fencepost } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

export const session: Measure<readonly Figure[]> = {
  name: 'session',
  group: 'throughput',
  what: 'one update of a protected table, in a session that has its fence (PGOPTIONS) ÷ the same on a plain table; more is better',
  async run(effort) {
    await using server = await BenchServer.start()
    await server.createFloor()
    await server.createFloor('wall')
    const fencepost = await server.open()
    const held = await fencepost.acquire('bench-session')
    await Fencepost.protect('wall', { connectionString: server.url, lease: 'bench-session' })
    const options = held.environment['FENCEPOST_PGOPTIONS']
    const single = (name: string, table: string): Contender => ({
      name,
      server,
      run(workers, forMs) {
        const pool = server.pool(workers, { options })
        const text = `update ${table} set value = value + 1 where id = $1`
        return load(workers, forMs, (worker) => pool.query({ name: table, text, values: [worker] }))
      },
    })
    const figures = await interleave(
      [single('plain table', 'floor'), single('protected table', 'wall')],
      [1, 8, 64],
      effort,
    )
    console.log(figureTable(figures))
    return figures
  },
}
