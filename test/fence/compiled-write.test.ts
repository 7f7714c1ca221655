import {
  CamelCasePlugin,
  type ExpressionBuilder,
  type Generated,
  type KyselyPlugin,
  OperationNodeTransformer,
  type ValueNode,
  sql,
} from 'kysely'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type Fence,
  type Fencepost,
  FencedRepository,
  type Lease,
  fencedTransaction,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()

interface Tables {
  accounts: {
    id: number
    status: string | null
    amount: Generated<number>
    tags: Generated<string[]>
    meta: Generated<object>
    fence_token: Generated<string>
  }
}

let fencepost: Fencepost
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query(`create table accounts (id integer primary key, status text, amount integer not null default 0,
    tags text[] not null default '{}', meta jsonb not null default '{}', fence_token bigint not null default 0)`)
  fencepost = await database.open()
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`compiled-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate accounts')
})

const db = () => database.kysely<Tables>({ max: 1 })

/** Counts how often a query is built: each is transformed once by each plugin. */
class Counting extends CamelCasePlugin {
  built = 0
  override transformQuery(args: Parameters<CamelCasePlugin['transformQuery']>[0]) {
    this.built += 1
    return super.transformQuery(args)
  }
}
Object.defineProperty(Counting, 'name', { value: 'CamelCasePlugin' })

interface Camel {
  accounts: { id: number; status: string | null; amount: Generated<number>; fenceToken: Generated<string> }
}

describe.each([
  ['in one statement', (of: Fence, write: (fence: Fence) => Promise<unknown>) => write(of)],
  [
    'in a fenced transaction',
    (of: Fence, write: (fence: Fence) => Promise<unknown>, source = db()) =>
      fencedTransaction(of, source, (tx) => write(tx)),
  ],
] as const)('a write of one row, %s', (_, run) => {
  test('is built once for each set of columns, whatever the values and the term', async () => {
    const counting = new Counting()
    const camel = database.kysely<Camel>().withPlugin(counting)
    const accounts = new FencedRepository(camel, 'accounts', { key: 'id', fenceColumn: 'fenceToken' })
    const write = async (turn: number): Promise<void> => {
      const held = await fencepost.acquire(`${lease.name}/turn`)
      await run(
        held,
        async (fence) => {
          await accounts.upsert(fence, { id: 1, status: `status ${turn}` })
          expect(await accounts.update(fence, 1, { amount: turn })).toEqual({
            id: 1,
            status: `status ${turn}`,
            amount: turn,
            tags: [],
            meta: {},
            fenceToken: held.token.toString(),
          })
          await accounts.insert(fence, { id: 2, status: null, amount: turn })
          expect(await accounts.delete(fence, 2)).toMatchObject({ id: 2, amount: turn })
          expect(await accounts.update(fence, 7, { amount: turn, status: undefined })).toBeUndefined()
        },
        camel as never,
      )
      await held.release()
    }
    await write(1)
    const { built } = counting
    expect(built).toBeGreaterThan(0)
    await write(2)
    expect(counting.built).toBe(built)
    const held = await fencepost.acquire(lease.name.replace('compiled', 'other'))
    await run(held, (fence) => accounts.update(fence, 1, { status: 'x', amount: 3 }), camel as never)
    expect(counting.built).toBeGreaterThan(built)
    await held.release()
  })

  test('takes expressions, arrays, objects and null, in turns', async () => {
    const source = db()
    const accounts = new FencedRepository(source, 'accounts', { key: 'id' })
    await run(
      lease,
      async (fence) => {
        await accounts.insert(fence, { id: 1, status: 'a' })
        await accounts.update(fence, 1, { amount: 5 })
        await accounts.update(fence, 1, { amount: sql`amount + 10` as never })
        await accounts.update(fence, 1, {
          amount: ((eb: ExpressionBuilder<Tables, 'accounts'>) => eb('amount', '+', 100)) as never,
        })
        expect(await accounts.update(fence, 1, { status: null })).toMatchObject({ amount: 115, status: null })
        expect(await accounts.update(fence, 1, { amount: 6 })).toMatchObject({ amount: 6 })
        const value = { tags: ['a', 'b'], meta: { deep: [1] } }
        expect(await accounts.update(fence, 1, value)).toMatchObject(value)
        await accounts.insert(fence, { id: 2, status: sql`'made'` as never })
        expect(await accounts.upsert(fence, { id: 2, amount: sql`40 + 2` as never })).toMatchObject({
          status: 'made',
          amount: 42,
        })
      },
      source as never,
    )
  })

  test('goes through a plugin that looks at values', async () => {
    class Shout extends OperationNodeTransformer {
      protected override transformValue(node: ValueNode, queryId?: { readonly queryId: string }): ValueNode {
        const value = super.transformValue(node, queryId)
        return value.value === 'quiet' ? { ...value, value: 'QUIET' } : value
      }
    }
    const plugin: KyselyPlugin = {
      transformQuery: ({ node, queryId }) => new Shout().transformNode(node, queryId),
      transformResult: async ({ result }) => result,
    }
    const source = db().withPlugin(plugin)
    const accounts = new FencedRepository(source, 'accounts', { key: 'id' })
    await run(
      lease,
      async (fence) => {
        await accounts.insert(fence, { id: 1, status: 'x' })
        for (const status of ['loud', 'quiet']) {
          // oxlint-disable-next-line no-await-in-loop -- One after the other.
          expect(await accounts.update(fence, 1, { status })).toMatchObject({
            status: status === 'quiet' ? 'QUIET' : 'loud',
          })
        }
      },
      source as never,
    )
  })
})
