import { Client } from 'pg'

export const client = new Client({ connectionString: process.env.DATABASE_URL })

/** A transaction of the term that `fencepost run` holds: the database refuses it when a newer one has been granted. */
export async function fenced(work) {
  await client.query('begin')
  const fence = process.env.FENCEPOST_FENCE_SQL
  if (fence !== undefined) await client.query(fence)
  const done = await work()
  await client.query('commit')
  return done
}
