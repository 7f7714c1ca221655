import { Client } from 'pg'
import { type Curve, curve, sized } from '../../curve.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import { holderId, writeHeldLeases, writeHolders } from '../../written-rows.ts'
import type { Measure } from '../measure.ts'
import { powers } from './sizes.ts'

/**
 * The holders are rows that live for a day, each with a lease. Their heartbeats are what the library sends, on one connection: 5,000
 * connections are no matter of fencepost's. `crowd` has real ones.
 */
export const scaleHolders: Measure<Curve> = {
  name: 'scale-holders',
  group: 'scale',
  what: 'a heartbeat, and acquire and release, where 1 to 5,000 holders are alive, cost ÷ that with one; less is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const beats = []
    const grants = []
    for (const count of powers(5000)) {
      const url = await server.createDatabase(`holders_${count}`)
      const fencepost = await server.open({ connectionString: url })
      const db = new Client({ connectionString: url })
      closing.defer(() => db.end())
      await db.connect()
      await writeHolders(db, count)
      await writeHeldLeases(db, count)
      const beat = async (): Promise<void> => {
        const { rows } = await db.query<{ alive: boolean }>({
          name: 'beat',
          text: 'select fencepost.beat($1::uuid) as alive',
          values: [holderId(Math.floor(Math.random() * count))],
        })
        if (rows[0]?.alive !== true) throw new Error('a holder has ended')
      }
      beats.push(sized(server, count, 1, beat))
      grants.push(sized(server, count, 1, async () => (await fencepost.acquire('free')).release()))
    }
    return await curve('holders', { 'a heartbeat': beats, 'acquire and release': grants }, effort)
  },
}
