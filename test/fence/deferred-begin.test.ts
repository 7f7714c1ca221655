import { Kysely, PostgresDialect, sql } from 'kysely'
import { type Client, Pool, type PoolConfig, Query, types } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { OpeningQuery } from '../../src/fence/opening-query.ts'
import { Opening } from '../../src/fence/opening.ts'
import {
  type Fencepost,
  type FencedTransactionOptions,
  type Lease,
  StaleTermError,
  fencedTransaction,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { tellLate } from './late-status.ts'

const database = useDatabase()

let fencepost: Fencepost
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query('create table notes (id serial primary key, text text not null unique)')
  fencepost = await database.open()
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`deferred-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate notes')
})

const texts = async (): Promise<unknown[]> =>
  (await database.query('select text from notes order by id')).map((row) => row['text'])

/** Somebody else is granted the lease. */
async function steal(): Promise<void> {
  await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
  const thief = await database.open()
  await thief.acquire(lease.name)
}

const begin = 'with-first-statement'

/** The rows of a statement, in a fenced transaction that may begin with it. */
type Run = (text: string, values?: unknown[]) => Promise<unknown[]>

interface Way {
  readonly pool: Pool
  /** How often the server has said that it is ready. */
  readonly trips: number
  transaction<T>(work: (run: Run) => Promise<T>, options?: FencedTransactionOptions): Promise<T>
}

function counted(config: PoolConfig): { pool: Pool; trips: () => number } {
  const pool = database.newPool({ max: 1, ...config })
  let trips = 0
  pool.on('connect', (client) => {
    tellLate(client)
    client.connection.on('readyForQuery', () => (trips += 1))
  })
  return { pool, trips: () => trips }
}

async function onPool(config: PoolConfig = {}): Promise<Way> {
  const { pool, trips } = counted(config)
  await pool.query('select 1')
  return {
    pool,
    get trips() {
      return trips()
    },
    transaction: (work, options) =>
      fencedTransaction(
        { term: lease.term },
        pool,
        (client) => work(async (text, values) => (await client.query<object>(text, values)).rows),
        { begin, ...options },
      ),
  }
}

async function onKysely(config: PoolConfig = {}): Promise<Way> {
  const { pool, trips } = counted(config)
  const db = new Kysely<object>({ dialect: new PostgresDialect({ pool }) })
  // The first one of a connection shows the client.
  await lease.transaction(db, async () => {})
  return {
    pool,
    get trips() {
      return trips()
    },
    transaction: (work, options) =>
      fencedTransaction(
        { term: lease.term },
        db,
        (tx) =>
          work(
            async (text, values = []) =>
              (await tx.executeQuery({ ...sql.raw(text).compile(db), parameters: values })).rows,
          ),
        { begin, ...options },
      ),
  }
}

describe.each([
  ['on a pg pool', onPool],
  ['on Kysely', onKysely],
])('a fenced transaction that begins with its first statement, %s', (_, open) => {
  test('saves a round trip, and is fenced with it', async () => {
    const way = await open()
    const before = way.trips
    const fence = await way.transaction(
      (run) =>
        run(
          `insert into notes (text) values ($1) returning current_setting('fencepost.fence') as fence, id is null as none`,
          ['first'],
        ),
      { isolationLevel: 'repeatable read' },
    )
    expect(way.trips - before).toBe(2)
    expect(fence).toEqual([{ fence: expect.stringContaining(`:${lease.name}`) as unknown, none: false }])
    await way.transaction((run) => run(`insert into notes (text) values ('plain');`), { begin: 'at-once' })
    expect(way.trips - before).toBe(5)
    await way.transaction((run) => run(`insert into notes (text) values ('again') ; `))
    expect(way.trips - before).toBe(7)
    expect(await texts()).toEqual(['first', 'plain', 'again'])
  })

  test('has the isolation level and the bounds that were asked for', async () => {
    const way = await open()
    const rows = await way.transaction(
      (run) =>
        run(`select current_setting('transaction_isolation') as level,
          current_setting('idle_in_transaction_session_timeout') as idle`),
      { isolationLevel: 'serializable', idleTimeout: '7s' },
    )
    expect(rows).toEqual([{ level: 'serializable', idle: '7s' }])
  })

  test('holds off the next term until it has ended', async () => {
    const way = await open()
    const other = await database.open()
    await way.transaction(async (run) => {
      await run(`insert into notes (text) values ('held')`)
      await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
      expect(await other.tryAcquire(lease.name)).toBeNull()
    })
    expect(await other.tryAcquire(lease.name)).not.toBeNull()
  })

  test('under a stale term: the statement and the transaction are refused, swallowed or not, and nothing is written', async () => {
    const way = await open()
    await steal()
    const refusals: unknown[] = []
    const writing = way.transaction(async (run) => {
      for (const text of ['first', 'second']) {
        // oxlint-disable-next-line no-await-in-loop -- One after the other.
        await run('insert into notes (text) values ($1)', [text]).catch((error: unknown) =>
          refusals.push(error),
        )
      }
      return 'done'
    })
    await expect(writing).rejects.toThrow(StaleTermError)
    const refusal = await writing.catch((error: unknown) => error)
    expect(refusals).toEqual([refusal, refusal])
    expect(await texts()).toEqual([])
    expect(way.pool.idleCount).toBe(1)
    const { rows } = await way.pool.query('select pg_current_xact_id_if_assigned() as xid')
    expect(rows).toEqual([{ xid: null }])
  })

  test('with a first statement that fails passes its error on, and is rolled back when that is swallowed', async () => {
    const way = await open()
    await expect(way.transaction((run) => run('select 1 / $1::integer as n', [0]))).rejects.toMatchObject({
      code: '22012',
    })
    await expect(way.transaction((run) => run('no statement'))).rejects.toMatchObject({ code: '42601' })
    const swallowing = way.transaction(async (run) => {
      await run('select 1 / 0').catch(() => {})
      await run(`insert into notes (text) values ('lost')`).catch(() => {})
    })
    await expect(swallowing).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
    expect(await texts()).toEqual([])
    await way.transaction((run) => run(`insert into notes (text) values ('after')`))
    expect(await texts()).toEqual(['after'])
  })

  test('whose work throws after it is rolled back', async () => {
    const way = await open()
    const error = new Error('no')
    const writing = way.transaction(async (run) => {
      await run(`insert into notes (text) values ('gone')`)
      throw error
    })
    await expect(writing).rejects.toBe(error)
    expect(await texts()).toEqual([])
  })

  test('and has none sends nothing, stale or not', async () => {
    const way = await open()
    await steal()
    const before = way.trips
    expect(await way.transaction(async () => 'done')).toBe('done')
    await expect(way.transaction(() => Promise.reject(new Error('no')))).rejects.toThrow('no')
    expect(way.trips - before).toBe(0)
  })

  test.each(['commit', '/* so */ rollback', 'begin', ';commit'])(
    'may not begin with %j: nothing is sent',
    async (text) => {
      const way = await open()
      const before = way.trips
      await expect(way.transaction((run) => run(text))).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(way.trips - before).toBe(0)
    },
  )

  test.each([
    [`insert into notes (text) values ('a'); insert into notes (text) values ('b')`, ['a', 'b']],
    [`insert into notes (text) values ('a;b')`, ['a;b']],
    ['', []],
  ])('begins on its own before %j', async (text, written) => {
    const way = await open()
    const before = way.trips
    await way.transaction(async (run) => void (await run(text)))
    expect(way.trips - before).toBe(3)
    expect(await texts()).toEqual(written)
  })

  test.each(['select 1; commit', 'select 1; commit; begin', 'select 1; rollback and chain'])(
    'hears of its end in %j',
    async (text) => {
      const way = await open()
      const writing = way.transaction(async (run) => {
        await run(text).catch(() => {})
        await run(`insert into notes (text) values ('unfenced')`).catch(() => {})
      })
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(await texts()).toEqual([])
    },
  )

  test('where transactions are read-only by default says so, twice', async () => {
    const way = await open()
    await way.pool.query('set default_transaction_read_only = on')
    let refusal: unknown
    const writing = way.transaction(async (run) => {
      await run(`insert into notes (text) values ('x')`).catch((error: unknown) => (refusal = error))
    })
    await expect(writing).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '25006' })
    await expect(writing).rejects.toBe(refusal)
  })

  test('sends nothing once it has ended', async () => {
    const way = await open()
    let kept: Run | undefined
    await way.transaction(async (run) => {
      kept = run
    })
    await expect(kept!('select 1')).rejects.toThrow()
    let late: Run | undefined
    await way.transaction(async (run) => {
      late = run
      await run(`insert into notes (text) values ('in time')`)
    })
    await expect(late!(`insert into notes (text) values ('too late')`)).rejects.toThrow()
    expect(await texts()).toEqual(['in time'])
  })

  test('whose connection is cut in the middle has written nothing', async () => {
    const proxy = await TcpProxy.start(database.url)
    onTestFinished(() => proxy.stop())
    const way = await open({ connectionString: proxy.url })
    const outcome = async (options: FencedTransactionOptions, where: string): Promise<unknown> => {
      await way.pool.query('select 1')
      if (open === onKysely) await way.transaction((run) => run('select 1'))
      proxy.onReply((_reply, sent) => (sent.includes(where) ? 'cut' : 'pass'))
      const error = await way
        .transaction((run) => run(`insert into notes (text) values ('cut')`), options)
        .catch((failure: unknown) => failure)
      proxy.onReply(undefined)
      return error
    }
    const atOnce = await outcome({ begin: 'at-once' }, 'fencepost.fence')
    const together = await outcome({}, 'fencepost.fence')
    expect(together).toMatchObject({ code: (atOnce as { code: string }).code })
    expect(await outcome({}, 'commit')).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await texts()).toEqual(['cut'])
  })

  test.skipIf(pgbouncerReason() !== undefined)('works behind PgBouncer in transaction mode', async () => {
    await using bouncer = await PgBouncer.start(database.url)
    const url = new URL(bouncer.url)
    url.pathname = new URL(database.url).pathname
    const ways = await Promise.all([1, 2, 3, 4].map(() => open({ connectionString: url.href })))
    await Promise.all(
      ways.map(async (way, index) => {
        for (const turn of [1, 2, 3]) {
          // oxlint-disable-next-line no-await-in-loop -- One after the other.
          await way.transaction((run) => run('insert into notes (text) values ($1)', [`${index} ${turn}`]))
        }
      }),
    )
    expect(await texts()).toHaveLength(12)
    await steal()
    await expect(ways[0]!.transaction((run) => run('select 1'))).rejects.toThrow(StaleTermError)
    await Promise.all(ways.map(({ pool }) => pool.end()))
  })
})

describe('on a pg pool the first statement', () => {
  const small = (config: PoolConfig = {}): Pool => database.newPool({ max: 1, ...config })

  test('may be a prepared one, and is prepared anew after a refusal', async () => {
    const pool = small()
    const { term } = lease
    const add = (text: string) => ({
      name: 'add',
      text: 'insert into notes (text) values ($1)',
      values: [text],
    })
    const stale = { ...term, token: (term.token - 1n) as typeof term.token }
    const write = (text: string, under = term) =>
      fencedTransaction({ term: under }, pool, (client) => client.query(add(text)), { begin })
    // Refused before the server has seen the text, and again when it has.
    await expect(write('x', stale)).rejects.toThrow(StaleTermError)
    await write('a')
    await write('b')
    await expect(write('x', stale)).rejects.toThrow(StaleTermError)
    await write('c')
    await pool.query(add('d'))
    expect(await texts()).toEqual(['a', 'b', 'c', 'd'])
  })

  test('is fenced by all terms of its fence', async () => {
    const other = await fencepost.acquire(`${lease.name}/other`)
    const terms = [lease.term, other.term]
    const write = (text: string) =>
      fencedTransaction(
        { term: lease.term, terms },
        small(),
        (client) => client.query('insert into notes (text) values ($1)', [text]),
        { begin },
      )
    await write('both')
    await other.release()
    await expect(write('one')).rejects.toMatchObject({ code: 'STALE_TERM', lease: other.name })
    expect(await texts()).toEqual(['both'])
  })

  test('may be asked for by callback, together with others, and not awaited', async () => {
    const pool = small()
    await lease.transaction(
      pool,
      (client) =>
        new Promise((resolve, reject) => {
          client.query(`insert into notes (text) values ('a')`, (error, result) =>
            error ? reject(error) : resolve(result),
          )
        }),
      { begin },
    )
    await lease.transaction(
      pool,
      (client) =>
        Promise.all(
          ['b', 'c', 'd'].map((text) => client.query('insert into notes (text) values ($1)', [text])),
        ),
      { begin },
    )
    await lease.transaction(
      pool,
      async (client) => void client.query(`insert into notes (text) values ('e')`),
      { begin },
    )
    expect(await texts()).toEqual(['a', 'b', 'c', 'd', 'e'])
  })

  test('is read by the client’s own parsers, as an array where that is asked for', async () => {
    const pool = small()
    pool.on('connect', (client) => client.setTypeParser(types.builtins.INT8, (value) => `n${value}`))
    const result = await lease.transaction(
      pool,
      (client) => client.query({ text: 'select 7::bigint, $1::text', values: ['x'], rowMode: 'array' }),
      { begin },
    )
    expect(result).toMatchObject({ command: 'SELECT', rowCount: 1, rows: [['n7', 'x']] })
  })

  test('that the client cannot send leaves the transaction open', async () => {
    const pool = small()
    await lease.transaction(
      pool,
      async (client) => {
        const wrong: unknown = { text: 'select 1', values: 'none' }
        await expect(client.query(wrong as { text: string })).rejects.toThrow(/must be an array/)
        const broken = { toPostgres: (): never => { throw new Error('no value') } } // prettier-ignore
        await expect(client.query('select $1::text', [broken])).rejects.toThrow('no value')
        await client.query(`insert into notes (text) values ('after')`)
      },
      { begin },
    )
    expect(await texts()).toEqual(['after'])
  })

  test('that sends itself comes after the beginning, and hears of a refusal', async () => {
    const pool = small()
    const { term } = lease
    const write = () =>
      fencedTransaction(
        { term },
        pool,
        async (client) => {
          const query = client.query(new Query(`insert into notes (text) values ('self') returning text`))
          return new Promise((resolve, reject) => query.on('row', resolve).on('error', reject))
        },
        { begin },
      )
    expect(await write()).toEqual({ text: 'self' })
    await steal()
    await expect(write()).rejects.toThrow(StaleTermError)
    expect(await texts()).toEqual(['self'])
  })

  test.each([{ pipeline: true }, { query_timeout: 10_000 }] as PoolConfig[])(
    'is sent with %o as well',
    async (config) => {
      const pool = small(config)
      await lease.transaction(pool, (client) => client.query(`insert into notes (text) values ('sent')`), {
        begin,
      })
      expect(await texts()).toEqual(['sent'])
      const { term } = lease
      await steal()
      const writing = fencedTransaction({ term }, pool, (client) => client.query('select 1'), { begin })
      await expect(writing).rejects.toThrow(StaleTermError)
    },
  )

  test('that takes longer than the client waits fails the transaction', async () => {
    const pool = small({ query_timeout: 100 })
    const writing = lease.transaction(
      pool,
      (client) => client.query(`insert into notes (text) select 'late' from pg_sleep(0.4)`),
      { begin },
    )
    await expect(writing).rejects.toThrow()
    expect(await texts()).toEqual([])
  })
})

test('on Kysely a stream comes after the beginning', async () => {
  class Cursor extends Query {
    readonly #rows: Promise<unknown[]>
    #isRead = false
    constructor(text: string, values: unknown[]) {
      super(text, values)
      const rows: unknown[] = []
      this.on('row', (row) => rows.push(row))
      this.#rows = new Promise((resolve, reject) => {
        this.on('end', () => resolve(rows)).on('error', reject)
      })
    }
    async read(): Promise<unknown[]> {
      if (this.#isRead) return []
      this.#isRead = true
      return this.#rows
    }
    async close(): Promise<void> {}
  }
  const db = new Kysely<{ notes: { text: string } }>({
    dialect: new PostgresDialect({ pool: database.newPool({ max: 1 }), cursor: Cursor as never }),
  })
  const { term } = lease
  await lease.transaction(db, async () => {})
  const read = () =>
    fencedTransaction(
      { term },
      db,
      async (tx) => {
        const rows: unknown[] = []
        for await (const row of tx.selectFrom('notes').select('text').stream()) rows.push(row)
        return rows
      },
      { begin },
    )
  await database.query(`insert into notes (text) values ('streamed')`)
  expect(await read()).toEqual([{ text: 'streamed' }])
  await steal()
  await expect(read()).rejects.toThrow(StaleTermError)
})

test('the first transaction of a Kysely’s connection begins at once, and its log shows what is sent', async () => {
  const statements: string[] = []
  const db = new Kysely<{ notes: { text: string } }>({
    dialect: new PostgresDialect({ pool: database.newPool({ max: 1 }) }),
    log: (event) => void statements.push(event.query.sql),
  })
  for (const text of ['a', 'b']) {
    // oxlint-disable-next-line no-await-in-loop -- One after the other.
    await lease.transaction(db, (tx) => tx.insertInto('notes').values({ text }).execute(), { begin })
  }
  const insert = expect.stringMatching(/^insert/) as unknown
  expect(statements).toEqual([
    expect.stringMatching(/^begin; select fencepost/),
    insert,
    'commit',
    insert,
    'commit',
  ])
  expect(await texts()).toEqual(['a', 'b'])
})

test('an unknown beginning is refused', async () => {
  const options = { begin: 'later' as 'at-once' }
  await expect(lease.transaction(database.pool, async () => {}, options)).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    argument: 'begin',
  })
})

describe('one message', () => {
  const open = async (): Promise<Client> => database.session()

  async function send(client: Client, [first = '', literal = '']: string[]): Promise<unknown> {
    return new Promise((resolve) => {
      const query = OpeningQuery.of(
        client,
        new Opening(client, first, [{ literal, values: [] }]),
        [`insert into notes (text) values ('x')`],
        (error, result) => resolve(error ?? result),
      )
      client.query(query!)
    })
  }

  /** Cancels what the client waits in. */
  async function cancelSleep(): Promise<void> {
    await expect
      .poll(() =>
        database.query(`select pg_cancel_backend(pid) from pg_stat_activity
          where wait_event = 'PgSleep' and datname = current_database() and pid <> pg_backend_pid()`),
      )
      .not.toEqual([])
  }

  test.each([
    ['begin that fails', ['begin isolation level none', 'select 1']],
    ['a fence that fails', ['begin', 'select 1 / 0']],
  ])('of %s: the statement is not carried out', async (_, opening) => {
    const client = await open()
    expect(await send(client, opening)).toBeInstanceOf(Error)
    await client.query('rollback')
    expect(await texts()).toEqual([])
  })

  test.each([
    ['begin', ['select pg_sleep(30)', 'begin']],
    ['the fence', ['begin', 'select pg_sleep(30)']],
  ])('of which %s is cancelled: the statement is not carried out', async (_, opening) => {
    const client = await open()
    const sending = send(client, opening)
    await cancelSleep()
    expect(await sending).toMatchObject({ code: '57014' })
    await client.query('rollback')
    expect(await texts()).toEqual([])
  })

  test('and several messages are not the same: there it would be', async () => {
    const client = await open()
    const beginning = client.query('select pg_sleep(30)').catch((error: unknown) => error)
    const sending = client.query(`insert into notes (text) values ('x')`)
    await cancelSleep()
    expect(await beginning).toMatchObject({ code: '57014' })
    await sending
    expect(await texts()).toEqual(['x'])
  })
})
