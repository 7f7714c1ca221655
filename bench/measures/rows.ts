import { Client } from 'pg'
import { Fencepost } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import { writeLeases } from '../written-rows.ts'
import type { Measure } from './measure.ts'

export const rows: Measure<readonly Figure[]> = {
  name: 'rows',
  group: 'scale',
  what: 'acquire and release where 1,000,000 leases have been used before ÷ where 10,000 have, of one lease for each worker and of any; more is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const contenders = async (database: string, count: number): Promise<readonly [Contender, Contender]> => {
      const shown = `${count.toLocaleString('en')} leases`
      const url = await server.createDatabase(database)
      const fencepost = await Fencepost.open({ connectionString: url })
      closing.defer(() => fencepost.close())
      // One that was really used, and copies of it under other names.
      await (await fencepost.acquire('lease-0')).release()
      const db = new Client({ connectionString: url })
      await db.connect()
      await writeLeases(db, count - 1)
      await db.end()
      const use = (name: string, choose: (worker: number, workers: number) => number): Contender => ({
        name,
        server,
        run: (workers, forMs) =>
          load(workers, forMs, async (worker) => {
            const lease = await fencepost.acquire(`lease-${choose(worker, workers)}`)
            await lease.release()
          }),
      })
      // Every worker has its own part of them, so that nobody waits for anybody.
      const share = (workers: number): number => Math.floor(count / workers)
      return [
        use(shown, (worker, workers) => worker * share(workers)),
        use(
          `any of ${shown}`,
          (worker, workers) => worker * share(workers) + Math.floor(Math.random() * share(workers)),
        ),
      ]
    }
    const few = await contenders('few', 10_000)
    const many = await contenders('many', effort.isQuick ? 100_000 : 1_000_000)
    const figures = await interleave([few[0], many[0], few[1], many[1]], [64], effort)
    console.log(figureTable(figures))
    return figures
  },
}
