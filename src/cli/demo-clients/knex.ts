import knex, { type Knex } from 'knex'
import type { DemoClient, DemoWrite } from './demo-client.ts'

export async function open(url: string): Promise<DemoClient> {
  const db = knex({ client: 'pg', connection: url, pool: { min: 0, max: 1 } })
  return {
    fenced: (fence, write) =>
      db.transaction(async (tx) => {
        // Knex takes every question mark in raw SQL for a placeholder, also one in a lease's name: hence bindings.
        const { lease, token, holderId } = fence.term
        await tx.raw('select fencepost.fence(?, ?, ?)', [lease, token.toString(), holderId])
        await draw(tx, write)
      }),
    unfenced: (write) => db.transaction((tx) => draw(tx, write)),
    close: () => db.destroy(),
  }
}

async function draw(tx: Knex.Transaction, { balance, token }: DemoWrite): Promise<void> {
  const values = { balance, fence_token: token.toString() }
  await tx('fencepost_demo_line').insert(values)
  await tx('fencepost_demo').where({ id: 1 }).update(values)
}
