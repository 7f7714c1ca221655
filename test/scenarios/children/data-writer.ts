// A process that holds a lease of one database and writes to another, to be paused in the middle of a fenced transaction.
import { Pool } from 'pg'
import { Fencepost, FencepostError, fencedTransaction } from '../../../src/index.ts'

const [leasesUrl, dataUrl, name] = process.argv.slice(2)
const pool = new Pool({ connectionString: dataUrl!, max: 1 })
pool.on('error', () => {})
const fencepost = await Fencepost.open({ connectionString: leasesUrl!, minTtl: '100ms' })
const lease = await fencepost.acquire(name!, { ttl: '500ms' })
// A careless program, which does not look at what its process knows: only the databases can refuse it.
const fence = { term: lease.term }

const write = async (beforeWriting: () => Promise<void>): Promise<string> => {
  try {
    await fencedTransaction(
      fence,
      pool,
      async (client) => {
        await beforeWriting()
        await client.query('insert into written (token) values ($1)', [lease.token.toString()])
      },
      { idleTimeout: '500ms' },
    )
    return 'written'
  } catch (error) {
    return error instanceof FencepostError ? error.code : String(error)
  }
}

const whenTold = async (): Promise<void> => {
  process.send!({ state: 'inside', token: lease.token.toString() })
  await new Promise((resolve) => process.once('message', resolve))
}
process.send!({ inside: await write(whenTold), after: await write(async () => {}) })
await fencepost.close()
await pool.end()
process.disconnect()
