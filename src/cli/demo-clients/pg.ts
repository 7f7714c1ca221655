import { Pool, type PoolClient } from 'pg'
import { fencedTransaction } from '../../fence/fenced-transaction.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

export async function open(url: string): Promise<DemoClient> {
  const pool = new Pool({ connectionString: url, max: 1 })
  pool.on('error', () => {})
  return {
    fenced: (fence, write) => fencedTransaction(fence, pool, (client) => draw(client, write)),
    async unfenced(write) {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await draw(client, write)
        await client.query('commit')
      } catch (error) {
        await client.query('rollback')
        throw error
      } finally {
        client.release()
      }
    },
    close: () => pool.end(),
  }
}

async function draw(client: PoolClient, { balance, token }: DemoWrite): Promise<void> {
  const values = [balance, token.toString()]
  await client.query('insert into fencepost_demo_line (balance, fence_token) values ($1, $2)', values)
  await client.query('update fencepost_demo set balance = $1, fence_token = $2 where id = 1', values)
}
