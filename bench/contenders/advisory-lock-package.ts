import { peer } from '../peers.ts'
import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

interface AdvisoryLock {
  default(url: string): (name: string) => { tryLock(): Promise<(() => Promise<void>) | undefined> }
}

/** Opens a connection for each lock, as it is made: there is no pool to give it. */
export const advisoryLockPackage: Maker = async ({ server }) => {
  const createMutex = (peer('advisory-lock') as AdvisoryLock).default(server.url)
  return [
    {
      name: 'npm advisory-lock',
      server,
      durability: 'not durable',
      counts: [1, 8, 64],
      run: (workers, forMs) =>
        load(workers, forMs, async (worker) => {
          const unlock = await createMutex(`bench-${worker}`).tryLock()
          await unlock!()
        }),
    },
  ]
}
