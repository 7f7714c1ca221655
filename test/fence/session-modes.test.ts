import { Kysely, sql } from 'kysely'
import { type Client, Pool, type PoolClient } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  Fencepost,
  HolderExpiredError,
  type Lease,
  StaleTermError,
  fencedSession,
  fencedTransaction,
} from '../../src/index.ts'
import { eventually } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { DebianServer, debianBinaries } from '../support/debian-server.ts'

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
  await database.query('create table notes (text text not null)')
  fencepost = await database.open()
  db = database.kysely<Tables>()
  pool = database.newPool()
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`modes-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate notes')
})

const texts = async (): Promise<unknown[]> =>
  (await database.query('select text from notes order by text')).map((row) => row['text'])

const add = (client: PoolClient | Client, text: string): Promise<unknown> =>
  client.query('insert into notes values ($1)', [text])

const setting = async (client: PoolClient, name: string): Promise<unknown> =>
  (await client.query<{ value: string }>('select current_setting($1) as value', [name])).rows[0]!.value

/** Whether a transaction of the lease is open, fenced: then nobody else is granted it. */
async function isFenced(): Promise<boolean> {
  const [row] = await database.query<{ is_fenced: boolean }>('select fencepost.is_fenced($1) as is_fenced', [
    lease.name,
  ])
  return row!.is_fenced
}

const readOnlyDefault = { options: '-c default_transaction_read_only=on' }

describe('a read-only transaction of a fenced session', () => {
  test.each([
    'begin read only',
    'start transaction isolation level repeatable read, read only',
    'begin read write read only',
    'begin isolation level serializable read only deferrable;',
  ])('%j reads, needs no fence, and is followed by one that writes', async (begin) => {
    await lease.session(pool, async (client) => {
      await client.query(begin)
      expect(await setting(client, 'transaction_read_only')).toBe('on')
      expect(await isFenced()).toBe(false)
      await client.query('savepoint here')
      await expect(add(client, 'refused')).rejects.toMatchObject({ code: '25006' })
      await client.query('rollback to here')
      await client.query('commit')
      await client.query('begin')
      expect(await isFenced()).toBe(true)
      await add(client, 'written')
      await client.query('commit')
    })
    expect(await texts()).toEqual(['written'])
  })

  const attempts = [
    'set transaction read write',
    'set local transaction read write',
    'set transaction_read_only = off',
    'set session transaction_read_only to off',
    'reset transaction_read_only',
    'set transaction_read_only to default',
    `select set_config('transaction_read_only', 'off', true)`,
    `do $$ begin set transaction read write; end $$`,
    `do $$ begin reset transaction_read_only; end $$`,
    'reset all',
    'begin read write',
    'select 1; set transaction read write',
    'discard all',
  ]
  const levels = [
    'read uncommitted',
    'read committed',
    'repeatable read',
    'serializable',
    'serializable deferrable',
  ]

  test.each(levels.flatMap((level) => attempts.map((attempt) => [level, attempt] as const)))(
    'at %s does not become one that writes by %j',
    async (level, attempt) => {
      // Right after BEGIN it would be fenced. Neither of these takes a snapshot.
      for (const first of [`set local lock_timeout = '9s'`, 'savepoint here']) {
        const trying = fencedSession({ term: lease.term }, pool, async (client) => {
          await client.query(`begin isolation level ${level} read only`)
          await client.query(first)
          await client.query(attempt).catch(() => {})
          if (first === 'savepoint here') await client.query('rollback to here')
          await add(client, 'unfenced').catch(() => {})
          await client.query('commit')
        })
        // oxlint-disable-next-line no-await-in-loop -- One after the other.
        await expect(trying).rejects.toMatchObject({ code: 'TRANSACTION_ABORTED' })
      }
      expect(await texts()).toEqual([])
    },
  )

  test('would become one that writes without its snapshot, on the server itself', async () => {
    const bare = await database.session()
    await bare.query('begin read only')
    await bare.query(`set local lock_timeout = '9s'`)
    await bare.query('set transaction read write')
    await add(bare, 'unfenced')
    await bare.query('commit')
    expect(await texts()).toEqual(['unfenced'])
  })

  test('that is made one that writes by its first statement is fenced', async () => {
    await lease.session(pool, async (client) => {
      await client.query('begin read only')
      expect(await isFenced()).toBe(false)
      await client.query('set transaction read write')
      expect(await isFenced()).toBe(true)
      await add(client, 'fenced')
      await client.query('commit')
    })
    expect(await texts()).toEqual(['fenced'])
    const stale = fencedSession({ term: lease.term }, pool, async (client) => {
      await client.query('begin read only')
      await fencepost.forceRelease(lease.name, lease.token, { reason: 'test' })
      await client.query('set transaction read write').catch(() => {})
      await add(client, 'late').catch(() => {})
    })
    await expect(stale).rejects.toThrow(StaleTermError)
    expect(await texts()).toEqual(['fenced'])
  })

  test('is not begun when the lease is known to be lost, and is bounded like others', async () => {
    const late = lease.session(pool, async (client) => {
      await lease.release()
      await client.query('begin read only')
    })
    await expect(late).rejects.toMatchObject({ code: 'LEASE_RELEASED' })
    const other = await fencepost.acquire(`${lease.name}/other`)
    await other
      .session(
        pool,
        async (client) => {
          await client.query('begin read only')
          expect(await setting(client, 'idle_in_transaction_session_timeout')).toBe('7s')
        },
        { idleTimeout: '7s' },
      )
      .catch((error: unknown) => expect(error).toMatchObject({ code: 'TRANSACTION_ABORTED' }))
    const silent = other.session(
      pool,
      async (client) => {
        const gone = new Promise((resolve) => client.on('error', resolve))
        await client.query('begin read only')
        await gone
        await client.query('commit')
      },
      { idleTimeout: '50ms' },
    )
    await expect(silent).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    await other.release()
  })

  test("is Kysely's, too", async () => {
    await lease.session(db, async (session) => {
      const [row] = await session
        .transaction()
        .setAccessMode('read only')
        .execute(async (tx) =>
          tx
            .selectFrom('notes')
            .select(sql<number>`count(*)::integer`.as('n'))
            .execute(),
        )
      expect(row).toEqual({ n: 0 })
      await session.insertInto('notes').values({ text: 'after' }).execute()
    })
    expect(await texts()).toEqual(['after'])
  })
})

describe('where transactions are read-only by default', () => {
  test('a fenced session reads, and writes in a transaction that says so', async () => {
    const quiet = database.newPool(readOnlyDefault)
    for (const turnOff of ['', 'set session characteristics as transaction read only']) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await lease.session(turnOff === '' ? quiet : pool, async (client) => {
        await client.query(turnOff)
        await client.query('begin')
        expect(await isFenced()).toBe(false)
        await client.query('select from notes')
        await client.query('commit')
        await client.query('select from notes')
        await expect(add(client, 'refused')).rejects.toMatchObject({ code: '25006' })
        await client.query('begin read write')
        expect(await isFenced()).toBe(true)
        await add(client, `written ${turnOff}`)
        await client.query('commit')
        await client.query('begin')
        await client.query('set transaction read write')
        expect(await isFenced()).toBe(true)
        await client.query('rollback')
      })
    }
    expect(await texts()).toHaveLength(2)
  })

  test('a session checks the term of a statement outside of transactions all the same', async () => {
    const quiet = database.newPool(readOnlyDefault)
    const stale = fencedSession(
      { term: lease.term },
      quiet,
      async (client) => {
        await client.query('vacuum notes')
        await fencepost.forceRelease(lease.name, lease.token, { reason: 'test' })
        await client.query('vacuum notes')
      },
      { outsideTransactions: true },
    )
    await expect(stale).rejects.toThrow(StaleTermError)
  })

  test('a stale session is refused', async () => {
    const { term } = lease
    await fencepost.forceRelease(lease.name, lease.token, { reason: 'test' })
    const quiet = database.newPool(readOnlyDefault)
    const never = async (): Promise<void> => expect.unreachable()
    await expect(fencedSession({ term }, quiet, never)).rejects.toThrow(StaleTermError)
  })

  test('a fenced transaction says why it is refused, on a pool and on Kysely', async () => {
    const quiet = database.newPool(readOnlyDefault)
    const never = async (): Promise<void> => expect.unreachable()
    const refusal = {
      code: 'QUERY_FAILED',
      sqlState: '25006',
      message: expect.stringMatching(/default_transaction_read_only/) as string,
    }
    await expect(lease.transaction(quiet, never)).rejects.toMatchObject(refusal)
    await expect(lease.transaction(database.kysely(readOnlyDefault), never)).rejects.toMatchObject(refusal)
    expect((await quiet.query('select 1 as n')).rows).toEqual([{ n: 1 }])
  })
})

// The embedded server has no pg_basebackup.
const binaries = debianBinaries()
const why = binaries === undefined ? ' (skipped: pg_basebackup is not installed; Debian: postgresql)' : ''

describe.skipIf(binaries === undefined).each([why])('where the server is a standby%s', () => {
  test('a fenced session and a fenced transaction say so', async () => {
    await using primary = await DebianServer.start(binaries!)
    await Fencepost.migrate({ connectionString: primary.url })
    const standby = new Pool({ connectionString: await primary.addStandby('spare') })
    standby.on('error', () => {})
    await using grantor = await Fencepost.open({ connectionString: primary.url })
    const { term } = await grantor.acquire('on a standby')
    const lookup = 'select from fencepost.lease where name = $1'
    await eventually(async () => (await standby.query(lookup, [term.lease])).rows.length === 1)
    const never = async (): Promise<void> => expect.unreachable()
    try {
      const refusal = { code: 'READ_ONLY_SERVER', sqlState: '25006' }
      await expect(fencedSession({ term }, standby, never)).rejects.toMatchObject(refusal)
      await expect(fencedTransaction({ term }, standby, never)).rejects.toMatchObject(refusal)
    } finally {
      await standby.end()
    }
  })
})

describe('SET TRANSACTION as the first statement of a transaction', () => {
  test.each([
    ['begin', ['set transaction isolation level serializable'], ['serializable', 'off', 'off']],
    ['BEGIN;', ['SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;'], ['repeatable read', 'off', 'off']],
    [
      'start transaction -- so',
      ['set transaction isolation level serializable', 'set transaction read only, deferrable'],
      ['serializable', 'on', 'on'],
    ],
    [
      'begin isolation level serializable',
      ['set local transaction read write'],
      ['serializable', 'off', 'off'],
    ],
    ['begin read only', [`set transaction_isolation = 'serializable'`], ['serializable', 'on', 'off']],
    ['begin', [`set local transaction_isolation to "repeatable read"`], ['repeatable read', 'off', 'off']],
    ['begin', ['/* a */ set transaction read only'], ['read committed', 'on', 'off']],
    [
      'begin',
      ['set transaction isolation level serializable', 'set transaction isolation level read committed'],
      ['read committed', 'off', 'off'],
    ],
  ])('%j, then %j', async (begin, modes, expected) => {
    const see = async (client: PoolClient): Promise<unknown> => [
      await setting(client, 'transaction_isolation'),
      await setting(client, 'transaction_read_only'),
      await setting(client, 'transaction_deferrable'),
    ]
    await lease.session(pool, async (client) => {
      await client.query(begin)
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      for (const mode of modes) expect(await client.query(mode)).toMatchObject({ command: 'SET' })
      expect(await isFenced()).toBe(expected[1] === 'off')
      expect(await see(client)).toEqual(expected)
      if (expected[1] === 'off') await add(client, 'written')
      await client.query('commit')
      await client.query('begin')
      expect(await see(client)).toEqual(['read committed', 'off', 'off'])
      await client.query('rollback')
    })
    expect(await texts()).toEqual(expected[1] === 'off' ? ['written'] : [])
  })

  test('is refused after a newer grant', async () => {
    const stale = fencedSession({ term: lease.term }, pool, async (client) => {
      await client.query('begin')
      await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
      await client.query('set transaction isolation level serializable').catch(() => {})
      await add(client, 'late').catch(() => {})
      await client.query('commit').catch(() => {})
    })
    await expect(stale).rejects.toThrow(HolderExpiredError)
    expect(await texts()).toEqual([])
  })

  test('is what the server makes of it later, and in a savepoint', async () => {
    await lease.session(pool, async (client) => {
      for (const first of [`insert into notes values ('kept?')`, 'savepoint here']) {
        /* oxlint-disable no-await-in-loop -- One after the other. */
        await client.query('begin')
        await client.query(first)
        await expect(client.query('set transaction isolation level serializable')).rejects.toMatchObject({
          code: '25001',
        })
        await client.query('rollback')
        /* oxlint-enable no-await-in-loop */
      }
    })
    expect(await texts()).toEqual([])
  })

  test('has no effect outside of a transaction, and ends no session', async () => {
    await lease.session(pool, async (client) => {
      await client.query('set transaction isolation level serializable')
      expect(await setting(client, 'transaction_isolation')).toBe('read committed')
      await add(client, 'after')
    })
    expect(await texts()).toEqual(['after'])
  })

  test('that met a lock timeout leaves the transaction aborted, not ended', async () => {
    const blocker = await database.session()
    await lease.session(pool, async (client) => {
      await client.query(`set lock_timeout = '50ms'`)
      await client.query('begin')
      await blocker.query('begin')
      // The server gives it the table at the very end of the transaction. A row would go to whoever comes first.
      const lock = 'lock table fencepost.lease in access exclusive mode'
      const blocking = blocker.query(lock)
      const waiting = `select from pg_stat_activity where query = $1 and wait_event_type = 'Lock'`
      await expect.poll(() => database.query(waiting, [lock])).toHaveLength(1)
      const changing = client.query('set transaction isolation level serializable')
      await expect(changing).rejects.toMatchObject({ code: 'TRANSACTION_RETRYABLE' })
      await blocking
      await expect(add(client, 'outside')).rejects.toMatchObject({ code: '25P02' })
      await client.query('rollback')
      await blocker.query('rollback')
      await add(client, 'after')
    })
    expect(await texts()).toEqual(['after'])
  })

  test('that is malformed leaves nothing that could commit', async () => {
    const writing = lease.session(pool, async (client) => {
      await client.query('begin')
      await client.query('set transaction isolation level bogus').catch(() => {})
      await add(client, 'after an error').catch(() => {})
      await client.query('commit').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({ code: 'QUERY_FAILED', sqlState: '42601' })
    expect(await texts()).toEqual([])
  })

  test('that would bring in a snapshot is refused', async () => {
    const exporter = await database.session()
    await exporter.query('begin isolation level repeatable read')
    const { rows } = await exporter.query<{ id: string }>('select pg_export_snapshot() as id')
    const writing = lease.session(pool, async (client) => {
      await client.query('begin isolation level repeatable read')
      await client.query(`set transaction snapshot '${rows[0]!.id}'`).catch(() => {})
      await add(client, 'in another snapshot').catch(() => {})
      await client.query('commit').catch(() => {})
    })
    await expect(writing).rejects.toMatchObject({
      code: 'QUERY_FAILED',
      message: expect.stringMatching(/snapshot/) as string,
    })
    expect(await texts()).toEqual([])
    await exporter.query('rollback')
  })
})
