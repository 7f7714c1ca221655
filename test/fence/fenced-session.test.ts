import { Kysely, PostgresDialect, sql } from 'kysely'
import { type Pool, type PoolClient, Query } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  Fencepost,
  HolderExpiredError,
  type Lease,
  LeaseLostError,
  OutcomeUnknownError,
  StaleTermError,
  fencedSession,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { tellLate } from './late-status.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()

interface Tables {
  notes: { text: string }
}

let fencepost: Fencepost
let db: Kysely<Tables>
let pool: Pool
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query('create table notes (text text not null unique deferrable initially deferred)')
  fencepost = await database.open()
  db = database.kysely<Tables>()
  pool = database.newPool()
  pool.on('connect', tellLate)
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`session-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate notes')
})

const texts = async (): Promise<unknown[]> =>
  (await database.query('select text from notes order by text')).map((row) => row['text'])

const add = (client: PoolClient, text: string): Promise<unknown> =>
  client.query('insert into notes values ($1)', [text])

/** Somebody else is granted the lease. */
async function steal(of: Lease = lease): Promise<Lease> {
  await database.query('select fencepost.end_holder($1)', [of.term.holderId])
  const thief = await database.open()
  return thief.acquire(of.name)
}

/** As a process sees it that was paused: it knows nothing of what became of its term. */
const paused = (): Pick<Lease, 'term'> => ({ term: lease.term })

describe('a fenced session', () => {
  test('commits the transactions of its work, and single statements', async () => {
    const result = await lease.session(pool, async (client) => {
      await client.query('BEGIN;')
      await add(client, 'a')
      await client.query('COMMIT;')
      await client.query({ text: 'start transaction isolation level serializable' })
      await add(client, 'gone')
      await client.query('ROLLBACK')
      await add(client, 'b')
      const { rows } = await client.query<{ n: number }>('select count(*)::integer as n from notes')
      return rows[0]!.n
    })
    expect(result).toBe(2)
    expect(await texts()).toEqual(['a', 'b'])
  })

  test.each(['begin', 'START TRANSACTION', 'begin isolation level repeatable read; -- so'])(
    '%j after a newer grant is refused, and so is all that comes after, caught or not',
    async (begin) => {
      const stale = paused()
      let caught: unknown[] = []
      const writing = fencedSession(stale, pool, async (client) => {
        await add(client, 'in time')
        await steal()
        const errors = [begin, `insert into notes values ('late')`, 'commit'].map((text) =>
          client.query(text).then(
            () => 'sent',
            (error: unknown) => error,
          ),
        )
        caught = await Promise.all(errors)
        await client.query('rollback')
      })
      await expect(writing).rejects.toThrow(StaleTermError)
      expect(caught).toEqual([
        expect.any(StaleTermError),
        expect.any(StaleTermError),
        expect.any(StaleTermError),
      ])
      expect(await texts()).toEqual(['in time'])
    },
  )

  test('a statement outside of a transaction is refused after a newer grant; without the session it commits', async () => {
    const stale = paused()
    const bare = await pool.connect()
    const writing = fencedSession(stale, pool, async (client) => {
      await steal()
      await add(bare, 'unfenced')
      await add(client, 'late')
    })
    await expect(writing).rejects.toThrow(StaleTermError)
    bare.release()
    expect(await texts()).toEqual(['unfenced'])
  })

  test('is not begun under a term that is stale, expired or known to be lost', async () => {
    const never = async (): Promise<void> => expect.unreachable()
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    await expect(fencedSession(paused(), pool, never)).rejects.toThrow(HolderExpiredError)
    await steal()
    await expect(fencedSession(paused(), pool, never)).rejects.toThrow(StaleTermError)
    await lease.release()
    await expect(lease.session(pool, never)).rejects.toThrow()
  })

  test('holds off the next term while one of its transactions is open, and not in between', async () => {
    const other = await database.open()
    await lease.session(pool, async (client) => {
      await client.query('begin')
      await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
      expect(await other.tryAcquire(lease.name)).toBeNull()
      await client.query('rollback')
      expect(await other.tryAcquire(lease.name)).not.toBeNull()
    })
  })

  test('does not commit once the lease is known to be lost', async () => {
    const short = await fencepost.acquire(`${lease.name}/short`, { ttl: '200ms' })
    const writing = short.session(
      pool,
      async (client) => {
        await client.query('begin')
        await add(client, 'late')
        await database.query('select fencepost.end_holder($1)', [short.term.holderId])
        await new Promise((resolve) => short.signal.addEventListener('abort', resolve))
        await client.query('commit').catch(() => {})
      },
      { idleTimeout: '10s' },
    )
    await expect(writing).rejects.toThrow(LeaseLostError)
    expect(await texts()).toEqual([])
  })

  test('tells the lease that its term was taken', async () => {
    const writing = lease.session(pool, async (client) => {
      await fencepost.forceRelease(lease.name, lease.token, { reason: 'test' })
      await add(client, 'late')
    })
    await expect(writing).rejects.toThrow(StaleTermError)
    expect(lease.loss).toMatchObject({ reason: 'taken' })
  })

  test('passes an error of the work, and of the database, unchanged', async () => {
    await expect(
      lease.session(pool, async (client) => {
        await client.query('begin')
        await client.query('select 1 / 0')
      }),
    ).rejects.toMatchObject({ code: '22012' })
    const own = new Error('mine')
    await expect(lease.session(pool, () => Promise.reject(own))).rejects.toBe(own)
    await lease.session(pool, async (client) => {
      await expect(client.query('select 1 / 0')).rejects.toMatchObject({ code: '22012' })
      await expect(client.query(`insert into notes values ('same'), ('same')`)).rejects.toMatchObject({
        code: '23505',
      })
      await add(client, 'after an error that was caught')
    })
    expect(await texts()).toEqual(['after an error that was caught'])
  })

  test('whose work leaves a transaction open, or commits a failed one, is not taken for committed', async () => {
    const open = lease.session(pool, async (client) => {
      await client.query('begin')
      await add(client, 'open')
    })
    await expect(open).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
    const failed = lease.session(pool, async (client) => {
      await client.query('begin')
      await add(client, 'failed')
      await client.query('select 1 / 0').catch(() => {})
      await client.query('commit').catch(() => {})
    })
    await expect(failed).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
    expect(await texts()).toEqual([])
  })

  test.each([
    'begin; insert into notes values (1); commit',
    'commit; begin',
    'commit and chain',
    'rollback and chain',
  ])('%j is refused before it is sent', async (text) => {
    const writing = lease.session(pool, async (client) => {
      await client.query('begin')
      await add(client, 'x')
      await client.query(text).catch(() => {})
      await add(client, 'unfenced').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual([])
  })

  test.each([
    'select 1; commit',
    'select 1; commit; begin',
    'select 1; rollback and chain',
    'select 1; commit; select 1 / 0',
    'select 1; rollback; select 1 / 0',
    'select 1; commit; begin; savepoint here; select 1 / 0',
    'select 1; abort and chain; savepoint here; select 1 / 0',
    `do 'begin null; end'; rollback`,
  ])('%j in disguise: nothing more is sent', async (text) => {
    const writing = lease.session(pool, async (client) => {
      await client.query('begin')
      await client.query(text).catch(() => {})
      if (text.includes('savepoint')) await client.query('rollback to here').catch(() => {})
      await add(client, 'unfenced').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual([])
  })

  test('hears of the end of a transaction in what sends itself', async () => {
    const writing = lease.session(pool, async (client) => {
      await client.query('begin')
      const query = client.query(new Query('select 1; commit; begin'))
      await new Promise((resolve) => query.on('end', resolve))
      await add(client, 'unfenced').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    const last = lease.session(pool, async (client) => {
      await client.query('begin')
      client.query(new Query('select 1; commit; begin'))
      await client.query('commit').catch(() => {})
    })
    await expect(last).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual([])
  })

  test('takes no word for the deed: chains in a text that is undone, begun twice, committed without a begin', async () => {
    await lease.session(pool, async (client) => {
      await client.query('commit')
      await client.query('begin')
      await client.query('begin')
      await client.query('savepoint here')
      await client.query(`insert into notes values ('rollback'), ('a chain'); rollback to here`)
      await client.query('select 1 / 0; rollback and chain').catch(() => {})
      await client.query('rollback')
      await add(client, 'after')
    })
    expect(await texts()).toEqual(['after'])
  })

  test('may use savepoints, callbacks, prepared statements, and cursors in a transaction', async () => {
    await lease
      .session(pool, async (client) => {
        expect(() => client.query(new Query('select 1'))).toThrow(
          expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
        )
        await client.query('begin')
        await client.query('savepoint here')
        await expect(client.query('select 1 / 0')).rejects.toThrow()
        await client.query('rollback to savepoint here')
        await client.query({ name: 'add', text: 'insert into notes values ($1)', values: ['prepared'] })
        const rows: unknown[] = []
        const query = client.query(new Query('select text from notes'))
        query.on('row', (row: { text: string }) => rows.push(row.text))
        await new Promise((resolve) => query.on('end', resolve))
        expect(rows).toEqual(['prepared'])
        await client.query('commit')
        const called = await new Promise((resolve, reject) => {
          client.query('select $1::integer as n', [4], (error, result) =>
            error ? reject(error) : resolve(result.rows),
          )
        })
        expect(called).toEqual([{ n: 4 }])
        const refused = await new Promise((resolve) =>
          client.query('commit and chain', (error) => resolve(error)),
        )
        expect(refused).toMatchObject({ code: 'TRANSACTION_ENDED' })
      })
      .catch((error: unknown) => expect(error).toMatchObject({ code: 'TRANSACTION_ENDED' }))
    expect(await texts()).toEqual(['prepared'])
  })

  test('takes what is asked for together one after the other', async () => {
    await lease.session(pool, async (client) => {
      await Promise.all([
        add(client, 'a'),
        client.query('begin'),
        add(client, 'b'),
        client.query('rollback'),
        add(client, 'c'),
      ])
    })
    expect(await texts()).toEqual(['a', 'c'])
  })

  test('sends nothing after it has ended', async () => {
    let kept: PoolClient | undefined
    await lease.session(pool, async (client) => {
      kept = client
      client.release()
      await add(client, 'in time')
    })
    await expect(add(kept!, 'late')).rejects.toMatchObject({ code: 'TRANSACTION_ENDED' })
    expect(await texts()).toEqual(['in time'])
  })

  test('closes its session: what was set in it meets nobody else', async () => {
    const small = database.newPool({ max: 1 })
    await lease.session(small, async (client) => {
      await client.query('set search_path to pg_catalog')
      await client.query('select pg_advisory_lock(4711)')
      const { rows } = await client.query<{ search_path: string }>('show search_path')
      expect(rows).toEqual([{ search_path: 'pg_catalog' }])
    })
    expect(small.totalCount).toBe(0)
    const { rows } = await small.query(
      `select current_setting('fencepost.fence', true) as fence, current_setting('search_path') as path,
              pg_try_advisory_lock(4711) as is_free`,
    )
    expect(rows).toEqual([{ fence: null, path: '"$user", public', is_free: true }])
  })

  test('is ended by the server when it is silent for too long, in a transaction and between two', async () => {
    const silent = (isOpen: boolean): Promise<void> =>
      fencedSession(
        paused(),
        pool,
        async (client) => {
          const gone = new Promise((resolve) => client.on('error', resolve))
          if (isOpen) await client.query('begin')
          if (isOpen) await add(client, 'silent')
          await gone
          await add(client, 'late')
        },
        { idleTimeout: '50ms' },
      )
    await expect(silent(true)).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    await expect(silent(false)).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    expect(await texts()).toEqual([])
    await fencedSession(
      paused(),
      pool,
      async (client) => {
        const { rows } = await client.query(
          `select current_setting('idle_session_timeout') as idle,
                  current_setting('idle_in_transaction_session_timeout') as in_transaction`,
        )
        expect(rows).toEqual([{ idle: '0', in_transaction: '0' }])
      },
      { idleTimeout: false },
    )
  })

  test('does not know what became of a COMMIT whose answer was lost, of the work or of its own', async () => {
    const proxy = await TcpProxy.start(database.url)
    const behind = database.newPool({ connectionString: proxy.url })
    try {
      proxy.onReply((_, sent) => (sent.includes('commit') ? 'cut' : 'pass'))
      const whole = lease.session(behind, async (client) => {
        await client.query('begin')
        await add(client, 'whole')
        await client.query('commit').catch(() => {})
      })
      await expect(whole).rejects.toThrow(OutcomeUnknownError)
      await expect(lease.session(behind, (client) => add(client, 'single'))).rejects.toThrow(
        OutcomeUnknownError,
      )
      expect(await texts()).toEqual(['single', 'whole'])
    } finally {
      await proxy.stop()
    }
  })

  test.each([
    { outsideTransactions: 'yes' as unknown as boolean },
    { idleTimeout: 0 },
    { timeout: '5' as '5s' },
  ])('refuses the option %o', async (options) => {
    await expect(lease.session(pool, async () => {}, options)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
    })
  })

  test('of a pool that has ended is named', async () => {
    const ended = database.newPool()
    await ended.end()
    await expect(lease.session(ended, async () => {})).rejects.toMatchObject({ code: 'POOL_ENDED' })
  })
})

describe('what PostgreSQL does not run in a transaction', () => {
  const index = 'create index concurrently notes_text on notes (text)'

  afterEach(async () => {
    await Fencepost.unprotectSchema('public', { connectionString: database.url })
    await database.query('drop index if exists notes_text')
  })

  const hasIndex = async (): Promise<boolean> =>
    (await database.query(`select from pg_class where relname = 'notes_text'`)).length > 0

  test('is refused unless it is asked for', async () => {
    const writing = lease.session(pool, async (client) => {
      await client.query(index).catch(() => {})
      await add(client, 'after a refusal').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '25001' })
    expect(await hasIndex()).toBe(false)
    expect(await texts()).toEqual([])
  })

  test('is sent when it is asked for, and the term is checked right before', async () => {
    await lease.session(
      pool,
      async (client) => {
        await client.query('vacuum notes')
        await client.query(index)
        await client.query(`do $$ begin insert into notes values ('batch'); commit; end $$`)
      },
      { outsideTransactions: true },
    )
    expect(await hasIndex()).toBe(true)
    expect(await texts()).toEqual(['batch'])
    await database.query('drop index notes_text')
    const stale = fencedSession(
      paused(),
      pool,
      async (client) => {
        await steal()
        await client.query(index)
      },
      { outsideTransactions: true },
    )
    await expect(stale).rejects.toThrow(StaleTermError)
    expect(await hasIndex()).toBe(false)
  })

  describe('as a procedure or a block that commits', () => {
    const body = `begin
      perform nextval('runs'); insert into notes values ('first'); commit; insert into notes values ('second');
    end`

    beforeAll(async () => {
      await database.query('create sequence runs')
      await database.query(`create procedure work() language plpgsql as $$ ${body} $$`)
      await database.query(
        `create procedure plain() language plpgsql as $$ begin perform nextval('runs'); end $$`,
      )
    })

    beforeEach(() => database.query('alter sequence runs restart'))

    const runs = async (): Promise<unknown> =>
      (
        await database.query(`select case when is_called then last_value else 0 end::integer as n from runs`)
      )[0]!['n']

    test.each(['call work()', `do $$ ${body} $$`])('%j is carried out once', async (text) => {
      await lease.session(pool, (client) => client.query(text), { outsideTransactions: true })
      expect(await texts()).toEqual(['first', 'second'])
      expect(await runs()).toBe(1)
    })

    test.each(['call work()', `do $$ ${body} $$`])(
      '%j is not carried out when the term is over',
      async (text) => {
        const stale = fencedSession(
          paused(),
          pool,
          async (client) => {
            await steal()
            await client.query(text)
          },
          { outsideTransactions: true },
        )
        await expect(stale).rejects.toThrow(StaleTermError)
        expect(await runs()).toBe(0)
      },
    )

    test('is refused unless it is asked for, and in a transaction is what the server makes of it', async () => {
      const refused = lease.session(pool, (client) => client.query('call work()'))
      await expect(refused).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '2D000' })
      await lease.session(pool, (client) => client.query('call plain()'))
      await lease.session(
        pool,
        async (client) => {
          await client.query('begin')
          await expect(client.query('call work()')).rejects.toMatchObject({ code: '2D000' })
          await client.query('rollback')
        },
        { outsideTransactions: true },
      )
      expect(await texts()).toEqual([])
    })

    test('is fenced when it does not commit, as far as can be read, or when it is in a transaction', async () => {
      const note = `insert into notes select case when fencepost.is_fenced('${lease.name}') then 'fenced' else 'unfenced' end`
      await lease.session(
        pool,
        async (client) => {
          await client.query(`do $$ begin ${note}; end $$`)
          await client.query('delete from notes')
          await client.query(`do $$ begin ${note}; rollback; end $$`)
          await client.query(`do $$ begin ${note}; commit; end $$`)
        },
        { outsideTransactions: true },
      )
      expect(await texts()).toEqual(['unfenced'])
      await lease.session(pool, (client) => client.query(`do $$ begin delete from notes; ${note}; end $$`), {
        outsideTransactions: true,
      })
      expect(await texts()).toEqual(['fenced'])
    })
  })

  test('is refused when the term ends after it was tried in a transaction', async () => {
    const watched = database.newPool()
    watched.on('connect', (client) => {
      const query = client.query.bind(client) as (...args: unknown[]) => Promise<unknown>
      Object.assign(client, {
        query: async (...args: unknown[]) => {
          const result = await query(...args)
          if (args[0] === 'rollback') await steal()
          return result
        },
      })
    })
    const stale = fencedSession(paused(), watched, (client) => client.query(index), {
      outsideTransactions: true,
    })
    await expect(stale).rejects.toThrow(StaleTermError)
    expect(await hasIndex()).toBe(false)
  })

  test('in a protected schema is refused without the session, and when the term ends while it runs', async () => {
    const stale = paused()
    await Fencepost.protectSchema('public', { connectionString: database.url, lease: lease.name })
    const bare = await database.session()
    await expect(bare.query(index)).rejects.toMatchObject({ code: 'FP005' })
    await lease.session(pool, (client) => client.query(index), { outsideTransactions: true })
    expect(await hasIndex()).toBe(true)
    await lease.session(pool, (client) => client.query('drop index concurrently notes_text'), {
      outsideTransactions: true,
    })

    // An open transaction on the table keeps the index from being ready.
    const reader = await database.session()
    await reader.query('begin')
    await reader.query('lock table notes in row exclusive mode')
    const late = fencedSession(stale, pool, (client) => client.query(index), { outsideTransactions: true })
    late.catch(() => {})
    const waiting = `select from pg_stat_activity where query = $1 and wait_event_type = 'Lock'`
    await expect.poll(() => database.query(waiting, [index])).toHaveLength(1)
    await steal()
    await reader.query('rollback')
    await expect(late).rejects.toThrow(StaleTermError)
    expect(
      await database.query('select indisvalid from pg_index where indexrelid = $1::regclass', ['notes_text']),
    ).toEqual([{ indisvalid: false }])
  })

  test('has an unknown outcome when its answer is lost', async () => {
    const proxy = await TcpProxy.start(database.url)
    const behind = database.newPool({ connectionString: proxy.url })
    try {
      // It is tried in a transaction first.
      let isRolledBack = false
      proxy.onReply((_, sent) => {
        isRolledBack ||= sent.includes('rollback')
        return isRolledBack && sent.includes('vacuum') ? 'cut' : 'pass'
      })
      const writing = lease.session(behind, (client) => client.query('vacuum notes'), {
        outsideTransactions: true,
      })
      await expect(writing).rejects.toThrow(OutcomeUnknownError)
    } finally {
      await proxy.stop()
    }
  })
})

describe('a fenced session on Kysely', () => {
  test('commits the transactions of its work, and single statements', async () => {
    await lease.session(db, async (session) => {
      await session.transaction().execute(async (tx) => {
        await tx.insertInto('notes').values({ text: 'a' }).execute()
      })
      const rolledBack = session
        .transaction()
        .setIsolationLevel('serializable')
        .execute(async (tx) => {
          await tx.insertInto('notes').values({ text: 'gone' }).execute()
          throw new Error('no')
        })
      await expect(rolledBack).rejects.toThrow('no')
      await session.insertInto('notes').values({ text: 'b' }).execute()
    })
    expect(await texts()).toEqual(['a', 'b'])
  })

  test('is refused after a newer grant, in a transaction and outside of one', async () => {
    for (const write of [
      (session: Kysely<Tables>) => session.insertInto('notes').values({ text: 'late' }).execute(),
      (session: Kysely<Tables>) =>
        session.transaction().execute((tx) => tx.insertInto('notes').values({ text: 'late' }).execute()),
    ]) {
      // oxlint-disable no-await-in-loop -- One lease after the other.
      const own = await fencepost.acquire(`${lease.name}/kysely`)
      const { term } = own
      const writing = fencedSession({ term }, db, async (session) => {
        await fencepost.forceRelease(own.name, own.token, { reason: 'test' })
        await write(session).catch(() => {})
      })
      await expect(writing).rejects.toThrow(StaleTermError)
      await own.release()
      // oxlint-enable no-await-in-loop
    }
    expect(await texts()).toEqual([])
  })

  test('closes its session, and leaves the Kysely as it was', async () => {
    const small = database.kysely<Tables>({ max: 1 })
    const pid = async (on: Kysely<Tables>): Promise<unknown> =>
      (await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(on)).rows[0]!.pid
    const first = await pid(small)
    expect(await lease.session(small, pid)).toBe(first)
    expect(await pid(small)).not.toBe(first)
    await small.insertInto('notes').values({ text: 'unfenced' }).execute()
    expect(await texts()).toEqual(['unfenced'])
  })

  test('is refused a transaction, and a driver that fencepost cannot see into', async () => {
    await db.transaction().execute(async (tx) => {
      await expect(lease.session(tx as unknown as Kysely<Tables>, async () => {})).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
        argument: 'db',
      })
    })
    const strange = new Kysely<Tables>({
      dialect: new PostgresDialect({
        pool: {
          options: {},
          end: async () => {},
          connect: async () => ({ query: async () => ({ rows: [] }), release: () => {} }),
        } as never,
      }),
    })
    await expect(lease.session(strange, async () => {})).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument: 'db',
    })
  })
})

const reason = pgbouncerReason()

describe.skipIf(reason !== undefined)('a fenced session behind PgBouncer in transaction mode', () => {
  test('fences its transactions, leaves no setting behind, and sends nothing outside of one', async () => {
    await using bouncer = await PgBouncer.start(database.url, { default_pool_size: '1' })
    const url = new URL(bouncer.url)
    url.pathname = new URL(database.url).pathname
    const pooled = database.newPool({ connectionString: url.href })
    await lease.session(pooled, async (client) => {
      await client.query('begin')
      await add(client, 'pooled')
      await client.query('commit')
      await add(client, 'single')
    })
    const { rows } = await pooled.query(
      `select coalesce(current_setting('fencepost.fence', true), '') as fence, current_setting('idle_session_timeout') as idle`,
    )
    expect(rows).toEqual([{ fence: '', idle: '0' }])
    const outside = lease.session(pooled, (client) => client.query('vacuum notes'), {
      outsideTransactions: true,
    })
    await expect(outside).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '25001' })
    const { term } = lease
    const stale = fencedSession({ term }, pooled, async (client) => {
      await steal()
      await add(client, 'late')
    })
    await expect(stale).rejects.toThrow(StaleTermError)
    expect(await texts()).toEqual(['pooled', 'single'])
    await pooled.end()
  })
})
