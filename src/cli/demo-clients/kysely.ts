import { type Generated, Kysely, PostgresDialect, type Transaction } from 'kysely'
import { Pool } from 'pg'
import { fencedTransaction } from '../../fence/fenced-transaction.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

interface Tables {
  fencepost_demo: { id: number; balance: number; fence_token: string }
  fencepost_demo_line: { id: Generated<number>; balance: number; fence_token: string }
}

export async function open(url: string): Promise<DemoClient> {
  const pool = new Pool({ connectionString: url, max: 1 })
  pool.on('error', () => {})
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
  return {
    fenced: (fence, write) => fencedTransaction(fence, db, (tx) => draw(tx, write)),
    unfenced: (write) => db.transaction().execute((tx) => draw(tx, write)),
    close: () => db.destroy(),
  }
}

async function draw(tx: Transaction<Tables>, { balance, token }: DemoWrite): Promise<void> {
  const values = { balance, fence_token: token.toString() }
  await tx.insertInto('fencepost_demo_line').values(values).execute()
  await tx.updateTable('fencepost_demo').set(values).where('id', '=', 1).execute()
}
