import type { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { migrate } from '../../src/database/migrate.ts'
import { useDatabase } from '../support/database.ts'
import { copyIn } from './wall-attacks.ts'
import {
  type GrantedTerm,
  callFence,
  grant,
  refusalOf,
  sessionOfTest,
  setFence,
  waitsOrAnswers,
} from './wall-terms.ts'

// What protect() and unprotect() do to a table, what they refuse, whose rights they need, and what the rows are stamped
// with.

const database = useDatabase()
const guard = 'the wall'
let term: GrantedTerm
/** Fenced by a valid term of the guard. */
let session: Client
let version = 0

beforeAll(async () => {
  const [server] = await database.query<{ version: number }>(
    `select current_setting('server_version_num')::integer as version`,
  )
  version = server!.version
  await database.query(`select fencepost.raise_token_floor('default', 100)`)
  term = await grant(database, guard)
})

beforeEach(async () => {
  await database.query('create schema place')
  session = await database.session()
  await session.query('set search_path = place')
  await setFence(session, term.fence)
  onTestFinished(async () => {
    await session.end()
    await database.query(`
      select fencepost.unprotect(relation) from fencepost.protected_table
       where exists (select from pg_class where oid = relation);
      delete from fencepost.protected_table;
      drop schema place cascade`)
  })
})

/** In the schema of the test. */
async function run(sql: string): Promise<void> {
  await database.query(`set local search_path = place; ${sql}`)
}

async function protect(table: string, more = ''): Promise<number> {
  const [row] = await database.query<{ count: number }>(
    `select fencepost.protect('place.${table}', '${guard}'${more}) as count`,
  )
  return row!.count
}

async function unprotect(table: string): Promise<number> {
  const [row] = await database.query<{ count: number }>(
    `select fencepost.unprotect('place.${table}') as count`,
  )
  return row!.count
}

const protections = () =>
  database.query(
    `select "table", guard, fence_column, is_stamped, tables, unguarded from fencepost.protections order by 1`,
  )

/** Every trigger of fencepost's, every column and every default: what protect() may change. */
async function catalog(): Promise<unknown> {
  const [row] = await database.query(`
    select (select json_agg(x order by x::text) from (
              select tgrelid::regclass, tgname, tgenabled, encode(tgargs, 'hex') from pg_trigger
               where not tgisinternal) x) as triggers,
           (select json_agg(x order by x::text) from (
              select a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
                from pg_attribute a
                join pg_class c on c.oid = a.attrelid
                left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
               where a.attnum > 0 and c.relnamespace <> 'pg_catalog'::regnamespace) x) as columns,
           (select json_agg(p order by relation) from fencepost.protected_table p) as protected`)
  return row
}

/** Whether a write is let through without a fence. */
async function isOpen(sql: string): Promise<boolean> {
  const refusal = await refusalOf(run(sql))
  expect([undefined, 'FP005']).toContain(refusal)
  return refusal === undefined
}

const partitioned = `
  create table entry (id integer, region text, amount integer) partition by list (region);
  create table entry_east partition of entry for values in ('east');
  create table entry_rest partition of entry for values in ('west', 'north') partition by list (region);
  create table entry_west partition of entry_rest for values in ('west');`

describe('protect()', () => {
  test('guards a table, adds its column, and says how many tables it has guarded', async () => {
    await run('create table account (id integer)')
    expect(await protect('account')).toBe(1)
    expect(await protections()).toEqual([
      {
        table: 'place.account',
        guard,
        fence_column: 'fence_token',
        is_stamped: false,
        tables: 1,
        unguarded: [],
      },
    ])
    expect(await isOpen('insert into account values (1)')).toBe(false)
    await session.query('insert into account values (1)')
    expect((await session.query('select * from account')).rows).toEqual([
      { id: 1, fence_token: `${term.token}` },
    ])
  })

  test('guards every partition and every inheriting table, at every depth', async () => {
    await run(`${partitioned}
      create table asset (id integer); create table vehicle () inherits (asset); create table car () inherits (vehicle)`)
    expect(await protect('entry')).toBe(4)
    expect(await protect('asset')).toBe(3)
    for (const sql of [
      `insert into entry values (1, 'west')`,
      `insert into entry_east values (1, 'east')`,
      `insert into entry_rest values (1, 'west')`,
      `insert into entry_west values (1, 'west')`,
      'insert into asset values (1)',
      'insert into vehicle values (1)',
      'insert into car values (1)',
      'update asset set id = 2',
      'update vehicle set id = 2',
      'update car set id = 2',
    ]) {
      expect(await isOpen(sql)).toBe(false)
      await session.query(sql)
    }
  })

  test('is found by names that need quotes', async () => {
    await run(`create table "Konto ""1""" (id integer, "Wächter-Nr" bigint)`)
    await database.query(`select fencepost.protect('place."Konto ""1"""', $1, 'Wächter-Nr', true)`, [guard])
    expect(await isOpen(`insert into "Konto ""1""" values (1)`)).toBe(false)
    const { rows } = await session.query(
      `insert into "Konto ""1""" values (1) returning "Wächter-Nr" as stamp`,
    )
    expect(rows).toEqual([{ stamp: `${term.token}` }])
    await database.query(`select fencepost.unprotect('place."Konto ""1"""')`)
  })

  test('replaces the guard by another', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await database.query(`select fencepost.protect('place.account', 'row/{id}')`)
    expect(await refusalOf(session.query('insert into account values (1)'))).toBe('FP006')
    await database.query(`select fencepost.protect('place.account', 'other')`)
    expect(await refusalOf(session.query('insert into account values (1)'))).toBe('FP006')
    await setFence(session, (await grant(database, 'other')).fence)
    await session.query('insert into account values (1)')
    expect(await protections()).toMatchObject([{ guard: 'other', unguarded: [] }])
  })

  test('refuses a statement that was prepared and planned before', async () => {
    await run('create table account (id integer)')
    const other = await sessionOfTest(database)
    await other.query('prepare p as insert into place.account values (1)')
    for (let times = 0; times < 7; times += 1) await other.query('execute p')
    await protect('account')
    expect(await refusalOf(other.query('execute p'))).toBe('FP005')
  })

  test('waits for writers that are under way, so that none is unfenced when it returns', async () => {
    await run('create table account (id integer, fence_token bigint not null default 0)')
    const other = await sessionOfTest(database)
    await other.query('begin; insert into place.account values (1)')
    const protecting = protect('account')
    await waitsOrAnswers(database, protecting)
    expect(await refusalOf(other.query('insert into place.account values (2)'))).toBeUndefined()
    await other.query('commit')
    expect(await protecting).toBe(1)
    expect(await isOpen('insert into account values (3)')).toBe(false)
  })

  test('gives up when lock_timeout says so, and has changed nothing then', async () => {
    await run('create table account (id integer)')
    const other = await sessionOfTest(database)
    await other.query('begin; insert into place.account values (1)')
    const before = await catalog()
    await session.query(`set lock_timeout = '20ms'`)
    expect(await refusalOf(session.query('select fencepost.protect($1, $2)', ['account', guard]))).toBe(
      '55P03',
    )
    await other.query('commit')
    expect(await catalog()).toEqual(before)
  })

  test('goes back with its transaction', async () => {
    await run('create table account (id integer)')
    const before = await catalog()
    await session.query('begin')
    await session.query('select fencepost.protect($1, $2)', ['account', guard])
    await session.query('rollback')
    expect(await catalog()).toEqual(before)
    expect(await isOpen('insert into account values (1)')).toBe(true)
  })
})

describe('protect() where everything is as wanted', () => {
  test.for([
    ['a table', 'create table account (id integer)', ''],
    ['a partitioned table with stamps', partitioned.replaceAll('entry', 'account'), `, 'fence_token', true`],
    [
      'a table with stamps in a column of another name',
      'create table account (id integer)',
      `, 'guard', true`,
    ],
    ['an inherited table', 'create table account (id integer); create table child () inherits (account)', ''],
  ])('changes nothing and takes no lock on the table: %s', async ([, create, more]) => {
    await run(create!)
    const count = await protect('account', more)
    const before = await catalog()
    const other = await sessionOfTest(database)
    await setFence(other, term.fence)
    await other.query(`begin; insert into place.account select from place.account`)
    await session.query(`set lock_timeout = '1s'`)
    await session.query('begin')
    const { rows } = await session.query<{ count: number }>(
      `select fencepost.protect('account', '${guard}'${more}) as count`,
    )
    expect(rows).toEqual([{ count }])
    const locks = await session.query(
      `select relation::regclass, mode from pg_locks
        where pid = pg_backend_pid() and locktype = 'relation'
          and relation in (select oid from pg_class where relnamespace = 'place'::regnamespace)`,
    )
    expect(locks.rows).toEqual([])
    await session.query('commit')
    await other.query('commit')
    expect(await catalog()).toEqual(before)
  })

  test('writes nothing: it needs no transaction id', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await session.query('begin')
    await session.query('select fencepost.protect($1, $2)', ['account', guard])
    const { rows } = await session.query('select pg_current_xact_id_if_assigned() as id')
    expect(rows).toEqual([{ id: null }])
  })

  test('does not wait for another that does the same', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await session.query('begin')
    await session.query('select fencepost.protect($1, $2)', ['account', guard])
    const other = await sessionOfTest(database, { options: '-c lock_timeout=50ms' })
    expect(
      await refusalOf(other.query(`select fencepost.protect('place.account', '${guard}')`)),
    ).toBeUndefined()
  })
})

describe('what has come loose', () => {
  const unguarded = async (): Promise<unknown> => (await protections())[0]!['unguarded']

  test('a new partition is listed, and is guarded when the table is protected again', async () => {
    await run(partitioned)
    await protect('entry')
    await run(`create table entry_north partition of entry_rest for values in ('north')`)
    expect(await unguarded()).toEqual(['place.entry_north'])
    expect(await isOpen(`insert into entry values (1, 'north')`)).toBe(false)
    expect(await isOpen(`insert into entry_north values (1, 'north')`)).toBe(true)
    expect(await protect('entry')).toBe(5)
    expect(await unguarded()).toEqual([])
    expect(await isOpen(`insert into entry_north values (1, 'north')`)).toBe(false)
  })

  test('a table that has come to inherit is listed, and is guarded when the table is protected again', async () => {
    await run('create table asset (id integer)')
    await protect('asset')
    await run('create table vehicle () inherits (asset)')
    expect(await unguarded()).toEqual(['place.vehicle'])
    expect(await protect('asset')).toBe(2)
    expect(await isOpen('insert into vehicle values (1)')).toBe(false)
  })

  test('an attached partition gets the default of the stamp when the table is protected again', async () => {
    await run(partitioned)
    await protect('entry')
    await run(`
      create table entry_north (id integer, region text, amount integer, fence_token bigint not null default 0);
      alter table entry_rest attach partition entry_north for values in ('north')`)
    expect(await protect('entry')).toBe(5)
    const { rows } = await session.query(`insert into entry_north values (1, 'north') returning fence_token`)
    expect(rows).toEqual([{ fence_token: `${term.token}` }])
  })

  test('a partition that is detached stays guarded, and can be freed', async () => {
    await run(partitioned)
    await protect('entry', `, 'fence_token', true`)
    await run('alter table entry detach partition entry_east')
    expect(await protections()).toMatchObject([{ tables: 3, unguarded: [] }])
    expect(await isOpen(`insert into entry_east values (1, 'east')`)).toBe(false)
    expect(await unprotect('entry_east')).toBe(1)
    expect(await isOpen(`insert into entry_east values (1, 'east')`)).toBe(true)
  })

  test.for([
    ['disabled', 'alter table %s disable trigger fencepost_guard'],
    ['enabled for replication only', 'alter table %s enable replica trigger fencepost_guard'],
    ['disabled with all others', 'alter table %s disable trigger user'],
    ['dropped', 'drop trigger fencepost_guard on %s'],
  ] as const)('a trigger that is %s is listed, and mended by protect()', async ([, sql]) => {
    await run(partitioned)
    await protect('entry')
    for (const table of ['entry', 'entry_west']) await run(sql.replace('%s', table))
    expect(await unguarded()).toEqual(['place.entry', 'place.entry_west'])
    expect(await isOpen(`insert into entry values (1, 'west')`)).toBe(true)
    expect(await isOpen(`insert into entry_west values (1, 'west')`)).toBe(true)
    expect(await protect('entry')).toBe(4)
    expect(await unguarded()).toEqual([])
    expect(await isOpen(`insert into entry values (1, 'west')`)).toBe(false)
    expect(await isOpen(`insert into entry_west values (1, 'west')`)).toBe(false)
  })

  test.for([
    'fencepost_guard_again',
    'fencepost_guard_rows_inserted',
    'fencepost_guard_rows_updated',
    'fencepost_guard_rows_deleted',
  ])('a missing trigger of a template is listed, and mended by protect(): %s', async (trigger) => {
    await run('create table account (id integer)')
    await database.query(`select fencepost.protect('place.account', 'row/{id}')`)
    await run(`drop trigger ${trigger} on account`)
    expect(await unguarded()).toEqual(['place.account'])
    await database.query(`select fencepost.protect('place.account', 'row/{id}')`)
    expect(await unguarded()).toEqual([])
  })

  test.for([
    ['disabled', 'disable'],
    ['enabled for replication only', 'enable replica'],
  ] as const)('a stamp trigger of a partition that is %s is listed, and mended', async ([, how]) => {
    await run(partitioned)
    await protect('entry', `, 'fence_token', true`)
    await run(`alter table entry_west ${how} trigger fencepost_stamp`)
    expect(await unguarded()).toEqual(['place.entry_west'])
    await protect('entry', `, 'fence_token', true`)
    expect(await unguarded()).toEqual([])
  })

  test('a trigger that fires always counts as enabled', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await run('alter table account enable always trigger fencepost_guard')
    expect(await unguarded()).toEqual([])
  })

  test('a table that was dropped is listed by its name until one of that name is protected', async () => {
    await run('create table account (id integer); create table book (id integer)')
    await protect('book')
    await database.query(`select fencepost.protect('place.account', 'row/{id}')`)
    await run('drop table account')
    expect(await protections()).toMatchObject([
      { table: 'place.account', guard: 'row/{id}', tables: 0, unguarded: ['place.account'] },
      { table: 'place.book', unguarded: [] },
    ])
    await run('create table account (id integer)')
    expect((await protections())[0]).toMatchObject({ unguarded: ['place.account'] })
    await protect('account')
    expect(await protections()).toMatchObject([
      { table: 'place.account', guard, unguarded: [] },
      { table: 'place.book', unguarded: [] },
    ])
  })

  test.for([
    ['renamed', 'alter table account rename column id to nr'],
    ['dropped', 'alter table account drop column id'],
  ] as const)('a table whose template column was %s is listed, and hides no other', async ([, sql]) => {
    await run('create table account (id integer); create table book (id integer)')
    await protect('book')
    await database.query(`select fencepost.protect('place.account', 'row/{id}')`)
    await run(sql)
    expect(await protections()).toMatchObject([
      { table: 'place.account', unguarded: ['place.account'] },
      { table: 'place.book', unguarded: [] },
    ])
  })

  test.for([
    ['inherits from', 'create table parent (id integer); alter table account inherit parent'],
    [
      'was attached to',
      `create table parent (id integer, fence_token bigint not null) partition by list (id);
       alter table parent attach partition account for values in (1)`,
    ],
  ] as const)('a table that %s one without protection is listed', async ([, sql]) => {
    await run(`create table account (id integer)`)
    await protect('account')
    await run(sql)
    expect(await unguarded()).toEqual(['place.account'])
  })
})

describe('protect() refuses', () => {
  const reasons: [what: string, setup: string, call: string, code: string, reason: RegExp][] = [
    ['a view', 'create view v as select 1 as id', `'v', 'l'`, '0A000', /view/],
    [
      'a materialized view',
      'create materialized view v as select 1 as id',
      `'v', 'l'`,
      '0A000',
      /materialized view/,
    ],
    [
      'a foreign table',
      `create foreign data wrapper none; create server nowhere foreign data wrapper none;
       create foreign table f (id integer) server nowhere`,
      `'f', 'l'`,
      '0A000',
      /foreign table/,
    ],
    [
      'a table with a foreign partition',
      `create foreign data wrapper none; create server nowhere foreign data wrapper none;
       create table p (id integer, fence_token bigint) partition by list (id);
       create foreign table f partition of p for values in (1) server nowhere`,
      `'p', 'l'`,
      '0A000',
      /foreign table/,
    ],
    ['a system table', '', `'pg_catalog.pg_class', 'l'`, '0A000', /system table/],
    [
      'a table of the information schema',
      '',
      `'information_schema.sql_features', 'l'`,
      '0A000',
      /system table/,
    ],
    ["fencepost's own tables", '', `'fencepost.lease', 'l'`, '0A000', /fencepost itself/],
    ["fencepost's own views", '', `'fencepost.leases', 'l'`, '0A000', /fencepost itself/],
    ['a temporary table', 'create temporary table tmp (id integer)', `'tmp', 'l'`, '0A000', /temporary/],
    ['a sequence', 'create sequence s', `'s', 'l'`, '0A000', /no table/],
    ['an index', 'create table t (id integer primary key)', `'t_pkey', 'l'`, '0A000', /no table/],
    ['a composite type', 'create type c as (id integer)', `'c', 'l'`, '0A000', /no table/],
    ['a partition', partitioned, `'entry_east', 'l'`, '0A000', /part of (place\.)?entry,/],
    [
      'a partition of a partition',
      partitioned,
      `'entry_west', 'l'`,
      '0A000',
      /part of (place\.)?entry_rest,/,
    ],
    [
      'an inheriting table',
      'create table asset (id integer); create table vehicle () inherits (asset)',
      `'vehicle', 'l'`,
      '0A000',
      /part of (place\.)?asset,/,
    ],
    ...['integer', 'numeric', 'text', 'uuid'].map((type): [string, string, string, string, RegExp] => [
      `a fence column of type ${type}`,
      `create table t (id integer, fence_token ${type})`,
      `'t', 'l'`,
      '42804',
      /plain bigint/,
    ]),
    [
      'a generated fence column',
      'create table t (id bigint, fence_token bigint generated always as (id) stored)',
      `'t', 'l'`,
      '42804',
      /plain bigint/,
    ],
    [
      'a fence column that is an identity',
      'create table t (id bigint, fence_token bigint generated always as identity)',
      `'t', 'l'`,
      '42804',
      /plain bigint/,
    ],
    [
      'an inheriting table with a fence column of another type',
      'create table t (id integer); create table u (fence_token integer) inherits (t)',
      `'t', 'l'`,
      '42804',
      /fence_token/,
    ],
    [
      'a template of a column that is not there',
      'create table t (id integer)',
      `'t', 'a/{nr}'`,
      '42703',
      /"nr"/,
    ],
    ['a template of a system column', 'create table t (id integer)', `'t', 'a/{ctid}'`, '42703', /"ctid"/],
    [
      'a template of a column whose text depends on settings',
      'create table t (at timestamptz)',
      `'t', 'a/{at}'`,
      '22023',
      /timestamp with time zone/,
    ],
    ['an empty guard', 'create table t (id integer)', `'t', ''`, '22023', /1 to 512 bytes/],
    ['a guard with stray braces', 'create table t (id integer)', `'t', 'a{'`, '22023', /braces/],
    ['a null guard', 'create table t (id integer)', `'t', null`, '22023', /guard/],
    ['no table', '', `null, 'l'`, '22004', /null/],
    ['no column', 'create table t (id integer)', `'t', 'l', null`, '22004', /null/],
    [
      'not to know about stamps',
      'create table t (id integer)',
      `'t', 'l', 'fence_token', null`,
      '22004',
      /null/,
    ],
    ['a name that nothing has', '', `'nothing', 'l'`, '42P01', /nothing/],
  ]

  test.for(reasons)('%s, says why, and changes nothing', async ([, setup, call, code, reason]) => {
    await session.query(setup)
    onTestFinished(async () => {
      await database.query('drop foreign data wrapper if exists none cascade')
    })
    const before = await catalog()
    const refused = session.query(`select fencepost.protect(${call})`)
    await expect(refused).rejects.toMatchObject({ code, message: expect.stringMatching(reason) as string })
    expect(await catalog()).toEqual(before)
  })

  test('a table whose descendant also inherits from a table outside', async () => {
    await run(`create table asset (id integer); create table loan (id integer);
      create table vehicle () inherits (asset, loan)`)
    await expect(protect('asset')).rejects.toMatchObject({ code: '0A000' })
  })

  test('a template of a virtual generated column', async ({ skip }) => {
    skip(version < 180_000, 'this PostgreSQL has no virtual columns')
    await run('create table t (id integer, twice integer generated always as (id * 2) virtual)')
    await expect(database.query(`select fencepost.protect('place.t', 'a/{twice}')`)).rejects.toMatchObject({
      code: '22023',
    })
  })
})

describe('rights', () => {
  const [owner, writer, stranger] = [
    `owner_${process.pid}`,
    `writer_${process.pid}`,
    `stranger_${process.pid}`,
  ]
  const roles = [owner, writer, stranger]

  beforeAll(async () => {
    for (const role of roles) await database.query(`create role ${role} login password 'secret-of-${role}'`)
    await migrate({ connectionString: database.url }, { grantTo: [owner] })
  })
  afterAll(async () => {
    for (const role of roles) await database.query(`drop owned by ${role}; drop role ${role}`)
  })

  async function as(role: string): Promise<Client> {
    const client = await sessionOfTest(database, {
      connectionString: database.urlAs(role, `secret-of-${role}`),
    })
    await client.query('set search_path = place')
    return client
  }

  beforeEach(() => run(`grant all on schema place to ${roles.join()}`))

  test("the table's owner protects and unprotects it, with the rights that --grant-to gives", async () => {
    const client = await as(owner)
    await client.query(partitioned)
    const count = await client.query(`select fencepost.protect('entry', $1, p_stamp => true) as count`, [
      guard,
    ])
    expect(count.rows).toEqual([{ count: 4 }])
    expect(await protections()).toMatchObject([{ table: 'place.entry', is_stamped: true, unguarded: [] }])
    expect(await refusalOf(client.query(`insert into entry values (1, 'east')`))).toBe('FP005')
    await setFence(client, term.fence)
    expect((await client.query(`insert into entry values (1, 'east') returning fence_token`)).rows).toEqual([
      { fence_token: `${term.token}` },
    ])
    await client.query(`select fencepost.protect('entry', 'row/{id}')`)
    await setFence(client, (await grant(database, 'row/7')).fence)
    await client.query(`insert into entry values (7, 'east')`)
    expect((await client.query(`select fencepost.unprotect('entry') as count`)).rows).toEqual([{ count: 4 }])
    expect(await protections()).toEqual([])
  })

  test('somebody who does not own the table cannot protect or unprotect it, whatever the rights on fencepost', async () => {
    await run(`create table account (id integer); grant all on account to ${owner}`)
    const client = await as(owner)
    expect(await refusalOf(client.query(`select fencepost.protect('account', 'l')`))).toBe('42501')
    await protect('account')
    const before = await catalog()
    expect(await refusalOf(client.query(`select fencepost.unprotect('account')`))).toBe('42501')
    expect(await refusalOf(client.query(`select fencepost.protect('account', 'l')`))).toBe('42501')
    expect(await refusalOf(client.query(`select fencepost.forget_protection('account')`))).toBe('22023')
    expect(
      await refusalOf(client.query(`select fencepost.record_protection('account', 'l', 'f', false)`)),
    ).toBe('22023')
    expect(await catalog()).toEqual(before)
  })

  test('an owner without rights on fencepost cannot protect', async () => {
    const client = await as(stranger)
    await client.query('create table account (id integer)')
    expect(await refusalOf(client.query(`select fencepost.protect('account', 'l')`))).toBe('42501')
  })

  test.for([
    ['a plain guard', guard, false],
    ['a plain guard with stamps', guard, true],
    ['a prefix', 'the*', false],
    ['a template', 'the {word}', false],
    ['a template with stamps', 'the {word}', true],
  ] as const)(
    'a writer without any right on fencepost writes under a valid session fence only: %s',
    async ([, lease, isStamped]) => {
      await run(`create table account (id integer, word text); grant all on account to ${writer}`)
      await database.query('select fencepost.protect($1, $2, p_stamp => $3)', [
        'place.account',
        lease,
        isStamped,
      ])
      const client = await as(writer)
      const insert = `insert into account values (1, 'wall') returning fence_token`
      expect(await refusalOf(client.query('select fencepost.schema_version()'))).toBe('42501')
      expect(await refusalOf(client.query(insert))).toBe('FP005')
      await setFence(client, term.fence.replace(':', 'x:'))
      expect(await refusalOf(client.query(insert))).toBe('FP005')
      await setFence(client, `1${term.fence}`)
      expect(await refusalOf(client.query(insert))).toBe('FP001')
      await setFence(client, term.fence)
      expect((await client.query(insert)).rows).toEqual([{ fence_token: `${term.token}` }])
      await client.query('update account set id = 2')
      await client.query('delete from account')
    },
  )
})

describe('stamps', () => {
  const stamps = async (table = 'account', column = 'fence_token'): Promise<unknown[]> =>
    (await session.query(`select ${column} as stamp from ${table} order by id`)).rows.map((row) => row.stamp)

  test('are the default of the column: rows that do not name it carry the token, others what they name', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await session.query('insert into account values (1); insert into account values (2, 9), (3, default)')
    await copyIn(session, 'copy account (id) from stdin', '4\n')
    expect(await stamps()).toEqual([`${term.token}`, '9', `${term.token}`, `${term.token}`])
    await session.query('update account set id = id')
    expect((await stamps())[1]).toBe('9')
  })

  test('of rows from before are 0', async () => {
    await run('create table account (id integer); insert into account values (1)')
    await protect('account')
    expect(await stamps()).toEqual(['0'])
  })

  test.for([
    ['without a default', 'bigint', true],
    ['with the default 0', 'bigint not null default 0', true],
    ["with the default '0'", `bigint default '0'`, true],
    ['with a default of its own', 'bigint default 7', false],
  ] as const)('in a column that was there before, %s', async ([, column, isReplaced]) => {
    await run(`create table account (id integer, fence_token ${column}); insert into account values (1, 5)`)
    await protect('account')
    await session.query('insert into account values (2)')
    expect(await stamps()).toEqual(['5', isReplaced ? `${term.token}` : '7'])
  })

  test.for(['fence_token', 'guard', '"The Stamp"'])(
    'that were asked for are on every write, named or not, in the column %s',
    async (column) => {
      const name = column.replaceAll('"', '')
      await run('create table account (id integer primary key, note text)')
      await protect('account', `, '${name}', true`)
      const all = (count: number) => Array.from({ length: count }, () => `${term.token}`)
      await session.query(
        `insert into account (id) values (1); insert into account (id, ${column}) values (2, 99)`,
      )
      await copyIn(session, `copy account (id, ${column}) from stdin`, '3\t77\n')
      expect(await stamps('account', column)).toEqual(all(3))
      const next = await grant(database, guard)
      term = next
      await setFence(session, next.fence)
      await session.query(`update account set note = 'changed' where id = 1`)
      await session.query(`update account set ${column} = 5 where id = 2`)
      await session.query(
        `insert into account (id) values (3) on conflict (id) do update set note = 'upserted'`,
      )
      expect(await stamps('account', column)).toEqual(all(3))
    },
  )

  test('that were asked for are on the rows of partitions and inheriting tables, however they are written', async () => {
    await run(`${partitioned} create table asset (id integer); create table vehicle () inherits (asset)`)
    await protect('entry', `, 'fence_token', true`)
    await protect('asset', `, 'fence_token', true`)
    await session.query(`
      insert into entry values (1, 'east', 0, 9), (2, 'west', 0, 9);
      insert into entry_east values (3, 'east', 0, 9);
      insert into entry_rest values (4, 'west', 0, 9);
      update entry set region = 'west' where id = 1;
      insert into asset values (1, 9); insert into vehicle values (2, 9);
      update asset set fence_token = 8; update vehicle set fence_token = 8`)
    expect(new Set([...(await stamps('entry')), ...(await stamps('asset'))])).toEqual(
      new Set([`${term.token}`]),
    )
  })

  test.for(['fence_token', 'guard'])('in the column %s leave every other column as it is', async (column) => {
    await run(`
      create type pair as (a integer, b text);
      create domain positive as integer not null check (value > 0);
      create table account (
        gone text, id integer, a numeric, b double precision, c timestamptz, d bytea, e text[], f pair, g json,
        h positive, i text generated always as (id::text || 'x') stored, j interval, k char(4), "l m" text, n int4range);
      alter table account drop column gone;
      insert into account values (1, 'NaN', '-0', 'infinity', '\\x00ff', '{"a,b",null}', '(1,"x y")', '{"a" :  1, "a":2}',
        3, default, '1 mon -1 day', 'a', null, '[1,5)');
      insert into account (id, h) values (2, 1)`)
    const texts = () =>
      session.query(`select (to_jsonb(x) - '${column}')::text, g::text from account x order by id`)
    const before = (await texts()).rows
    await protect('account', `, '${column}', true`)
    await session.query('update account set h = h')
    expect((await texts()).rows).toEqual(before)
    expect(await stamps('account', column)).toEqual([`${term.token}`, `${term.token}`])
  })

  test('that are not asked for any more go', async () => {
    await run(partitioned)
    await protect('entry', `, 'fence_token', true`)
    await protect('entry')
    await session.query(
      `insert into entry values (1, 'west', 0, 9); insert into entry_east values (2, 'east', 0, 9)`,
    )
    expect(await stamps('entry')).toEqual(['9', '9'])
    expect(await protections()).toMatchObject([{ is_stamped: false, unguarded: [] }])
  })

  test('of a transaction under several leases are the token of the one that guards the table', async () => {
    await run('create table account (id integer); create table book (id integer)')
    await protect('account')
    await database.query(`select fencepost.protect('place.book', 'book', p_stamp => true)`)
    const book = await grant(database, 'book')
    await session.query('reset fencepost.fence; begin')
    await callFence(session, book)
    await callFence(session, term)
    await session.query(
      'insert into account values (1); insert into book values (1); insert into account values (2)',
    )
    await session.query('commit')
    expect(await stamps()).toEqual([`${term.token}`, `${term.token}`])
    expect(await stamps('book')).toEqual([`${book.token}`])
  })

  test.for([
    ['by a default', ''],
    ['by a trigger', ', p_stamp => true'],
  ] as const)(
    'of a statement that writes two tables under two leases are each of its own lease: %s',
    async ([, more]) => {
      await run('create table account (id integer); create table book (id integer)')
      await protect('account', more)
      await database.query(`select fencepost.protect('place.book', 'book'${more})`)
      await run(`create function enter(i integer) returns integer language sql volatile as $$
        insert into place.book values (i) returning id $$`)
      const book = await grant(database, 'book')
      await session.query('begin')
      await callFence(session, book)
      await callFence(session, term)
      await session.query('insert into account select enter(g) from generate_series(1, 3) g')
      await session.query('commit')
      expect(await stamps('book')).toEqual(Array.from({ length: 3 }, () => `${book.token}`))
      expect(await stamps()).toEqual(Array.from({ length: 3 }, () => `${term.token}`))
    },
  )
})

describe('unprotect()', () => {
  test.for([
    ['a table', 'create table account (id integer); create table child () inherits (account)', '', 2],
    [
      'a partitioned table with stamps',
      partitioned.replaceAll('entry', 'account'),
      `, 'fence_token', true`,
      4,
    ],
    ['stamps in another column', 'create table account (id integer)', `, 'guard', true`, 1],
  ] as const)(
    'takes away all that protect() has set up, and keeps the column: %s',
    async ([, create, more, count]) => {
      await run(create)
      await protect('account', more)
      const insert = create.includes('region')
        ? `insert into account values (1, 'east')`
        : 'insert into account values (1)'
      await session.query(insert)
      const rows = await database.query('select * from place.account')
      expect(await unprotect('account')).toBe(count)
      expect(await protections()).toEqual([])
      expect(
        await database.query(`select from pg_trigger where not tgisinternal and tgrelid in
        (select oid from pg_class where relnamespace = 'place'::regnamespace)`),
      ).toEqual([])
      expect(
        await database.query(`select distinct pg_get_expr(adbin, adrelid) as standard from pg_attrdef d
        join pg_class c on c.oid = d.adrelid where c.relnamespace = 'place'::regnamespace`),
      ).toEqual([{ standard: '0' }])
      expect(await database.query('select * from place.account')).toEqual(rows)
      expect(await isOpen(insert)).toBe(true)
      expect(await unprotect('account')).toBe(0)
    },
  )

  test('of a table that never was protected does nothing', async () => {
    await run('create table account (id integer, fence_token bigint default 7)')
    const before = await catalog()
    expect(await unprotect('account')).toBe(0)
    expect(await catalog()).toEqual(before)
  })

  test('also finds partitions that came later, and triggers that are disabled', async () => {
    await run(partitioned)
    await protect('entry', `, 'fence_token', true`)
    await run(`create table entry_north partition of entry_rest for values in ('north');
      alter table entry_west disable trigger user`)
    expect(await unprotect('entry')).toBe(5)
    expect(await isOpen(`insert into entry_north values (1, 'north')`)).toBe(true)
  })

  test('can be followed by protect()', async () => {
    await run('create table account (id integer)')
    await protect('account')
    await unprotect('account')
    expect(await protect('account')).toBe(1)
    await session.query('insert into account values (1)')
    expect((await session.query('select fence_token from account')).rows).toEqual([
      { fence_token: `${term.token}` },
    ])
  })

  test('refuses null', async () => {
    await expect(database.query('select fencepost.unprotect(null)')).rejects.toMatchObject({ code: '22004' })
  })
})
