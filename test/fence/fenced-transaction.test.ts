import { Kysely, PostgresDialect, sql } from 'kysely'
import { Pool, type PoolClient, Query, type QueryConfig } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  DatabaseError,
  type FencedTransactionOptions,
  type Fencepost,
  ForeignLeaseError,
  HolderExpiredError,
  type Lease,
  LeaseLostError,
  OutcomeUnknownError,
  StaleTermError,
  fencedTransaction,
  inheritedFence,
} from '../../src/index.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { tellLate } from './late-status.ts'
import { settled } from '../support/manual-clock.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
const elsewhere = useDatabase()

interface Tables {
  notes: { id: number; text: string }
}

let fencepost: Fencepost
let db: Kysely<Tables>
let pool: Pool
let lease: Lease
let names = 0

async function createNotes(target: TestDatabase): Promise<void> {
  await target.query(
    'create table notes (id serial primary key, text text not null unique deferrable initially deferred)',
  )
}

beforeAll(async () => {
  await createNotes(database)
  await createNotes(elsewhere)
  fencepost = await database.open()
  pool = database.newPool()
  pool.on('connect', tellLate)
  db = new Kysely({ dialect: new PostgresDialect({ pool }) })
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`transaction-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate notes')
})

const texts = async (): Promise<unknown[]> =>
  (await database.query('select text from notes order by id')).map((row) => row['text'])

/** Somebody else is granted the lease. */
async function steal(of: Lease = lease): Promise<Lease> {
  await database.query('select fencepost.end_holder($1)', [of.term.holderId])
  const thief = await database.open()
  return thief.acquire(of.name)
}

describe('a fenced transaction on Kysely', () => {
  test('commits what its work has written, raw SQL included, and returns its result', async () => {
    const result = await lease.transaction(db, async (tx) => {
      await tx.insertInto('notes').values({ id: 1, text: 'built' }).execute()
      await sql`insert into notes values (2, 'raw')`.execute(tx)
      return tx.isTransaction
    })
    expect(result).toBe(true)
    expect(await texts()).toEqual(['built', 'raw'])
  })

  test('begins and fences in one round trip', async () => {
    const statements: string[] = []
    const logged = new Kysely<Tables>({
      dialect: new PostgresDialect({ pool: database.newPool() }),
      log: (event) => void statements.push(event.query.sql),
    })
    await lease.transaction(logged, (tx) => tx.selectFrom('notes').selectAll().execute())
    expect(statements).toHaveLength(3)
    expect(statements[0]).toMatch(/^begin; select fencepost\.fence\(/)
    expect(statements[2]).toBe('commit')
    // The session goes back to the pool as it was: the next transaction on it is not fenced.
    await logged.transaction().execute(async (tx) => {
      const { rows } = await sql<{
        fence: string
      }>`select current_setting('fencepost.fence', true) as fence`.execute(tx)
      expect(rows).toEqual([{ fence: '' }])
    })
    expect(statements[3]).toBe('begin')
  })

  test('rolls back when its work throws, and throws the same', async () => {
    const error = new Error('the work failed')
    await expect(
      lease.transaction(db, async (tx) => {
        await tx.insertInto('notes').values({ id: 1, text: 'gone' }).execute()
        throw error
      }),
    ).rejects.toBe(error)
    expect(await texts()).toEqual([])
  })

  test('is refused when a newer term exists, and leaves no transaction open in the pool', async () => {
    const { term } = lease
    const newer = await steal()
    const small = database.kysely<Tables>({ max: 1 })
    let hasWorked = false
    const writing = fencedTransaction({ term }, small, async () => {
      hasWorked = true
    })
    await expect(writing).rejects.toThrow(StaleTermError)
    await expect(writing).rejects.toMatchObject({
      token: term.token,
      currentToken: newer.token,
      lease: lease.name,
    })
    expect(hasWorked).toBe(false)
    const { rows } = await sql<{ xid: string | null; state: string }>`
      select pg_current_xact_id_if_assigned()::text as xid`.execute(small)
    expect(rows).toEqual([{ xid: null }])
    await small.insertInto('notes').values({ id: 5, text: 'the pool works' }).execute()
    expect(await texts()).toEqual(['the pool works'])
  })

  test('holds off the next term until it has ended', async () => {
    const other = await database.open()
    const order: string[] = []
    let taking: Promise<Lease> | undefined
    await lease.transaction(db, async (tx) => {
      await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
      expect(await other.tryAcquire(lease.name)).toBeNull()
      taking = other.acquire(lease.name).then((taken) => {
        order.push('granted')
        return taken
      })
      await tx.insertInto('notes').values({ id: 1, text: 'in time' }).execute()
      order.push('written')
    })
    expect((await taking!).token).toBeGreaterThan(lease.token)
    expect(order).toEqual(['written', 'granted'])
    expect(await texts()).toEqual(['in time'])
  })

  test('release waits for it', async () => {
    let releasing: Promise<unknown> | undefined
    const order: string[] = []
    await lease
      .transaction(db, async (tx) => {
        releasing = lease.release().then(() => order.push('released'))
        await sql`select pg_sleep(0.05)`.execute(tx)
        order.push('worked')
      })
      .catch((error: unknown) => expect(error).toMatchObject({ code: 'LEASE_RELEASED' }))
    await releasing
    expect(order).toEqual(['worked', 'released'])
  })

  test('whose lease is lost before it commits rolls back: never both lost and committed', async () => {
    const short = await fencepost.acquire(`${lease.name}/short`, { ttl: '200ms' })
    const writing = short.transaction(db, async (tx) => {
      await tx.insertInto('notes').values({ id: 1, text: 'late' }).execute()
      await database.query('select fencepost.end_holder($1)', [short.term.holderId])
      await new Promise((resolve) => short.signal.addEventListener('abort', resolve))
    })
    await expect(writing).rejects.toThrow(LeaseLostError)
    expect(await texts()).toEqual([])
  })

  test('is not begun on a lease that is lost or released: nothing reaches the database', async () => {
    const lost = await fencepost.acquire(`${lease.name}/lost`, { ttl: '200ms' })
    await database.query('select fencepost.end_holder($1)', [lost.term.holderId])
    await new Promise((resolve) => lost.signal.addEventListener('abort', resolve))
    const ended = database.newPool()
    await ended.end()
    await expect(lost.transaction(ended, async () => {})).rejects.toThrow(LeaseLostError)
    await lease.release()
    await expect(lease.transaction(ended, async () => {})).rejects.toMatchObject({ code: 'LEASE_RELEASED' })
  })

  test('whose callback swallows the error of a statement is not taken for committed', async () => {
    const swallowing = lease.transaction(db, async (tx) => {
      await tx.insertInto('notes').values({ id: 1, text: 'x' }).execute()
      await sql`select 1 / 0`.execute(tx).catch(() => {})
      return 'done'
    })
    await expect(swallowing).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
    expect(await texts()).toEqual([])
  })

  test('whose commit the database refuses passes the refusal on', async () => {
    const writing = lease.transaction(db, async (tx) => {
      await tx
        .insertInto('notes')
        .values([
          { id: 1, text: 'same' },
          { id: 2, text: 'same' },
        ])
        .execute()
    })
    await expect(writing).rejects.toMatchObject({ code: '23505' })
    expect(await texts()).toEqual([])
  })

  test.each(['read committed', 'repeatable read', 'serializable'] as const)(
    'works at %s',
    async (isolationLevel) => {
      const level = await lease.transaction(
        db,
        async (tx) =>
          (await sql<{ transaction_isolation: string }>`show transaction_isolation`.execute(tx)).rows[0],
        { isolationLevel },
      )
      expect(level).toEqual({ transaction_isolation: isolationLevel })
    },
  )

  test('reports a conflict of serializable transactions as one to run again', async () => {
    await database.query(`insert into notes values (1, 'a')`)
    const writing = lease.transaction(
      db,
      async (tx) => {
        await tx.selectFrom('notes').selectAll().execute()
        await database.query(`update notes set text = 'b' where id = 1`)
        await tx.updateTable('notes').set({ text: 'c' }).execute()
      },
      { isolationLevel: 'repeatable read' },
    )
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_RETRYABLE', sqlState: '40001' })
  })

  test('puts the TTL as the bound on silence, keeps a stricter one, and can do without', async () => {
    const idle = async (source: Kysely<Tables>, options?: { idleTimeout: false | '5s' }): Promise<unknown> =>
      lease.transaction(
        source,
        async (tx) =>
          (
            await sql<{
              idle: string
            }>`select current_setting('idle_in_transaction_session_timeout') as idle`.execute(tx)
          ).rows[0]!.idle,
        options,
      )
    expect(await idle(db)).toBe('30s')
    expect(await idle(db, { idleTimeout: '5s' })).toBe('5s')
    expect(await idle(db, { idleTimeout: false })).toBe('0')
    const strict = database.kysely<Tables>({ options: '-c idle_in_transaction_session_timeout=700' })
    expect(await idle(strict)).toBe('700ms')
  })

  test('a statement that nobody awaited is not sent after COMMIT, where it would not be fenced', async () => {
    let floating: Promise<unknown> | undefined
    await lease.transaction(db, async (tx) => {
      await tx.insertInto('notes').values({ id: 1, text: 'awaited' }).execute()
      floating = (async () => {
        await tx.insertInto('notes').values({ id: 2, text: 'in time' }).execute()
        await tx.insertInto('notes').values({ id: 3, text: 'too late' }).execute()
      })()
      floating.catch(() => {})
    })
    await expect(floating).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual(['awaited', 'in time'])
  })

  test.each(['commit', 'rollback', '  END', 'commit and chain', 'abort', 'begin', `prepare transaction 'x'`])(
    '%j in its work is refused: what came after would not be fenced',
    async (statement) => {
      const writing = lease.transaction(db, async (tx) => {
        await tx.insertInto('notes').values({ id: 1, text: 'x' }).execute()
        await sql.raw(statement).execute(tx)
      })
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(await texts()).toEqual([])
    },
  )

  test('may use savepoints', async () => {
    await lease.transaction(db, async (tx) => {
      await sql`savepoint here`.execute(tx)
      await expect(sql`select 1 / 0`.execute(tx)).rejects.toThrow()
      await sql`rollback to savepoint here`.execute(tx)
      await sql`savepoint there`.execute(tx)
      await sql`rollback transaction to there`.execute(tx)
      await tx.insertInto('notes').values({ id: 1, text: 'saved' }).execute()
    })
    expect(await texts()).toEqual(['saved'])
  })

  test('an error of another connection that breaks in the work passes unchanged', async () => {
    const other = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
    await expect(lease.transaction(db, () => Promise.reject(other))).rejects.toBe(other)
    await expect(lease.transaction(pool, () => Promise.reject(other))).rejects.toBe(other)
  })

  test('that falls silent for longer than its bound is cut off, and the lease moves on', async () => {
    const { term } = lease
    const writing = fencedTransaction(
      { term },
      db,
      async (tx) => {
        await tx.insertInto('notes').values({ id: 1, text: 'paused' }).execute()
        const other = await database.open()
        await database.query('select fencepost.end_holder($1)', [term.holderId])
        // It can be granted only when the server has ended this transaction.
        await other.acquire(lease.name)
        await tx.selectFrom('notes').selectAll().execute()
      },
      { idleTimeout: '50ms' },
    )
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    expect(await texts()).toEqual([])
  })

  test('has a bound on the whole transaction when asked for', async () => {
    const writing = lease.transaction(db, (tx) => sql`select pg_sleep(30)`.execute(tx), { timeout: '50ms' })
    await expect(writing).rejects.toThrow()
  })

  test('inside another transaction is refused: the fence could be rolled back to a savepoint', async () => {
    await db.transaction().execute(async (tx) => {
      await expect(lease.transaction(tx as unknown as Kysely<Tables>, async () => {})).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
        argument: 'db',
      })
    })
  })

  test.each([{ isolationLevel: 'chaos' as 'serializable' }, { idleTimeout: 0 }, { timeout: '5' as '5s' }])(
    'refuses the option %o',
    async (options) => {
      await expect(lease.transaction(db, async () => {}, options)).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
      })
    },
  )
})

type Write = (run: (text: string) => Promise<unknown>) => Promise<void>

const onKysely = (write: Write, options?: FencedTransactionOptions): Promise<void> =>
  lease.transaction(db, (tx) => write((text) => sql.raw(text).execute(tx)), options)

const onPool = (write: Write, options?: FencedTransactionOptions): Promise<void> =>
  lease.transaction(pool, (client) => write((text) => client.query(text)), options)

const byCallback = (write: Write, options?: FencedTransactionOptions): Promise<void> =>
  lease.transaction(
    pool,
    (client) =>
      write(
        (text) =>
          new Promise((resolve, reject) =>
            client.query(text, (error, result) => (error ? reject(error) : resolve(result))),
          ),
      ),
    options,
  )

describe.each([
  ['on Kysely', onKysely],
  ['on a pg pool', onPool],
  ['on a pg pool by callbacks', byCallback],
])('work that ends its transaction itself, %s', (_, transaction) => {
  test.each([
    'commit',
    '/* quietly */ commit',
    '-- really\n commit',
    ';commit',
    '; -- a\n ;rollback and chain',
    '-- a\rcommit',
    '-- a\rcommit and chain',
    'select 1; commit',
    'rollback',
    `do 'begin null; end'; commit`,
  ])('%j: nothing more of it is written', async (statement) => {
    const writing = transaction(async (run) => {
      await run(`insert into notes values (1, 'before')`)
      await run(statement)
      await run(`insert into notes values (2, 'unfenced')`)
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).not.toContain('unfenced')
  })

  test.each(['select 1; commit', `do 'begin null; end'; rollback`])(
    '%j in disguise: nothing more is sent, although the refusal is swallowed',
    async (statement) => {
      const writing = transaction(async (run) => {
        await run(statement).catch(() => {})
        await run(`insert into notes values (2, 'unfenced')`).catch(() => {})
      })
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(await texts()).toEqual([])
    },
  )

  test.each([
    'select 1; commit; begin',
    'select 1; commit and chain',
    'select 1; rollback; start transaction',
    'select 1; rollback and chain',
    'select 1; abort work /* and */ and -- so\r chain',
    `do 'begin null; end'; end; begin`,
    'select 1; commit; select 1 / 0',
    'select 1; rollback; select 1 / 0',
    'select 1; commit; begin; savepoint here; select 1 / 0',
    'select 1; rollback and chain; savepoint here; select 1 / 0',
  ])(
    '%j: nothing more is sent, although the session is in a transaction or the error is swallowed',
    async (text) => {
      const writing = transaction(async (run) => {
        await run(text).catch(() => {})
        if (text.includes('savepoint')) await run('rollback to here').catch(() => {})
        await run(`insert into notes values (2, 'unfenced')`).catch(() => {})
      })
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(await texts()).toEqual([])
    },
  )

  test.each(['read uncommitted', 'read committed', 'repeatable read', 'serializable'] as const)(
    'in the middle of a text is noticed at %s',
    async (isolationLevel) => {
      for (const text of ['select 1; commit; begin', 'select 1; commit; select 1 / 0']) {
        const writing = transaction(
          async (run) => {
            await run(text).catch(() => {})
            await run(`insert into notes values (2, 'unfenced')`).catch(() => {})
          },
          { isolationLevel },
        )
        // oxlint-disable-next-line no-await-in-loop -- One after the other.
        await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
      }
      expect(await texts()).toEqual([])
    },
  )

  test('by preparing it is noticed, too', async ({ skip }) => {
    const [row] = await database.query<{ count: number }>(
      `select current_setting('max_prepared_transactions')::integer as count`,
    )
    skip(row!.count === 0, 'max_prepared_transactions is 0')
    const writing = transaction(async (run) => {
      await run(`select 1; prepare transaction 'x'; begin`)
      await run(`insert into notes values (2, 'unfenced')`)
    })
    try {
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    } finally {
      await database.query(`rollback prepared 'x'`)
    }
    expect(await texts()).toEqual([])
  })

  test('texts of several statements without it go through: savepoints, and words that only look like it', async () => {
    await transaction(async (run) => {
      await run(`insert into notes values (1, 'commit'); savepoint here; select 'begin; commit and chain'`)
      await run(`insert into notes values (2, 'undone'); rollback to here`)
      await run(`insert into notes values (3, 'a chain'); savepoint there; rollback to there; select 1`)
      await run(`create function pg_temp.f() returns void language sql begin atomic select 1; select 2; end`)
      // The server refuses to end a transaction from inside of a block or a procedure.
      await run(`do 'begin commit; end'; select 1`).catch((error: unknown) =>
        expect(error).toMatchObject({ code: '2D000' }),
      )
      await run('rollback work to savepoint there')
      await run('select 1; select 1 / 0').catch((error: unknown) =>
        expect(error).toMatchObject({ code: '22012' }),
      )
      await run('rollback to there; release there')
      await run(`;insert into notes values (4, 'after'); ;`)
    })
    expect(await texts()).toEqual(['commit', 'a chain', 'after'])
  })

  test('a warning of a deferred trigger does not make a known commit unknown', async () => {
    await database.query(`
      create table if not exists warned (id integer);
      create or replace function warn() returns trigger language plpgsql as $$
        begin raise warning 'just so you know'; return null; end $$;
      drop trigger if exists warn on warned;
      create constraint trigger warn after insert on warned deferrable initially deferred
        for each row execute function warn()`)
    await transaction(async (run) => {
      await run('insert into warned values (1)')
    })
    expect(await database.query('select id from warned')).not.toEqual([])
  })

  test('a session that ended before COMMIT was sent is known to have written nothing', async () => {
    const writing = transaction(async (run) => {
      await run(`insert into notes values (1, 'gone')`)
      const ended = await database.query<{ pid: number }>(
        `select pid, pg_terminate_backend(pid) from pg_stat_activity
          where state = 'idle in transaction' and datname = current_database()`,
      )
      const left = `select from pg_stat_activity where pid = any ($1)`
      await expect.poll(() => database.query(left, [ended.map(({ pid }) => pid)])).toEqual([])
      // Its last words have arrived, and are read in between.
      await settled()
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    expect(await texts()).toEqual([])
  })
})

describe('a fenced transaction on a pg pool', () => {
  test('takes what sends itself, callbacks and prepared statements', async () => {
    await lease.transaction(pool, async (client) => {
      const rows: unknown[] = []
      const query = client.query(new Query('select generate_series(1, 3) as n'))
      query.on('row', (row: { n: number }) => rows.push(row.n))
      await new Promise((resolve) => query.on('end', resolve))
      expect(rows).toEqual([1, 2, 3])
      const called = await new Promise((resolve, reject) => {
        client.query('select 4 as n', (error, result) => (error ? reject(error) : resolve(result.rows)))
      })
      expect(called).toEqual([{ n: 4 }])
      const prepared = { name: 'five', text: 'select $1::integer as n', values: [5] }
      expect((await client.query(prepared)).rows).toEqual([{ n: 5 }])
      const together = await Promise.all([client.query('select 6 as n'), client.query('select 7 as n')])
      expect(together.map((result) => result.rows[0])).toEqual([{ n: 6 }, { n: 7 }])
    })
  })

  test('tells a refusal to whoever asked by callback, and keeps its client to itself', async () => {
    await lease.transaction(pool, async (client) => {
      const refusal = await new Promise((resolve) => client.query('commit', (error) => resolve(error)))
      expect(refusal).toMatchObject({ code: 'TRANSACTION_ENDED' })
      expect(() => client.release()).toThrow(/given back by fencepost/)
      await client.query(`insert into notes values (1, 'kept')`)
    })
    expect(await texts()).toEqual(['kept'])
  })

  test('sends nothing after a COMMIT in disguise, even what was asked for together with it', async () => {
    const writing = lease.transaction(pool, (client) =>
      Promise.all([
        client.query('select 1; commit'),
        client.query(`insert into notes values (1, 'unfenced')`),
      ]),
    )
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual([])
  })

  test('works with a pg that does not tell its transaction status, and hears of its end all the same', async () => {
    const older = database.newPool()
    older.on('connect', (client) => Object.assign(client, { getTransactionStatus: undefined }))
    await lease.transaction(older, (client) => client.query(`insert into notes values (1, 'older')`))
    for (const text of ['select 1; commit', 'select 1; commit; begin', 'select 1; rollback; select 1 / 0']) {
      const writing = lease.transaction(older, async (client) => {
        await client.query(text).catch(() => {})
        await client.query(`insert into notes values (2, 'unfenced')`).catch(() => {})
      })
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    }
    expect(await texts()).toEqual(['older'])
  })

  test('ends a session that does not say what an error has left, as with the option rows', async () => {
    const small = database.newPool({ max: 1 })
    const writing = lease.transaction(small, async (client) => {
      const config: object = { text: 'select 1 / $1::integer', values: [0], rows: 1 }
      await client.query(config as QueryConfig)
    })
    await expect(writing).rejects.toMatchObject({ code: '22012' })
    expect((await small.query('select 1 as n')).rows).toEqual([{ n: 1 }])
  })

  test('hears of the end in what sends itself, at the latest when it has committed', async () => {
    const writing = lease.transaction(pool, async (client) => {
      const query = client.query(new Query('select 1; commit; begin'))
      await new Promise((resolve) => query.on('end', resolve))
      await client.query(`insert into notes values (1, 'unfenced')`).catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual([])
    const floating = lease.transaction(pool, async (client) => {
      client.query(new Query('select 1; commit; begin'))
    })
    await expect(floating).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
  })

  test('sends nothing through a client that is kept for longer', async () => {
    let kept: PoolClient | undefined
    let floating: Promise<unknown> | undefined
    await lease.transaction(pool, async (client) => {
      kept = client
      await client.query(`insert into notes values (1, 'in time')`)
      floating = (async () => {
        await client.query('select 1')
        await client.query('select 2')
        await client.query(`insert into notes values (2, 'too late')`)
      })()
      floating.catch(() => {})
    })
    await expect(floating).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    await expect(kept!.query('select 1')).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual(['in time'])
  })

  test('commits, rolls back, and gives the client back', async () => {
    const small = database.newPool({ max: 1 })
    await lease.transaction(small, (client) => client.query(`insert into notes values (1, 'pg')`))
    await expect(
      lease.transaction(small, async (client) => {
        await client.query(`insert into notes values (2, 'gone')`)
        throw new Error('no')
      }),
    ).rejects.toThrow('no')
    await expect(
      lease.transaction(small, async (client) => {
        await client.query('select 1 / 0').catch(() => {})
      }),
    ).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
    expect(await texts()).toEqual(['pg'])
    expect(small.idleCount).toBe(1)
  })

  test('is refused when a newer term exists', async () => {
    const { term } = lease
    await steal()
    await expect(fencedTransaction({ term }, pool, async () => {})).rejects.toThrow(StaleTermError)
  })

  test('that has ended is named, and so is a Kysely that was destroyed', async () => {
    const ended = database.newPool()
    await ended.end()
    await expect(lease.transaction(ended, async () => {})).rejects.toMatchObject({ code: 'POOL_ENDED' })
    const destroyed = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: database.newPool() }) })
    await destroyed.selectFrom('notes').selectAll().execute()
    await destroyed.destroy()
    await expect(lease.transaction(destroyed, async () => {})).rejects.toMatchObject({ code: 'POOL_ENDED' })
  })
})

describe('looking for the end of the transaction', () => {
  /** How often the server has said that it is ready. */
  const roundTrips = async (run: (source: Pool) => Promise<unknown>): Promise<number> => {
    const counted = database.newPool({ max: 1 })
    let trips = 0
    counted.on('connect', ({ connection }) => connection.on('readyForQuery', () => (trips += 1)))
    await run(counted)
    return trips
  }

  const kyselyOn = (source: Pool): Kysely<Tables> =>
    new Kysely({ dialect: new PostgresDialect({ pool: source }) })

  const several = `insert into notes values (1, 'a'); select 1`

  test('costs no round trip', async () => {
    const ofPool = await roundTrips((source) =>
      lease.transaction(source, async (client) => {
        await client.query(several)
        await client.query('savepoint here')
      }),
    )
    await database.query('truncate notes')
    const ofKysely = await roundTrips((source) =>
      lease.transaction(kyselyOn(source), async (tx) => {
        await sql.raw(several).execute(tx)
        await sql`savepoint here`.execute(tx)
      }),
    )
    expect([ofPool, ofKysely]).toEqual([4, 4])
  })

  test('costs none after an error either', async () => {
    const failing = (run: (text: string) => Promise<unknown>) => async (text: string) => {
      await run('savepoint here')
      await run(text).catch(() => {})
      await run('rollback to here')
    }
    const counts = await Promise.all(
      ['select 1 / 0;', 'select 1; select 1 / 0'].flatMap((text) => [
        roundTrips((source) =>
          lease.transaction(source, (client) => failing((one) => client.query(one))(text)),
        ),
        roundTrips((source) =>
          lease.transaction(kyselyOn(source), (tx) => failing((one) => sql.raw(one).execute(tx))(text)),
        ),
      ]),
    )
    expect(counts).toEqual([5, 5, 5, 5])
  })
})

describe('lease.fence', () => {
  test('fences the transaction of a bare client, and so does the statement for other clients', async () => {
    const client = await database.session()
    await client.query('begin')
    await lease.fence(client)
    await client.query(`insert into notes values (1, 'bare')`)
    await client.query('commit')
    await client.query('begin')
    const { text, values } = lease.fenceStatement({ idleTimeout: '5s' })
    const { rows } = await client.query<{ token: string }>(text, values)
    expect(rows).toEqual([{ token: lease.token.toString() }])
    await client.query('rollback')
    expect(await texts()).toEqual(['bare'])
  })

  test('outside a transaction guards nothing, and says so', async () => {
    const client = await database.session()
    await expect(lease.fence(client)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'client' })
  })

  test('is refused for a stale, an expired and a foreign term', async () => {
    const client = await database.session()
    const { term } = lease
    await database.query('select fencepost.end_holder($1)', [term.holderId])
    await client.query('begin')
    await expect(lease.fence(client)).rejects.toThrow(HolderExpiredError)
    await client.query('rollback')
    await steal()
    await expect(fencedTransaction({ term }, pool, async () => {})).rejects.toThrow(StaleTermError)
    const stranger = await elsewhere.session()
    const other = await database.open()
    const foreign = await other.acquire(`${lease.name}/foreign`)
    await stranger.query('begin')
    await expect(foreign.fence(stranger)).rejects.toThrow(ForeignLeaseError)
    await expect(foreign.transaction(elsewhere.kysely<Tables>(), async () => {})).rejects.toThrow(
      ForeignLeaseError,
    )
  })

  test('a savepoint that catches the refusal cannot get other writes through', async () => {
    const client = await database.session()
    const { term } = lease
    await steal()
    await client.query('begin')
    await client.query('savepoint before')
    await expect(
      client.query('select fencepost.fence($1, $2, $3)', [term.lease, term.token.toString(), term.holderId]),
    ).rejects.toMatchObject({ code: 'FP001' })
    await client.query('rollback to savepoint before')
    const { rows } = await client.query<{ fence: string | null }>(
      `select current_setting('fencepost.fence', true) as fence`,
    )
    expect(rows[0]!.fence ?? '').toBe('')
    await client.query('rollback')
  })
})

describe('an inherited fence', () => {
  test('carries a parent’s term to a child through the environment', async () => {
    const fence = inheritedFence(lease.environment)
    expect(fence.term).toEqual(lease.term)
    await fencedTransaction(fence, db, (tx) =>
      tx.insertInto('notes').values({ id: 1, text: 'child' }).execute(),
    )
    expect(await texts()).toEqual(['child'])
    await steal()
    await expect(fencedTransaction(fence, db, async () => {})).rejects.toThrow(StaleTermError)
  })

  test('keeps odd names exact in the SQL for other programs', async () => {
    const odd = await fencepost.acquire(`it's a "lease" \\ $1; -- ${names}`)
    const client = await database.session()
    await client.query('begin')
    await client.query(odd.environment['FENCEPOST_FENCE_SQL']!)
    await client.query('set local standard_conforming_strings = off')
    await client.query(odd.environment['FENCEPOST_FENCE_SQL']!)
    await client.query('commit')
    await odd.transaction(db, (tx) => tx.insertInto('notes').values({ id: 1, text: 'odd' }).execute())
    expect(await texts()).toEqual(['odd'])
    await odd.release()
  })

  test.each([
    {},
    { FENCEPOST_TOKEN: '-1' },
    { FENCEPOST_TOKEN: '12', FENCEPOST_LEASE: 'x' },
    { FENCEPOST_TOKEN: '12', FENCEPOST_LEASE: '', FENCEPOST_HOLDER: '00000000-0000-0000-0000-000000000000' },
    { FENCEPOST_TOKEN: '12', FENCEPOST_LEASE: 'x', FENCEPOST_HOLDER: "'; drop table notes" },
  ])('is refused from %o', (env) => {
    expect(() => inheritedFence(env)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }))
  })
})

describe('a connection that breaks', () => {
  test('when the answer to COMMIT is lost the outcome is unknown, though the write is there', async () => {
    const proxy = await TcpProxy.start(database.url)
    try {
      for (const source of [
        database.kysely<Tables>({ connectionString: proxy.url }),
        database.newPool({ connectionString: proxy.url }),
      ]) {
        proxy.onReply((_, sent) => (sent.includes('commit') ? 'cut' : 'pass'))
        const writing =
          source instanceof Pool
            ? lease.transaction(source, (client) => client.query(`insert into notes values (8, 'pool')`))
            : lease.transaction(source, (tx) =>
                tx.insertInto('notes').values({ id: 7, text: 'kysely' }).execute(),
              )
        await expect(writing).rejects.toThrow(OutcomeUnknownError)
        proxy.onReply(undefined)
      }
      expect(await texts()).toEqual(['kysely', 'pool'])
    } finally {
      await proxy.stop()
    }
  })

  test('before COMMIT was sent is known to have written nothing', async () => {
    const proxy = await TcpProxy.start(database.url)
    try {
      const through = database.kysely<Tables>({ connectionString: proxy.url })
      const writing = lease.transaction(through, async (tx) => {
        await tx.insertInto('notes').values({ id: 1, text: 'gone' }).execute()
        proxy.cut()
        await tx.insertInto('notes').values({ id: 2, text: 'gone too' }).execute()
      })
      await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
      expect(await texts()).toEqual([])
    } finally {
      await proxy.stop()
    }
  })

  test('to a server that is not there is told as such', async () => {
    const nowhere = database.kysely<Tables>({ connectionString: 'postgres://nobody@127.0.0.1:1/none' })
    await expect(lease.transaction(nowhere, async () => {})).rejects.toThrow(DatabaseError)
    await expect(lease.transaction(nowhere, async () => {})).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
  })
})
