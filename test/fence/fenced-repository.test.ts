import { CamelCasePlugin, type Generated, Kysely, PostgresDialect, sql } from 'kysely'
import { types } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type Fence,
  type Fencepost,
  FencedRepository,
  type Lease,
  OutcomeUnknownError,
  SequenceMismatchError,
  StaleTermError,
  fencedTransaction,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()

interface Tables {
  accounts: { id: number; status: string; amount: Generated<number>; fence_token: Generated<string> }
  shares: { account: number; holder: string; part: number; guard: Generated<string> }
  unfenced: { id: number; fence_token: Generated<string> }
  missing: { id: number; fence_token: Generated<string> }
}

class Accounts extends FencedRepository<Tables, 'accounts'> {
  settle(fence: Fence, id: number): Promise<unknown> {
    return this.update(fence, id, { status: 'settled' })
  }
}

let fencepost: Fencepost
let db: Kysely<Tables>
let accounts: Accounts
let once: FencedRepository<Tables, 'accounts'>
let shares: FencedRepository<Tables, 'shares', 'account' | 'holder', 'guard'>
let lease: Lease
let names = 0

beforeAll(async () => {
  await database.query(`
    create table accounts (
      id integer primary key, status text not null, amount integer not null default 0,
      fence_token bigint not null default 0);
    create table shares (
      account integer, holder text, part integer not null, guard bigint not null default 0,
      primary key (account, holder));
    create table unfenced (id integer primary key)`)
  fencepost = await database.open()
  db = database.kysely<Tables>()
  accounts = new Accounts(db, 'accounts', { key: 'id' })
  once = new FencedRepository(db, 'accounts', { key: 'id', once: true })
  shares = new FencedRepository(db, 'shares', { key: ['account', 'holder'], fenceColumn: 'guard' })
})

beforeEach(async () => {
  names += 1
  lease = await fencepost.acquire(`repository-${names}`)
})

afterEach(async () => {
  await lease.release()
  await database.query('truncate accounts, shares')
})

const stored = (): Promise<Record<string, unknown>[]> => database.query('select * from accounts order by id')

/** A term that has been succeeded, and the lease of its successor. */
async function superseded(): Promise<{ stale: Fence; newer: Lease }> {
  const first = await fencepost.acquire(`superseded-${names}`)
  await first.release()
  return { stale: { term: first.term }, newer: await fencepost.acquire(first.name) }
}

/** The same under a lease alone and inside its fenced transaction. */
const ways = [
  ['in one statement', (of: Fence, write: (fence: Fence) => Promise<unknown>) => write(of)],
  [
    'in a fenced transaction',
    (of: Fence, write: (fence: Fence) => Promise<unknown>) => fencedTransaction(of, db, (tx) => write(tx)),
  ],
] as const

describe.each(ways)('%s', (_, through) => {
  test('every write stamps the token and returns the row as it is', async () => {
    const token = lease.token.toString()
    expect(await through(lease, (fence) => accounts.insert(fence, { id: 1, status: 'due' }))).toEqual({
      id: 1,
      status: 'due',
      amount: 0,
      fence_token: token,
    })
    expect(
      await through(lease, (fence) =>
        accounts.insertMany(fence, [
          { id: 2, status: 'due' },
          { id: 3, status: 'new', amount: 9 },
        ]),
      ),
    ).toHaveLength(2)
    expect(await through(lease, (fence) => accounts.settle(fence, 1))).toMatchObject({
      status: 'settled',
      fence_token: token,
    })
    expect(await through(lease, (fence) => accounts.upsert(fence, { id: 3, status: 'up' }))).toMatchObject({
      status: 'up',
      amount: 9,
    })
    expect(await through(lease, (fence) => accounts.upsert(fence, { id: 4, status: 'ins' }))).toMatchObject({
      status: 'ins',
    })
    expect(
      await through(lease, (fence) => accounts.updateWhere(fence, (eb) => eb('id', '>', 2), { amount: 5 })),
    ).toBe(2)
    expect(await through(lease, (fence) => accounts.delete(fence, 4))).toEqual({
      id: 4,
      status: 'ins',
      amount: 5,
      fence_token: token,
    })
    expect(await through(lease, (fence) => accounts.deleteWhere(fence, (eb) => eb('id', 'in', [2, 3])))).toBe(
      2,
    )
    expect(await stored()).toEqual([{ id: 1, status: 'settled', amount: 0, fence_token: token }])
  })

  test('a row that is not there is "not found", which is neither written nor stale', async () => {
    expect(await through(lease, (fence) => accounts.update(fence, 9, { status: 'x' }))).toBeUndefined()
    expect(await through(lease, (fence) => accounts.delete(fence, 9))).toBeUndefined()
    expect(
      await through(lease, (fence) => accounts.updateWhere(fence, (eb) => eb('id', '=', 9), { status: 'x' })),
    ).toBe(0)
    expect(await through(lease, (fence) => accounts.deleteWhere(fence, (eb) => eb('id', '=', 9)))).toBe(0)
    expect(await through(lease, (fence) => accounts.insertMany(fence, []))).toEqual([])
  })

  const writes: [string, (fence: Fence) => Promise<unknown>][] = [
    ['insert', (fence) => accounts.insert(fence, { id: 5, status: 'stale' })],
    [
      'insert of a row the newer term has deleted',
      (fence) => accounts.insert(fence, { id: 2, status: 'stale' }),
    ],
    [
      'insertMany',
      (fence) =>
        accounts.insertMany(fence, [
          { id: 5, status: 'stale' },
          { id: 6, status: 'stale' },
        ]),
    ],
    ['update', (fence) => accounts.update(fence, 1, { status: 'stale' })],
    ['update of a row that is not there', (fence) => accounts.update(fence, 9, { status: 'stale' })],
    ['updateWhere', (fence) => accounts.updateWhere(fence, (eb) => eb('id', '<', 5), { status: 'stale' })],
    [
      'updateWhere that meets no row',
      (fence) => accounts.updateWhere(fence, (eb) => eb('id', '>', 50), { status: 'stale' }),
    ],
    ['upsert of a row that is there', (fence) => accounts.upsert(fence, { id: 1, status: 'stale' })],
    ['upsert of a row that is not there', (fence) => accounts.upsert(fence, { id: 5, status: 'stale' })],
    ['delete', (fence) => accounts.delete(fence, 1)],
    ['delete of a row that is not there', (fence) => accounts.delete(fence, 9)],
    ['deleteWhere', (fence) => accounts.deleteWhere(fence, (eb) => eb('id', '<', 5))],
    ['deleteWhere that meets no row', (fence) => accounts.deleteWhere(fence, (eb) => eb('id', '>', 50))],
  ]

  test.each(writes)('a stale %s is refused and writes nothing', async (_name, write) => {
    const { stale, newer } = await superseded()
    await accounts.insertMany(newer, [
      { id: 1, status: 'mine' },
      { id: 2, status: 'mine' },
    ])
    await accounts.delete(newer, 2)
    const before = await stored()
    const refused = through(stale, write)
    await expect(refused).rejects.toThrow(StaleTermError)
    await expect(refused).rejects.toMatchObject({ token: stale.term.token, currentToken: newer.token })
    expect(await stored()).toEqual(before)
  })

  const guarded = writes.filter(([name]) =>
    ['update', 'updateWhere', 'upsert of a row that is there', 'delete', 'deleteWhere'].includes(name),
  )

  test.each(guarded)(
    '%s refuses a row that carries a newer stamp, as after a restore of the leases',
    async (_name, write) => {
      await database.query(
        `insert into accounts values (1, 'newer', 0, 9007199254740993), (2, 'older', 0, 1)`,
      )
      const before = await stored()
      const refused = through(lease, write)
      await expect(refused).rejects.toThrow(StaleTermError)
      await expect(refused).rejects.toMatchObject({ token: lease.token, currentToken: 9007199254740993n })
      expect(await stored()).toEqual(before)
    },
  )

  test('a condition that leaves a newer row out is not disturbed by it', async () => {
    await database.query(`insert into accounts values (1, 'newer', 0, 9007199254740993), (2, 'older', 0, 1)`)
    expect(
      await through(lease, (fence) =>
        accounts.updateWhere(fence, (eb) => eb('status', '=', 'older'), { amount: 1 }),
      ),
    ).toBe(1)
    expect(
      await through(lease, (fence) => accounts.deleteWhere(fence, (eb) => eb('status', '=', 'older'))),
    ).toBe(1)
  })

  test('composite keys and another name for the fence column', async () => {
    const key = { account: 1, holder: 'a' }
    const token = lease.token.toString()
    expect(await through(lease, (fence) => shares.insert(fence, { ...key, part: 1 }))).toEqual({
      ...key,
      part: 1,
      guard: token,
    })
    expect(await through(lease, (fence) => shares.upsert(fence, { ...key, part: 2 }))).toMatchObject({
      part: 2,
    })
    expect(await through(lease, (fence) => shares.update(fence, key, { part: 3 }))).toMatchObject({ part: 3 })
    expect(await shares.find(key)).toMatchObject({ part: 3 })
    expect(await through(lease, (fence) => shares.delete(fence, key))).toMatchObject({ part: 3 })
    expect(await shares.find(key)).toBeUndefined()
  })
})

describe('find', () => {
  test('reads without a fence, and inside a transaction when given one', async () => {
    await accounts.insert(lease, { id: 1, status: 'due' })
    expect(await accounts.find(1)).toMatchObject({ status: 'due' })
    expect(await accounts.find(2)).toBeUndefined()
    await lease.transaction(db, async (tx) => {
      await accounts.update(tx, 1, { status: 'changed' })
      expect(await accounts.find(1, tx)).toMatchObject({ status: 'changed' })
      expect(await accounts.find(1)).toMatchObject({ status: 'due' })
    })
  })

  test('findForUpdate locks the row until the transaction ends', async () => {
    await accounts.insert(lease, { id: 1, status: 'due' })
    await lease.transaction(db, async (tx) => {
      expect(await accounts.findForUpdate(tx, 1)).toMatchObject({ status: 'due' })
      expect(await database.query('select from accounts where id = 1 for update skip locked')).toEqual([])
    })
    expect(await database.query('select from accounts where id = 1 for update skip locked')).toHaveLength(1)
  })
})

describe('once', () => {
  test('the same token never writes a row twice', async () => {
    await once.insert(lease, { id: 1, status: 'paid' })
    for (const again of [
      () => once.update(lease, 1, { amount: 1 }),
      () => once.upsert(lease, { id: 1, status: 'again' }),
      () => once.updateWhere(lease, (eb) => eb('id', '=', 1), { amount: 1 }),
      () => once.delete(lease, 1),
    ]) {
      await expect(again()).rejects.toMatchObject({
        code: 'STALE_TERM',
        currentToken: lease.token,
        by: 'row',
        message: expect.stringContaining('already written under this token') as string,
      })
    }
    expect(await stored()).toMatchObject([{ status: 'paid', amount: 0 }])
    const next = await fencepost.acquire(`${lease.name}/next`)
    expect(await once.update(next, 1, { amount: 2 })).toMatchObject({ amount: 2 })
    await expect(once.update(next, 1, { amount: 4 })).rejects.toThrow(StaleTermError)
  })

  test('by default a term may write its row again', async () => {
    await accounts.insert(lease, { id: 1, status: 'due' })
    await accounts.settle(lease, 1)
    expect(await accounts.settle(lease, 1)).toMatchObject({ status: 'settled' })
  })
})

describe('a stale write sets nothing off before it is refused', () => {
  beforeAll(() =>
    database.query(`
      create table audit (what text not null);
      create table soft (id integer primary key, deleted boolean not null default false,
                         fence_token bigint not null default 0);
      create function soft_delete() returns trigger language plpgsql as $$
        begin update soft set deleted = true where id = old.id; return null; end $$;
      create trigger soft_delete before delete on soft for each row execute function soft_delete();
      create function audit_statement() returns trigger language plpgsql as $$
        begin insert into audit values (tg_op); return null; end $$;
      create trigger audit_statement after insert or update or delete on soft
        for each statement execute function audit_statement();
      create function touch() returns boolean language plpgsql as $$
        begin insert into audit values ('touched'); return true; end $$;
      create view soft_view as select * from soft;
      create function instead() returns trigger language plpgsql as $$
        begin update soft set deleted = true where id = old.id; return null; end $$;
      create trigger instead instead of delete on soft_view for each row execute function instead()`),
  )

  interface Soft {
    soft: { id: number; deleted: boolean; fence_token: Generated<string> }
    soft_view: { id: number; deleted: boolean; fence_token: Generated<string> }
  }

  const attempts: [
    string,
    (
      soft: FencedRepository<Soft, 'soft'>,
      view: FencedRepository<Soft, 'soft_view'>,
      fence: Fence,
    ) => Promise<unknown>,
  ][] = [
    ['a delete that a trigger turns into an update', (soft, _view, fence) => soft.delete(fence, 1)],
    [
      'a deleteWhere of the same kind',
      (soft, _view, fence) => soft.deleteWhere(fence, (eb) => eb('id', '=', 1)),
    ],
    ['a delete on a view with a trigger instead', (_soft, view, fence) => view.delete(fence, 1)],
    [
      'an update of a row that is not there, with a statement trigger',
      (soft, _view, fence) => soft.update(fence, 9, { deleted: true }),
    ],
    [
      'a condition with a side effect',
      (soft, _view, fence) =>
        soft.updateWhere(
          fence,
          (eb) => eb.and([eb('id', '=', 9), eb(eb.fn<boolean>('touch', []), '=', true)]),
          { deleted: true },
        ),
    ],
    [
      'a condition with a side effect that meets a row',
      (soft, _view, fence) =>
        soft.updateWhere(fence, (eb) => eb(eb.fn<boolean>('touch', []), '=', true), { deleted: true }),
    ],
  ]

  test.each(attempts)('%s', async (_name, attempt) => {
    const { stale } = await superseded()
    await database.query(`truncate soft, audit; insert into soft (id) values (1); truncate audit`)
    const softDb = database.kysely<Soft>()
    const soft = new FencedRepository(softDb, 'soft', { key: 'id' })
    const view = new FencedRepository(softDb, 'soft_view', { key: 'id' })
    await expect(attempt(soft, view, stale)).rejects.toThrow(StaleTermError)
    expect(await database.query('select deleted from soft')).toEqual([{ deleted: false }])
    expect(await database.query('select * from audit')).toEqual([])
  })
})

test.each(ways)(
  'a stale write under a condition that is false from the start is told so %s',
  async (_, through) => {
    const { stale } = await superseded()
    const write = (fence: Fence) => accounts.updateWhere(fence, (eb) => eb.lit(false), { status: 'x' })
    await expect(through(stale, write)).rejects.toThrow(StaleTermError)
  },
)

test('an insert that a trigger swallows is an error, not a row', async () => {
  await database.query(`
    create table swallowing (id integer primary key, fence_token bigint not null default 0);
    create function swallow() returns trigger language plpgsql as $$ begin return null; end $$;
    create trigger swallow before insert on swallowing for each row execute function swallow()`)
  const swallowing = database.kysely<{ swallowing: { id: number; fence_token: Generated<string> } }>()
  const repository = new FencedRepository(swallowing, 'swallowing', { key: 'id' })
  await expect(repository.insert(lease, { id: 1 })).rejects.toMatchObject({ code: 'QUERY_FAILED' })
  await expect(repository.upsert(lease, { id: 1 })).rejects.toMatchObject({ code: 'QUERY_FAILED' })
})

test('upsert leaves a column alone whose value is undefined', async () => {
  await accounts.insert(lease, { id: 1, status: 'due', amount: 5 })
  expect(await accounts.upsert(lease, { id: 1, status: 'changed', amount: undefined })).toMatchObject({
    amount: 5,
  })
})

test('a fence column that lets nulls in counts them as written by no term', async () => {
  await database.query(
    'create table lax (id integer primary key, text text, fence_token bigint); insert into lax values (1)',
  )
  const lax = database.kysely<{ lax: { id: number; text: string | null; fence_token: Generated<string> } }>()
  const repository = new FencedRepository(lax, 'lax', { key: 'id' })
  expect(await repository.update(lease, 1, { text: 'x' })).toMatchObject({
    fence_token: lease.token.toString(),
  })
})

describe('a write that has to wait', () => {
  test('behind the successor’s uncommitted write is refused, for the row is looked at after the wait', async () => {
    await accounts.insert(lease, { id: 1, status: 'mine' })
    const { term } = lease
    const successor = await database.session()
    await successor.query('begin')
    await successor.query(`update accounts set status = 'newer', fence_token = $1 where id = 1`, [
      (lease.token + 1_000_000n).toString(),
    ])
    const waiting = [
      accounts.update({ term }, 1, { status: 'late' }),
      accounts.upsert({ term }, { id: 1, status: 'late' }),
      accounts.delete({ term }, 1),
    ]
    const outcomes = Promise.allSettled(waiting)
    await expect
      .poll(
        async () =>
          (
            await database.query(
              `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
            )
          ).length,
      )
      .toBe(3)
    await successor.query('commit')
    for (const outcome of await outcomes) {
      expect(outcome).toMatchObject({
        status: 'rejected',
        reason: { code: 'STALE_TERM', currentToken: lease.token + 1_000_000n },
      })
    }
    expect(await stored()).toMatchObject([{ status: 'newer' }])
  })

  test('holds off the next term until it has committed', async () => {
    await accounts.insert(lease, { id: 1, status: 'mine' })
    const blocker = await database.session()
    await blocker.query('begin')
    await blocker.query('select from accounts where id = 1 for update')
    // The row is locked before the fence is evaluated, or after it: either way the write and the next term cannot cross.
    const writing = accounts.update(lease, 1, { status: 'crossing' })
    await expect
      .poll(
        async () =>
          (
            await database.query(
              `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
            )
          ).length,
      )
      .toBe(1)
    await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
    const other = await database.open()
    const next = await other.tryAcquire(lease.name)
    await blocker.query('commit')
    const outcome = await Promise.allSettled([writing])
    if (next === null) expect(outcome[0].status).toBe('fulfilled')
    else expect(outcome[0]).toMatchObject({ reason: { code: 'STALE_TERM' } })
    lease = next ?? (await other.acquire(lease.name))
    expect(await accounts.update(lease, 1, { status: 'next' })).toMatchObject({ status: 'next' })
  })
})

describe('tokens are exact', () => {
  test.each([2n ** 53n - 1n, 2n ** 53n, 2n ** 53n + 1n, 2n ** 63n - 3n])(
    'around %i, with parsers of the host program that are not',
    async (floor) => {
      const sequence = `exact-${floor}`
      await database.query('select fencepost.raise_token_floor($1, $2)', [sequence, floor.toString()])
      const original = types.getTypeParser(types.builtins.INT8)
      types.setTypeParser(types.builtins.INT8, () => 'hostile')
      types.setTypeParser(types.builtins.BOOL, () => 'hostile')
      types.setTypeParser(types.builtins.TEXT, () => 'hostile')
      try {
        const repository = new FencedRepository<Tables, 'accounts'>(db, 'accounts', { key: 'id', sequence })
        const exact = await fencepost.acquire(`exact-${floor}`, { sequence })
        expect(exact.token).toBe(floor + 1n)
        await repository.insert(exact, { id: 1, status: 'exact' })
        await repository.update(exact, 1, { status: 'again' })
        expect(await exact.transaction(db, (tx) => repository.update(tx, 1, { status: 'tx' }))).toBeDefined()
        expect(await exact.release()).toBe('released')
        const older = await fencepost.acquire(`exact-${floor}`, { sequence })
        expect(older.token).toBe(floor + 2n)
        await expect(repository.update({ term: exact.term }, 1, { status: 'stale' })).rejects.toMatchObject({
          code: 'STALE_TERM',
          currentToken: floor + 2n,
        })
        await older.release()
      } finally {
        types.setTypeParser(types.builtins.INT8, original)
        types.setTypeParser(types.builtins.BOOL, (text) => text === 't')
        types.setTypeParser(types.builtins.TEXT, (text) => text)
      }
      const rows = await database.query<{ stamp: string }>('select fence_token::text as stamp from accounts')
      expect(rows).toEqual([{ stamp: (floor + 1n).toString() }])
    },
  )

  test('a sequence at its end is an error that says so', async () => {
    await database.query(`select fencepost.raise_token_floor('over', 9223372036854775807)`)
    await expect(fencepost.acquire('over', { sequence: 'over' })).rejects.toMatchObject({
      code: 'TOKEN_OVERFLOW',
    })
  })
})

describe('wrong use is named', () => {
  test('a term of another sequence', async () => {
    const other = await fencepost.acquire(`other-${names}`, { sequence: 'payouts' })
    await expect(accounts.update(other, 1, { status: 'x' })).rejects.toThrow(SequenceMismatchError)
  })

  test('a missing fence column, with the statement that adds it', async () => {
    const repository = new FencedRepository(db, 'unfenced', { key: 'id' })
    for (const write of [
      () => repository.insert(lease, { id: 1 }),
      () => repository.update(lease, 1, { id: 2 }),
      () => repository.upsert(lease, { id: 1 }),
      () => repository.delete(lease, 1),
      () => lease.transaction(db, (tx) => repository.delete(tx, 1)),
    ]) {
      await expect(write()).rejects.toMatchObject({
        code: 'FENCE_COLUMN_MISSING',
        message: expect.stringContaining('add column fence_token bigint not null default 0') as string,
      })
    }
  })

  test('an unknown table and an unknown column', async () => {
    const repository = new FencedRepository(db, 'missing', { key: 'id' })
    await expect(repository.find(1)).rejects.toMatchObject({ code: 'UNKNOWN_TABLE' })
    await expect(repository.insert(lease, { id: 1 })).rejects.toMatchObject({ code: 'UNKNOWN_TABLE' })
    const patch = { colour: 'red' } as unknown as { status: string }
    await expect(accounts.update(lease, 1, patch)).rejects.toMatchObject({ code: 'UNKNOWN_COLUMN' })
  })

  test('a value for the fence column, an incomplete key and an empty one', async () => {
    const row = { id: 1, status: 'x', fence_token: '99' }
    await expect(accounts.insert(lease, row)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument: 'fence_token',
    })
    await expect(accounts.update(lease, 1, row)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    const part = { account: 1 } as unknown as { account: number; holder: string }
    await expect(shares.update(lease, part, { part: 1 })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument: 'key',
    })
    await expect(accounts.delete(lease, undefined as unknown as number)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
    })
    expect(() => new FencedRepository(db, 'accounts', { key: [] as 'id'[] })).toThrow(/key must name/)
  })

  test('a lease that was lost or released, before any SQL', async () => {
    await lease.release()
    await expect(accounts.insert(lease, { id: 1, status: 'x' })).rejects.toMatchObject({
      code: 'LEASE_RELEASED',
    })
    expect(await stored()).toEqual([])
  })

  test('a pool that has been ended, and a server that is not there', async () => {
    const gone = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: database.newPool() }) })
    await gone.selectFrom('accounts').selectAll().execute()
    await gone.destroy()
    const orphan = new FencedRepository(gone, 'accounts', { key: 'id' })
    await expect(orphan.insert(lease, { id: 1, status: 'x' })).rejects.toMatchObject({ code: 'POOL_ENDED' })
    const nowhere = new FencedRepository(
      database.kysely<Tables>({ connectionString: 'postgres://nobody@127.0.0.1:1/none' }),
      'accounts',
      { key: 'id' },
    )
    await expect(nowhere.insert(lease, { id: 1, status: 'x' })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
  })
})

test('a value that the driver cannot send is the driver’s own error: nothing is in doubt', async () => {
  const circular: Record<string, unknown> = {}
  circular['self'] = circular
  const row = { id: 1, status: circular as unknown as string }
  await expect(accounts.insert(lease, row)).rejects.toThrow(TypeError)
})

test('more rows than one statement takes are refused before they are sent', async () => {
  const rows = Array.from({ length: 30_000 }, (_, id) => ({ id, status: 'x', amount: 1 }))
  await expect(accounts.insertMany(lease, rows)).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    argument: 'rows',
  })
  expect(await accounts.insertMany(lease, rows.slice(0, 15_000))).toHaveLength(15_000)
})

test('a pool that has no session to give has sent nothing', async () => {
  const pool = database.newPool({ max: 1, idleTimeoutMillis: 0 })
  // Connecting would have to be as quick as waiting for the one session there is.
  await pool.query('select')
  pool.options.connectionTimeoutMillis = 50
  const small = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
  const repository = new FencedRepository<Tables, 'accounts'>(small, 'accounts', { key: 'id' })
  await small.connection().execute(async () => {
    await expect(repository.insert(lease, { id: 1, status: 'x' })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
  })
  expect(await repository.insert(lease, { id: 1, status: 'x' })).toMatchObject({ status: 'x' })
})

test('a function of the caller’s own that is missing is not taken for fencepost’s', async () => {
  const writing = accounts.updateWhere(lease, (eb) => eb(eb.fn<boolean>('no_such_function', []), '=', true), {
    amount: 1,
  })
  await expect(writing).rejects.toMatchObject({ code: '42883' })
})

test('a repository on a transaction is refused', async () => {
  await db.transaction().execute(async (tx) => {
    expect(() => new FencedRepository(tx, 'accounts', { key: 'id' })).toThrow(/db is a transaction/)
  })
})

test('a duplicate key is the database’s own error, unchanged', async () => {
  await accounts.insert(lease, { id: 1, status: 'x' })
  await expect(accounts.insert(lease, { id: 1, status: 'x' })).rejects.toMatchObject({ code: '23505' })
})

test('a driver that does not say how many rows it wrote is an error, never silence', async () => {
  class SilentDialect extends PostgresDialect {
    override createDriver() {
      const driver = super.createDriver()
      const acquire = driver.acquireConnection.bind(driver)
      driver.acquireConnection = async (...args) => {
        const connection = await acquire(...args)
        const execute = connection.executeQuery.bind(connection)
        return Object.assign(connection, {
          executeQuery: async (...query: Parameters<typeof execute>) => ({
            rows: (await execute(...query)).rows,
          }),
        })
      }
      return driver
    }
  }
  const mute = new Kysely<Tables>({ dialect: new SilentDialect({ pool: database.newPool() }) })
  const repository = new FencedRepository(mute, 'accounts', { key: 'id' })
  await accounts.insert(lease, { id: 1, status: 'x' })
  const write = lease.transaction(mute, (tx) =>
    repository.updateWhere(tx, (eb) => eb('id', '=', 1), { amount: 1 }),
  )
  await expect(write).rejects.toMatchObject({ code: 'QUERY_FAILED' })
  // A statement of its own has the database count.
  expect(await repository.updateWhere(lease, (eb) => eb('id', '=', 1), { amount: 1 })).toBe(1)
})

describe('a table with rules that add to a write', () => {
  beforeEach(() =>
    database.query(`
      create table if not exists heard (id integer);
      create rule also_insert as on insert to accounts do also insert into heard values (new.id);
      create rule also_update as on update to accounts do also insert into heard values (new.id);
      create rule also_delete as on delete to accounts do also insert into heard values (old.id)`),
  )
  afterEach(() =>
    database.query(`
      drop rule also_insert on accounts; drop rule also_update on accounts; drop rule also_delete on accounts; drop table heard`),
  )

  test('is written in a transaction, with the same outcomes', async () => {
    expect(await accounts.insert(lease, { id: 1, status: 'x' })).toMatchObject({
      fence_token: lease.token.toString(),
    })
    expect(await accounts.update(lease, 1, { status: 'y' })).toMatchObject({ status: 'y' })
    expect(await accounts.update(lease, 2, { status: 'y' })).toBeUndefined()
    expect(await accounts.updateWhere(lease, (eb) => eb('id', '=', 1), { status: 'z' })).toBe(1)
    await database.query('update accounts set fence_token = fence_token + 100')
    await expect(accounts.update(lease, 1, { status: 'late' })).rejects.toMatchObject({
      code: 'STALE_TERM',
      by: 'row',
    })
    await database.query('update accounts set fence_token = fence_token - 100')
    await database.query('update fencepost.lease set token = token + 1 where name = $1', [lease.name])
    await expect(accounts.update(lease, 1, { status: 'late' })).rejects.toMatchObject({
      code: 'STALE_TERM',
      by: 'lease',
    })
    await database.query('update fencepost.lease set token = token - 1 where name = $1', [lease.name])
    expect(await accounts.delete(lease, 1)).toMatchObject({ status: 'z' })
  })
})

test('a plugin that renames columns is respected', async () => {
  interface Camel {
    accounts: { id: number; status: string; fenceToken: Generated<string> }
    unfenced: { id: number; fenceToken: Generated<string> }
  }
  const camel = database.kysely<Camel>().withPlugin(new CamelCasePlugin())
  const repository = new FencedRepository(camel, 'accounts', { key: 'id', fenceColumn: 'fenceToken' })
  await repository.insert(lease, { id: 1, status: 'x' })
  expect(await repository.update(lease, 1, { status: 'y' })).toMatchObject({
    fenceToken: lease.token.toString(),
  })
  expect(await repository.delete(lease, 1)).toEqual({
    id: 1,
    status: 'y',
    amount: 0,
    fenceToken: lease.token.toString(),
  })
  const missing = new FencedRepository(camel, 'unfenced', { key: 'id', fenceColumn: 'fenceToken' })
  await expect(missing.insert(lease, { id: 1 })).rejects.toMatchObject({ code: 'FENCE_COLUMN_MISSING' })
})

test('a one-statement write whose answer is lost is of unknown outcome', async () => {
  const proxy = await TcpProxy.start(database.url)
  try {
    const through = new FencedRepository(
      database.kysely<Tables>({ connectionString: proxy.url }),
      'accounts',
      { key: 'id' },
    )
    await through.find(1)
    proxy.onReply((_reply, sent) => (sent.includes('insert into') ? 'cut' : 'pass'))
    await expect(through.insert(lease, { id: 1, status: 'there' })).rejects.toThrow(OutcomeUnknownError)
    expect(await stored()).toMatchObject([{ status: 'there' }])
  } finally {
    await proxy.stop()
  }
})

test('reads in a fenced transaction see what the term itself wrote, and raw SQL is fenced with it', async () => {
  await lease.transaction(db, async (tx) => {
    await accounts.insert(tx, { id: 1, status: 'due' })
    await sql`update accounts set amount = 7`.execute(tx)
    expect(await accounts.find(1, tx)).toMatchObject({ amount: 7 })
  })
})
