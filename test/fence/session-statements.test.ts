import { type Generated, Kysely, PostgresDialect } from 'kysely'
import type { Pool, PoolConfig } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type Fence,
  type Fencepost,
  FencedRepository,
  type Lease,
  StaleTermError,
  fencedTransaction,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'

const database = useDatabase()

interface Tables {
  accounts: {
    id: number
    status: string | null
    amount: Generated<number>
    fence_token: Generated<string>
  }
}

let fencepost: Fencepost
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query(`create table accounts (id integer primary key, status text, amount integer not null default 0,
    fence_token bigint not null default 0)`)
  fencepost = await database.open()
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`statements-${names}`)
  await database.query('insert into accounts (id) values (1)')
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate accounts')
})

const amounts = (): Promise<unknown[]> => database.query('select id, amount from accounts order by id')

/** Somebody else is granted the lease. */
async function steal(): Promise<void> {
  await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
  const thief = await database.open()
  await thief.acquire(lease.name)
}

/** What fencepost keeps in the one session of a pool. */
async function kept(pool: Pool): Promise<{ count: number; calls: number }> {
  const { rows } = await pool.query<{ count: number; calls: number }>(
    `select count(*)::integer as count, coalesce(sum(generic_plans + custom_plans), 0)::integer as calls
       from pg_prepared_statements where name like 'fencepost%'`,
  )
  return rows[0]!
}

/** Writes that are fenced, each in a transaction of its own. */
interface Way {
  readonly pool: Pool
  /** Adds to the amount of account 1, and gives how many rows that were. */
  add(amount: number): Promise<number>
}

/** The term alone, of which this process does not know when it is lost. */
const bare = (): Fence => ({ term: lease.term })

const text = 'update accounts set amount = amount + $1 where id = 1'

function onPool(begin: 'at-once' | 'with-first-statement', config: PoolConfig = {}): Way {
  const pool = database.newPool({ max: 1, ...config })
  return {
    pool,
    add: async (amount) =>
      (await fencedTransaction(bare(), pool, (client) => client.query(text, [amount]), { begin })).rowCount ??
      0,
  }
}

function repositoryOn(config: PoolConfig): { pool: Pool; accounts: FencedRepository<Tables, 'accounts'> } {
  const pool = database.newPool({ max: 1, ...config })
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
  return { pool, accounts: new FencedRepository(db, 'accounts', { key: 'id' }) }
}

const ways: Readonly<Record<string, (config?: PoolConfig) => Way>> = {
  'a transaction': (config) => onPool('at-once', config),
  'a transaction that begins with its first statement': (config) => onPool('with-first-statement', config),
  'a transaction on Kysely': (config = {}) => {
    const pool = database.newPool({ max: 1, ...config })
    const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
    return {
      pool,
      add: (amount) =>
        fencedTransaction(bare(), db, async (tx) => {
          const [result] = await tx
            .updateTable('accounts')
            .set((eb) => ({ amount: eb('amount', '+', amount) }))
            .where('id', '=', 1)
            .execute()
          return Number(result!.numUpdatedRows)
        }),
    }
  },
  'a write of one row': (config = {}) => {
    const { pool, accounts } = repositoryOn(config)
    return {
      pool,
      add: async (amount) => {
        const { rows } = await pool.query<{ amount: number }>('select amount from accounts where id = 1')
        const row = await accounts.update(bare(), 1, { amount: (rows[0]?.amount ?? 0) + amount })
        return row === undefined ? 0 : 1
      },
    }
  },
  'a write of many rows': (config = {}) => {
    const { pool, accounts } = repositoryOn(config)
    return {
      pool,
      add: (amount) =>
        accounts.updateWhere(bare(), (eb) => eb('id', '=', 1), {
          amount: ((eb: (...args: unknown[]) => unknown) => eb('amount', '+', amount)) as never,
        }),
    }
  },
}

const each = Object.entries(ways)

/** Often enough for the session to be known, the statement to be kept, and PostgreSQL to have made one plan for all its values. */
async function warm(way: Way): Promise<void> {
  for (let turn = 0; turn < 9; turn += 1) {
    // oxlint-disable-next-line no-await-in-loop -- One after the other.
    expect(await way.add(1)).toBe(1)
  }
}

describe.each(each)('%s', (what, open) => {
  test('is kept by its session from its third time on', async () => {
    const way = open()
    await way.add(1)
    await way.add(1)
    expect((await kept(way.pool)).calls).toBeLessThan(2)
    await warm(way)
    const { count, calls } = await kept(way.pool)
    expect(count).toBe(1)
    expect(calls).toBeGreaterThan(7)
    expect(await amounts()).toEqual([{ id: 1, amount: 11 }])
  })

  test.each(['discard all', 'deallocate all'])('goes on after %s, and writes once', async (discard) => {
    const way = open()
    await warm(way)
    await way.pool.query(discard)
    expect(await way.add(10)).toBe(1)
    expect(await amounts()).toEqual([{ id: 1, amount: 19 }])
    await way.pool.query(discard)
    expect(await way.add(10)).toBe(1)
    // Whoever does this does it again: what is discarded each time costs more than it saves.
    expect((await kept(way.pool)).count).toBe(0)
    expect(await amounts()).toEqual([{ id: 1, amount: 29 }])
  })

  test('under a stale term is refused, whether it meets a row or not', async () => {
    const way = open()
    await warm(way)
    await steal()
    await expect(way.add(1)).rejects.toThrow(StaleTermError)
    await database.query('delete from accounts')
    await expect(way.add(1)).rejects.toThrow(StaleTermError)
    expect((await kept(way.pool)).count).toBe(1)
  })

  test('is not taken for kept when its first time failed', async () => {
    const way = open()
    await way.add(1)
    await way.add(1)
    const stolen = lease
    await steal()
    await expect(way.add(1)).rejects.toThrow(StaleTermError)
    lease = await fencepost.acquire(`statements-${names}-anew`)
    await warm(way)
    expect(await amounts()).toEqual([{ id: 1, amount: 11 }])
    // And is kept all the same.
    expect((await kept(way.pool)).calls).toBeGreaterThan(7)
    await stolen.release()
  })

  test.skipIf(pgbouncerReason() !== undefined)(
    'is sent without a name behind PgBouncer in transaction mode',
    async () => {
      await using bouncer = await PgBouncer.start(database.url)
      const url = new URL(bouncer.url)
      url.pathname = new URL(database.url).pathname
      const several = [1, 2, 3, 4].map(() => open({ connectionString: url.href }))
      if (what === 'a write of one row') {
        // It reads what it adds to.
        for (const way of several) {
          // oxlint-disable-next-line no-await-in-loop -- One after the other.
          await warm(way)
        }
      } else {
        await Promise.all(several.map((way) => warm(way)))
      }
      expect(await amounts()).toEqual([{ id: 1, amount: 36 }])
      const counts = await Promise.all(several.map(async ({ pool }) => (await kept(pool)).count))
      expect(counts).toEqual([0, 0, 0, 0])
      await Promise.all(several.map(({ pool }) => pool.end()))
    },
  )
})

describe('a write of one row', () => {
  test('gives the columns that the table has now', async () => {
    const { pool, accounts } = repositoryOn({})
    const update = async (): Promise<unknown> => accounts.update(lease, 1, { amount: 7 })
    for (let turn = 0; turn < 5; turn += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      expect(await update()).toEqual({ id: 1, status: null, amount: 7, fence_token: lease.token.toString() })
    }
    for (const column of ['first', 'second']) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await database.query(`alter table accounts add column ${column} text default '${column}'`)
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      expect(await update()).toMatchObject({ amount: 7, [column]: column })
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await update()
    }
    // It is kept anew each time.
    expect((await kept(pool)).count).toBe(3)
    await database.query('alter table accounts drop column first, drop column second')
    expect(await update()).toEqual({ id: 1, status: null, amount: 7, fence_token: lease.token.toString() })
  })

  test('of a table with rules goes on being a transaction of four round trips', async () => {
    await database.query(`create table ruled (id integer primary key, amount integer not null default 0,
      fence_token bigint not null default 0)`)
    await database.query(`create table log (id integer)`)
    await database.query('create rule logged as on update to ruled do also insert into log values (new.id)')
    await database.query('insert into ruled values (1)')
    const db = database.kysely<{ ruled: Tables['accounts'] }>({ max: 1 })
    const ruled = new FencedRepository(db, 'ruled', { key: 'id' })
    for (let turn = 1; turn < 6; turn += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      expect(await ruled.update(lease, 1, { amount: turn })).toMatchObject({ amount: turn })
    }
    expect(await database.query('select count(*)::integer as count from log')).toEqual([{ count: 5 }])
  })

  test('whose name means something else in the session is sent without', async () => {
    const { pool, accounts } = repositoryOn({})
    const other = repositoryOn({})
    for (let turn = 0; turn < 4; turn += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await other.accounts.update(lease, 1, { amount: 1 })
    }
    const { rows } = await other.pool.query<{ name: string }>(
      `select name from pg_prepared_statements where name like 'fencepost%'`,
    )
    await pool.query(`prepare ${rows[0]!.name} as select 'something else'`)
    for (let turn = 0; turn < 5; turn += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      expect(await accounts.update(lease, 1, { amount: turn })).toMatchObject({ amount: turn })
    }
  })

  test('is kept for a hundred sets of columns, and written for every one', async () => {
    const columns = Array.from({ length: 7 }, (_, index) => `c${index}`)
    await database.query(`create table wide (id integer primary key, ${columns.map((name) => `${name} integer`).join(', ')},
      fence_token bigint not null default 0)`)
    await database.query('insert into wide values (1)')
    type Wide = { id: number; fence_token: Generated<string> } & Record<`c${number}`, number>
    const pool = database.newPool({ max: 1 })
    const wide = new FencedRepository(
      new Kysely<{ wide: Wide }>({ dialect: new PostgresDialect({ pool }) }),
      'wide',
      {
        key: 'id',
      },
    )
    for (let set = 1; set < 2 ** columns.length; set += 1) {
      const patch = Object.fromEntries(
        columns.filter((__, index) => (set & (1 << index)) !== 0).map((name) => [name, set]),
      )
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      expect(await wide.update(lease, 1, patch)).toMatchObject(patch)
    }
    expect((await kept(pool)).count).toBe(100)
  })
})
