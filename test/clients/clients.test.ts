import { inspect } from 'node:util'
import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  onTestFinished,
  test,
  vi,
} from 'vitest'
import postgres from 'postgres'
import type { DemoClient, DemoWrite } from '../../src/cli/demo-clients/demo-client.ts'
import { demoClientReason, openDemoClient } from '../../src/cli/demo-clients/registry.ts'
import { type DemoClientName, demoClientNames } from '../../src/cli/demo-clients/names.ts'
import { fenceOptions } from '../../src/cli/demo-clients/program.ts'
import type { Fence } from '../../src/fence/fence.ts'
import { refusalOf } from '../../src/fence/refusal.ts'
import type { Token } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()

/** Everything that a quoting, a placeholder or an option could trip over. */
const lease = String.raw`shop 7: it's \ "50%" a?b $1 :x {y} – ü`
/** In a guard, braces of the lease's own name are doubled. */
const guard = lease.replaceAll(/[{}]/g, '$&$&')
const what = 'table public.fencepost_demo'

/** These are programs of the system; packages of npm are never missing. */
const programs: readonly DemoClientName[] = ['psql', 'psycopg', 'dbd-pg']

const reasons = new Map<DemoClientName, string | undefined>()
for (const name of programs) reasons.set(name, await demoClientReason(name))

const cases = demoClientNames.map((name) => {
  const reason = reasons.get(name)
  return { name, reason, title: reason === undefined ? name : `${name} (skipped: ${reason})` }
})

beforeEach(async () => {
  await database.query('drop table if exists fencepost_demo, fencepost_demo_line')
  await database.query(`create table fencepost_demo
    (id integer primary key, balance integer not null, fence_token bigint not null default 0)`)
  await database.query(`create table fencepost_demo_line
    (id integer primary key generated always as identity, balance integer not null, fence_token bigint not null)`)
  await database.query('insert into fencepost_demo (id, balance) values (1, 100)')
})
afterEach(() => vi.unstubAllEnvs())

/** Only the account: the line that is written before it shows whether the whole transaction is rolled back. */
async function protect(): Promise<void> {
  await database.query('select fencepost.protect($1, $2)', ['fencepost_demo', guard])
}

/** A term of a holder that ends with the test. */
async function grant(name: string): Promise<{ fence: Fence; token: bigint; holder: SqlHolder }> {
  const holder = await SqlHolder.join(database.pool)
  onTestFinished(() => holder.end())
  const token = await holder.take(name)
  const term = { lease: name, token: token as Token, holderId: holder.id, sequence: 'default' }
  return { fence: { term }, token, holder }
}

/** A term, and the token of a newer one that makes it stale. */
async function staleGrant(name: string): Promise<{ fence: Fence; token: bigint; current: bigint }> {
  const { fence, token, holder } = await grant(name)
  await holder.end()
  const next = await grant(name)
  return { fence, token, current: next.token }
}

const untouched = { account: { balance: 100, fence_token: '0' }, lines: [] }

async function state(): Promise<{ account: unknown; lines: unknown }> {
  const [account] = await database.query('select balance, fence_token from fencepost_demo where id = 1')
  return { account, lines: await database.query('select balance, fence_token from fencepost_demo_line') }
}

function written({ balance, token }: DemoWrite): { account: unknown; lines: unknown } {
  const row = { balance, fence_token: token.toString() }
  return { account: row, lines: [row] }
}

async function errorOf(attempt: Promise<unknown>): Promise<unknown> {
  try {
    await attempt
  } catch (error) {
    return error
  }
  throw new Error('the write was not refused')
}

/** Looked for with other means than those of refusalOf. */
function sqlStateIn(error: unknown): string | undefined {
  return /'(FP\d{3})'/.exec(inspect(error, { depth: 10 }))?.[1]
}

describe.each(cases)('$title', ({ name, reason }) => {
  describe.skipIf(reason !== undefined)('as a writer', () => {
    let client: DemoClient
    beforeAll(async () => {
      client = await openDemoClient(name, database.url)
    })
    afterAll(() => client?.close())

    test('a write under a valid fence is done, and carries its stamp', async () => {
      await protect()
      const { fence, token } = await grant(lease)
      const write = { balance: 70, token }
      await client.fenced(fence, write)
      expect(await state()).toEqual(written(write))
    })

    test('a write without any fence is refused, and nothing of its transaction remains', async () => {
      await protect()
      const { fence, token } = await grant(lease)
      const error = await errorOf(client.unfenced({ balance: 70, token }))
      expect(sqlStateIn(error)).toBe('FP005')
      expect(refusalOf(error, fence)).toMatchObject({ code: 'UNFENCED', what, guard })
      expect(await state()).toEqual(untouched)
    })

    test('a stale write is refused, and nothing of its transaction remains', async () => {
      await protect()
      const { fence, token, current } = await staleGrant(lease)
      const error = await errorOf(client.fenced(fence, { balance: 70, token }))
      expect(sqlStateIn(error)).toBe('FP001')
      expect(refusalOf(error, fence)).toMatchObject({
        code: 'STALE_TERM',
        lease,
        token,
        currentToken: current,
        by: 'lease',
      })
      expect(await state()).toEqual(untouched)
    })

    test('a write of an expired holder is refused, and nothing of its transaction remains', async () => {
      await protect()
      const { fence, token, holder } = await grant(lease)
      await holder.expire()
      const error = await errorOf(client.fenced(fence, { balance: 70, token }))
      expect(sqlStateIn(error)).toBe('FP002')
      expect(refusalOf(error, fence)).toMatchObject({ code: 'HOLDER_EXPIRED', lease, token })
      expect(await state()).toEqual(untouched)
    })

    test('a write under another lease is refused, and nothing of its transaction remains', async () => {
      await protect()
      const { fence, token } = await grant('another lease')
      const error = await errorOf(client.fenced(fence, { balance: 70, token }))
      expect(sqlStateIn(error)).toBe('FP006')
      expect(refusalOf(error, fence)).toMatchObject({ code: 'WRONG_LEASE', what, guard })
      expect(await state()).toEqual(untouched)
    })

    // The setting of a session is looked at by protected tables only; the call of fence() needs none.
    test(`where the table is not protected its stale write is ${programs.includes(name) ? 'done' : 'refused'}`, async () => {
      const { fence, token } = await staleGrant(lease)
      const write = { balance: 70, token }
      if (programs.includes(name)) {
        await client.fenced(fence, write)
        expect(await state()).toEqual(written(write))
      } else {
        expect(sqlStateIn(await errorOf(client.fenced(fence, write)))).toBe('FP001')
        expect(await state()).toEqual(untouched)
      }
    })

    test('the client goes on after a refusal', async () => {
      await protect()
      const stale = await staleGrant('another lease')
      await errorOf(client.fenced(stale.fence, { balance: 1, token: stale.token }))
      const { fence, token } = await grant(lease)
      await client.fenced(fence, { balance: 70, token })
      expect(await state()).toEqual(written({ balance: 70, token }))
    })

    test('another error is no refusal, and comes through', async () => {
      await protect()
      await database.query('alter table fencepost_demo add constraint is_covered check (balance >= 0)')
      const { fence, token } = await grant(lease)
      const error = await errorOf(client.fenced(fence, { balance: -1, token }))
      expect(inspect(error, { depth: 10 })).toMatch(/23514|is_covered/)
      expect(refusalOf(error, fence)).toBeUndefined()
      expect(await state()).toEqual(untouched)
    })

    test('without the fence and the protection the stale write lands', async () => {
      const { token } = await staleGrant(lease)
      await client.unfenced({ balance: 70, token })
      expect(await state()).toEqual(written({ balance: 70, token }))
    })
  })

  // Built on libpq or on pg, which read PGOPTIONS when they connect. postgres.js does not: see below.
  if (name === 'postgres.js') return

  describe.skipIf(reason !== undefined)('as it is, with PGOPTIONS', () => {
    /** The fence is in the environment, and the client is used as if there were none. */
    async function writeUnder(fence: Fence, write: DemoWrite): Promise<void> {
      vi.stubEnv('PGOPTIONS', fenceOptions(fence).PGOPTIONS)
      const client = await openDemoClient(name, database.url)
      try {
        await client.unfenced(write)
      } finally {
        await client.close()
      }
    }

    test('its write is done under a valid fence', async () => {
      await protect()
      const { fence, token } = await grant(lease)
      await writeUnder(fence, { balance: 70, token })
      expect(await state()).toEqual(written({ balance: 70, token }))
    })

    test('its stale write is refused, and lands where the table is not protected', async () => {
      const { fence, token } = await staleGrant(lease)
      const write = { balance: 70, token }
      await protect()
      expect(sqlStateIn(await errorOf(writeUnder(fence, write)))).toBe('FP001')
      expect(await state()).toEqual(untouched)
      await database.query(`select fencepost.unprotect('fencepost_demo')`)
      await writeUnder(fence, write)
      expect(await state()).toEqual(written(write))
    })
  })
})

describe('postgres.js with a setting of its connection', () => {
  async function writeUnder(connection: Record<string, string>): Promise<void> {
    const sql = postgres(database.url, { max: 1, connection })
    try {
      await sql`update fencepost_demo set balance = 70 where id = 1`
    } finally {
      await sql.end()
    }
  }
  const setting = ({ term }: Fence): Record<string, string> => ({
    'fencepost.fence': `${term.token}:${term.holderId}:${term.lease}`,
  })

  test('does not read PGOPTIONS', async () => {
    await protect()
    const { fence } = await grant(lease)
    vi.stubEnv('PGOPTIONS', fenceOptions(fence).PGOPTIONS)
    expect(sqlStateIn(await errorOf(writeUnder({})))).toBe('FP005')
  })

  test('its write is done under a valid fence, and refused under a stale one', async () => {
    await protect()
    const stale = await staleGrant(lease)
    expect(sqlStateIn(await errorOf(writeUnder(setting(stale.fence))))).toBe('FP001')
    expect(await state()).toEqual(untouched)
    await database.query('update fencepost.holder set ended_at = now() where ended_at is null')
    const { fence } = await grant(lease)
    await writeUnder(setting(fence))
    expect(await state()).toMatchObject({ account: { balance: 70 } })
  })
})
