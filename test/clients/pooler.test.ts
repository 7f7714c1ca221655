import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import type { DemoClient } from '../../src/cli/demo-clients/demo-client.ts'
import { demoClientReason, openDemoClient } from '../../src/cli/demo-clients/registry.ts'
import { fenceOptions } from '../../src/cli/demo-clients/program.ts'
import type { Fence } from '../../src/fence/fence.ts'
import { refusalOf } from '../../src/fence/refusal.ts'
import type { Token } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()
const reason = pgbouncerReason()
const psqlReason = await demoClientReason('psql')
const why = reason === undefined ? '' : ` (skipped: ${reason})`

describe.skipIf(reason !== undefined).each([why])('behind PgBouncer in transaction mode%s', () => {
  let bouncer: PgBouncer

  beforeAll(async () => {
    await database.query(`create table fencepost_demo
      (id integer primary key, balance integer not null, fence_token bigint not null default 0)`)
    await database.query(`create table fencepost_demo_line
      (id integer primary key generated always as identity, balance integer not null, fence_token bigint not null)`)
    await database.query('insert into fencepost_demo (id, balance) values (1, 100)')
    await database.query(`select fencepost.protect('fencepost_demo', 'pooled')`)
    bouncer = await PgBouncer.start(database.url)
  })
  afterAll(() => bouncer?.stop())

  async function open(name: Parameters<typeof openDemoClient>[0]): Promise<DemoClient> {
    const url = new URL(bouncer.url)
    url.pathname = new URL(database.url).pathname
    const client = await openDemoClient(name, url.href)
    onTestFinished(() => client.close())
    return client
  }

  async function grant(): Promise<{ fence: Fence; token: bigint; holder: SqlHolder }> {
    const holder = await SqlHolder.join(database.pool)
    onTestFinished(() => holder.end())
    const token = (await holder.take('pooled')) as Token
    const term = { lease: 'pooled', token, holderId: holder.id, sequence: 'default' }
    return { fence: { term }, token, holder }
  }

  async function stamp(): Promise<string> {
    const [row] = await database.query<{ fence_token: string }>('select fence_token from fencepost_demo')
    return row!.fence_token
  }

  test.each(['pg', 'kysely', 'drizzle', 'prisma', 'knex', 'typeorm', 'postgres.js'] as const)(
    '%s writes with the SQL call, and is refused when its term is stale',
    async (name) => {
      const client = await open(name)
      const first = await grant()
      for (let turn = 0; turn < 5; turn += 1) {
        await client.fenced(first.fence, { balance: turn, token: first.token })
      }
      expect(await stamp()).toBe(first.token.toString())
      await first.holder.end()
      const second = await grant()
      await client.fenced(second.fence, { balance: 70, token: second.token })
      const stale = client.fenced(first.fence, { balance: 1, token: first.token })
      const error = await stale.then(
        () => undefined,
        (thrown: unknown) => thrown,
      )
      expect(refusalOf(error, first.fence)).toMatchObject({ code: 'STALE_TERM' })
      // The fence was of that transaction only.
      await expect(client.unfenced({ balance: 1, token: second.token })).rejects.toThrow()
      expect(await stamp()).toBe(second.token.toString())
    },
  )

  test.skipIf(psqlReason !== undefined)(
    'PGOPTIONS does not get through: the connection is refused',
    async () => {
      const { fence, token } = await grant()
      const client = await open('psql')
      const before = await stamp()
      await expect(client.fenced(fence, { balance: 1, token })).rejects.toThrow(
        'unsupported startup parameter',
      )
      expect(await stamp()).toBe(before)
      // The same goes for pg.
      vi.stubEnv('PGOPTIONS', fenceOptions(fence).PGOPTIONS)
      onTestFinished(() => void vi.unstubAllEnvs())
      const pg = await open('pg')
      await expect(pg.unfenced({ balance: 1, token })).rejects.toThrow('unsupported startup parameter')
    },
  )
})
