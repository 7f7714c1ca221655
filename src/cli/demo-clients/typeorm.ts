import { DataSource, type EntityManager, EntitySchema } from 'typeorm'
import { fenceStatement } from '../../fence/fence.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

interface Row {
  id: number
  balance: number
  fenceToken: string
}

const columns = {
  balance: { type: 'integer' },
  fenceToken: { type: 'bigint', name: 'fence_token' },
} as const
const Account = new EntitySchema<Row>({
  name: 'Account',
  tableName: 'fencepost_demo',
  columns: { id: { type: 'integer', primary: true }, ...columns },
})
const Line = new EntitySchema<Row>({
  name: 'Line',
  tableName: 'fencepost_demo_line',
  columns: { id: { type: 'integer', primary: true, generated: true }, ...columns },
})

export async function open(url: string): Promise<DemoClient> {
  const source = new DataSource({ type: 'postgres', url, entities: [Account, Line], poolSize: 1 })
  await source.initialize()
  return {
    fenced: (fence, write) =>
      source.transaction(async (manager) => {
        const { text, values } = fenceStatement(fence.term)
        await manager.query(text, values)
        await draw(manager, write)
      }),
    unfenced: (write) => source.transaction((manager) => draw(manager, write)),
    close: () => source.destroy(),
  }
}

async function draw(manager: EntityManager, { balance, token }: DemoWrite): Promise<void> {
  const values = { balance, fenceToken: token.toString() }
  // TypeORM writes the generated key into the object that it is given.
  await manager.insert(Line, { ...values })
  await manager.update(Account, { id: 1 }, values)
}
