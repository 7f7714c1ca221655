import { type Pool, type PoolClient, Query } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Fencepost, type Lease, OutcomeUnknownError } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { tellLate } from './late-status.ts'

const database = useDatabase()

let fencepost: Fencepost
let pool: Pool
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query('create table notes (text text not null)')
  fencepost = await database.open()
  pool = database.newPool()
  pool.on('connect', tellLate)
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`in-flight-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate notes')
})

const texts = async (): Promise<unknown[]> =>
  (await database.query('select text from notes order by text')).map((row) => row['text'])

const add = (client: PoolClient, text: string): Promise<unknown> =>
  client.query('insert into notes values ($1)', [text])

/** A fenced session with an open transaction, and a fenced transaction: the work is the same for both. */
const ways = [
  [
    'a fenced session',
    (work: (client: PoolClient) => Promise<unknown>) =>
      lease.session(pool, async (client) => {
        await client.query('begin')
        await work(client)
      }),
  ],
  ['a fenced transaction', (work: (client: PoolClient) => Promise<unknown>) => lease.transaction(pool, work)],
] as const

const ends = [
  `insert into notes values ('before'); commit; select pg_sleep(0.1)`,
  `insert into notes values ('before'); commit; select pg_sleep(0.1); select 1 / 0`,
  `insert into notes values ('before'); commit; begin; select pg_sleep(0.1)`,
  `select pg_sleep(0.1); rollback`,
]

describe.each(ways)('what sends itself in %s', (_, run) => {
  test.each(ends)('%j: no statement gets past it', async (text) => {
    let refusal: unknown
    const writing = run(async (client) => {
      client.query(new Query(text)).on('error', () => {})
      refusal = await add(client, 'unfenced').catch((error: unknown) => error)
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(refusal).toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual(text.includes('before') ? ['before'] : [])
  })

  test.each(ends)('%j: nothing else that sends itself gets past it, heard or not', async (text) => {
    const refusals: unknown[] = []
    const writing = run(async (client) => {
      const insert = (): Query => new Query(`insert into notes values ('unfenced')`)
      client.query(new Query(text)).on('error', () => {})
      client.query(insert())
      const heard = client.query(insert())
      refusals.push(await new Promise((resolve) => heard.on('error', resolve)))
      refusals.push(
        await new Promise((resolve) =>
          (client.query as (...args: unknown[]) => unknown)(insert(), resolve),
        ).catch((error: unknown) => error),
      )
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    const refusal = expect.objectContaining({ code: 'TRANSACTION_ENDED' }) as unknown
    expect(refusals).toEqual([refusal, refusal])
    expect(await texts()).toEqual(text.includes('before') ? ['before'] : [])
  })

  test.each(ends)('%j: work that returns is told what it has done', async (text) => {
    const writing = run(async (client) => {
      client.query(new Query(text)).on('error', () => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual(text.includes('before') ? ['before'] : [])
  })

  test('goes out after a statement that is not awaited, and is heard to its end', async () => {
    const heard: unknown[] = []
    const writing = run(async (client) => {
      const first = add(client, 'a')
      const rows = client.query(new Query(`select text, pg_sleep(0.05) from notes`))
      rows.on('row', (row: { text: string }) => heard.push(row.text))
      const again = client.query(new Query(`select 'again' as text`))
      again.on('row', (row: { text: string }) => heard.push(row.text))
      await add(client, 'b')
      await first
      expect(heard).toEqual(['a', 'again'])
      client.query(new Query(`insert into notes values ('c')`))
    })
    await writing.catch((error: unknown) => expect(error).toMatchObject({ code: 'TRANSACTION_ABORTED' }))
    expect(heard).toHaveLength(2)
  })

  test('is refused as transaction control before it is sent', async () => {
    await run(async (client) => {
      await add(client, 'x')
      expect(() => client.query(new Query('commit'))).toThrow()
      throw new Error('no')
    }).catch((error: unknown) => expect(error).toMatchObject({ message: 'no' }))
    expect(await texts()).toEqual([])
  })
})

describe('work of a fenced session that returns', () => {
  test('is committed when its transaction was, after what sent itself', async () => {
    await lease.session(pool, async (client) => {
      await client.query('begin')
      client.query(new Query(`insert into notes values ('a'); select pg_sleep(0.05)`))
      await client.query('commit')
      await client.query('begin')
      await add(client, 'b')
      await client.query('commit')
    })
    expect(await texts()).toEqual(['a', 'b'])
  })

  test('while something runs on that may end its transaction does not know the outcome', async () => {
    const blocker = await database.session()
    await blocker.query('begin')
    await blocker.query('lock table notes')
    const left = async (text: string): Promise<unknown> =>
      lease
        .session(pool, async (client) => {
          await client.query('begin')
          client.query(new Query(text)).on('error', () => {})
        })
        .catch((error: unknown) => error)
    const [unknown, aborted] = await Promise.all([
      left(`insert into notes values ('perhaps'); commit`),
      left(`insert into notes values ('gone')`),
    ])
    await blocker.query('rollback')
    expect(unknown).toBeInstanceOf(OutcomeUnknownError)
    expect(aborted).toMatchObject({ code: 'TRANSACTION_ABORTED' })
    // What is still running when its session has ended is not known either; the text that only inserts is never committed.
    const busy = `select from pg_stat_activity where query like '%gone%' and pid <> pg_backend_pid()`
    await expect.poll(() => database.query(busy)).toEqual([])
    expect(await texts()).not.toContain('gone')
  })
})
