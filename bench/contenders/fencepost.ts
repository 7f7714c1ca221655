import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

export const fencepost: Maker = async ({ server }) => {
  const opened = await server.open()
  return [
    {
      name: 'fencepost',
      server,
      durability: 'durable',
      run: (workers, forMs) =>
        load(workers, forMs, async (worker) => {
          const lease = await opened.acquire(`bench-${worker}`)
          await lease.release()
        }),
    },
  ]
}
