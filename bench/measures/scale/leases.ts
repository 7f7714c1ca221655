import { Client } from 'pg'
import { type Curve, curve, sized } from '../../curve.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import { writeLeases } from '../../written-rows.ts'
import type { Measure } from '../measure.ts'
import { powers } from './sizes.ts'

export const scaleLeases: Measure<Curve> = {
  name: 'scale-leases',
  group: 'scale',
  what: 'acquire and release where 1 to 5,000,000 leases have been used before, cost ÷ that with one; less is better',
  async run(effort) {
    await using server = await BenchServer.start()
    const same = []
    const any = []
    for (const count of powers(5_000_000)) {
      const url = await server.createDatabase(`leases_${count}`)
      const fencepost = await server.open({ connectionString: url })
      await (await fencepost.acquire('lease-0')).release()
      const db = new Client({ connectionString: url })
      await db.connect()
      await writeLeases(db, count - 1)
      await db.end()
      const use = (choose: () => number) =>
        sized(server, count, 1, async () => (await fencepost.acquire(`lease-${choose()}`)).release())
      same.push(use(() => Math.floor(count / 2)))
      any.push(use(() => Math.floor(Math.random() * count)))
    }
    return await curve('leases', { 'one lease, again and again': same, 'any of the leases': any }, effort)
  },
}
