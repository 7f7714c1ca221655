// A process that takes a lease of its own and gives it back, again and again, for as long as it is told. Answers with what it has done.
import { Fencepost } from '../../src/index.ts'
import { load } from '../rounds.ts'

/** Whether the lease draws its tokens from the sequence of all leases, or from one of its own. */
export type Order = 'shared' | 'own'

export interface Work {
  readonly latenciesMs: readonly number[]
  readonly cpuMs: number
}

const [url = '', index = ''] = process.argv.slice(2)
const fencepost = await Fencepost.open({ connectionString: url })
process.on('message', (message: string) => void work(message))
process.on('disconnect', () => process.exit())
process.send!('ready')

async function work(message: string): Promise<void> {
  const [order = '', forMs = ''] = message.split(' ')
  const options = (order as Order) === 'own' ? { sequence: `own-${index}` } : {}
  const before = process.cpuUsage()
  const { latenciesMs } = await load(1, Number(forMs), async () => {
    const lease = await fencepost.acquire(`${order}-${index}`, options)
    await lease.release()
  })
  const { user, system } = process.cpuUsage(before)
  process.send!({ latenciesMs, cpuMs: (user + system) / 1000 } satisfies Work)
}
