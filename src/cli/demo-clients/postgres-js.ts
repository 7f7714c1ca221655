import postgres, { type TransactionSql } from 'postgres'
import { fenceLiteral } from '../../fence/fence.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

export async function open(url: string): Promise<DemoClient> {
  const sql = postgres(url, { max: 1, onnotice: () => {} })
  return {
    async fenced(fence, write) {
      await sql.begin(async (tx) => {
        await tx.unsafe(fenceLiteral(fence.term, {}))
        await draw(tx, write)
      })
    },
    async unfenced(write) {
      await sql.begin((tx) => draw(tx, write))
    },
    close: () => sql.end(),
  }
}

async function draw(tx: TransactionSql, { balance, token }: DemoWrite): Promise<void> {
  const values = { balance, fence_token: token.toString() }
  await tx`insert into fencepost_demo_line ${tx(values)}`
  await tx`update fencepost_demo set ${tx(values)} where id = 1`
}
