import { Client } from 'pg'
import { Fencepost } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

export const rows: Measure<readonly Figure[]> = {
  name: 'rows',
  group: 'scale',
  what: 'acquire and release of any of 1,000,000 leases that have been used before ÷ of any of 10,000; more is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const contender = async (database: string, count: number): Promise<Contender> => {
      const url = await server.createDatabase(database)
      const fencepost = await Fencepost.open({ connectionString: url })
      closing.defer(() => fencepost.close())
      // One that was really used, and copies of it under other names.
      await (await fencepost.acquire('lease-0')).release()
      const db = new Client({ connectionString: url })
      await db.connect()
      await db.query(
        `insert into fencepost.lease
         select copy.* from fencepost.lease l, generate_series(1, ${count - 1}) n,
                jsonb_populate_record(l, jsonb_build_object('name', 'lease-' || n)) copy`,
      )
      await db.query('vacuum analyze fencepost.lease')
      await db.query('checkpoint')
      await db.end()
      return {
        name: `${count.toLocaleString('en')} leases`,
        server,
        run: (workers, forMs) =>
          load(workers, forMs, async (worker) => {
            // Every worker has its own part of them, so that nobody waits for anybody.
            const among = Math.floor(Math.random() * Math.floor(count / workers))
            const lease = await fencepost.acquire(`lease-${among * workers + worker}`)
            await lease.release()
          }),
      }
    }
    const figures = await interleave(
      [await contender('few', 10_000), await contender('many', effort.isQuick ? 100_000 : 1_000_000)],
      [64],
      effort,
    )
    console.log(figureTable(figures))
    return figures
  },
}
