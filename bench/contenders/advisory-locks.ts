import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

/** PostgreSQL's own: a session holds it for as long as it lives. No TTL, no token, nothing on disk. */
export const advisoryLocks: Maker = async ({ server }) => [
  {
    name: 'pg_try_advisory_lock',
    server,
    durability: 'not durable',
    counts: [1, 8, 64],
    run(workers, forMs) {
      const pool = server.pool(workers)
      return load(workers, forMs, async (worker) => {
        const client = await pool.connect()
        try {
          const values = [worker]
          await client.query({ name: 'lock', text: 'select pg_try_advisory_lock($1)', values })
          await client.query({ name: 'unlock', text: 'select pg_advisory_unlock($1)', values })
        } finally {
          client.release()
        }
      })
    },
  },
]
