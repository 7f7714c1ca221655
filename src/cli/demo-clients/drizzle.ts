import { eq, sql } from 'drizzle-orm'
import { type NodePgDatabase, drizzle } from 'drizzle-orm/node-postgres'
import { bigint, integer, pgTable } from 'drizzle-orm/pg-core'
import { Pool } from 'pg'
import { fenceLiteral } from '../../fence/fence.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

const columns = {
  balance: integer().notNull(),
  fenceToken: bigint('fence_token', { mode: 'bigint' }).notNull(),
}
const accounts = pgTable('fencepost_demo', { id: integer().primaryKey(), ...columns })
const lines = pgTable('fencepost_demo_line', {
  id: integer().primaryKey().generatedAlwaysAsIdentity(),
  ...columns,
})

export async function open(url: string): Promise<DemoClient> {
  const pool = new Pool({ connectionString: url, max: 1 })
  pool.on('error', () => {})
  const db = drizzle(pool)
  return {
    fenced: (fence, write) =>
      db.transaction(async (tx) => {
        await tx.execute(sql.raw(fenceLiteral(fence.term, {})))
        await draw(tx, write)
      }),
    unfenced: (write) => db.transaction((tx) => draw(tx, write)),
    close: () => pool.end(),
  }
}

async function draw(
  tx: Pick<NodePgDatabase, 'insert' | 'update'>,
  { balance, token }: DemoWrite,
): Promise<void> {
  const values = { balance, fenceToken: token }
  await tx.insert(lines).values(values)
  await tx.update(accounts).set(values).where(eq(accounts.id, 1))
}
