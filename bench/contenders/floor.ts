import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

/** Two prepared one-row UPDATEs by primary key, each committed: what every durable lock in a row has to do at least. */
export const floor: Maker = async ({ server }) => {
  await server.createFloor()
  const statement = { name: 'floor', text: 'update floor set value = value + 1 where id = $1' }
  return [
    {
      name: 'floor',
      server,
      durability: 'durable',
      run(workers, forMs) {
        const pool = server.pool(workers)
        return load(workers, forMs, async (worker) => {
          await pool.query({ ...statement, values: [worker] })
          await pool.query({ ...statement, values: [worker] })
        })
      },
    },
  ]
}
