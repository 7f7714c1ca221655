import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { protectSchemaSql, protectSql, unprotectSql } from '../../src/fence/protection.ts'
import { FencedRepository, Fencepost, ProtectedError, fencedTransaction } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const app = `protector_${process.pid}`
const at = <Options extends object>(options: Options) => ({ connectionString: database.url, ...options })

beforeAll(async () => {
  await database.query(`create role ${app} login password 'secret-of-${app}'`)
})

afterAll(async () => {
  const client = new Client({ connectionString: database.url })
  await client.connect()
  await client.query(`drop owned by ${app}; drop role ${app}`)
  await client.end()
})

beforeEach(async () => {
  // What a test that failed has left open would hold up the next one.
  await database.query(
    `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`,
  )
  await database.query('drop table if exists accounts cascade; delete from fencepost.protected_table')
  await database.query('create table accounts (id integer primary key, balance integer not null)')
  await database.query('insert into accounts values (1, 100), (2, 100)')
})

const names = async (): Promise<string[]> =>
  (await Fencepost.protections(at({}))).tables.map((one) => one.table)

describe('protect', () => {
  test('refuses every write without a fence, and lets the lease that guards the table write', async () => {
    expect(await Fencepost.protect('accounts', at({ lease: 'settlement' }))).toBe(1)
    await expect(database.query('update accounts set balance = 0')).rejects.toMatchObject({ code: 'FP005' })
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('settlement')
    await lease.transaction(database.pool, (client) => client.query('insert into accounts values (3, 5)'))
    expect(await database.query('select * from accounts order by id')).toMatchObject([
      { id: 1, balance: 100, fence_token: '0' },
      { id: 2, balance: 100, fence_token: '0' },
      { id: 3, balance: 5, fence_token: lease.token.toString() },
    ])
  })

  test('lets a repository write with its one-statement writes, and in a fenced transaction', async () => {
    await Fencepost.protect('accounts', at({ lease: 'repository' }))
    interface Tables {
      accounts: { id: number; balance: number; fence_token: string }
    }
    class Accounts extends FencedRepository<Tables, 'accounts'> {}
    const db = database.kysely<Tables>()
    const accounts = new Accounts(db, 'accounts', { key: 'id' })
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('repository')
    const stamp = { fence_token: lease.token.toString() }
    expect(await accounts.update(lease, 1, { balance: 1 })).toMatchObject({ balance: 1, ...stamp })
    expect(await accounts.insert(lease, { id: 3, balance: 3 })).toMatchObject(stamp)
    expect(await accounts.insertMany(lease, [{ id: 4, balance: 4 }])).toMatchObject([stamp])
    expect(await accounts.upsert(lease, { id: 4, balance: 5 })).toMatchObject({ balance: 5, ...stamp })
    expect(await accounts.upsert(lease, { id: 5, balance: 5 })).toMatchObject({ balance: 5, ...stamp })
    expect(await accounts.delete(lease, 5)).toMatchObject({ id: 5 })
    await lease.transaction(db, async (tx) => {
      await accounts.update(tx, 2, { balance: 2 })
      await tx.updateTable('accounts').set({ balance: 7 }).where('id', '=', 3).execute()
    })
    await using other = await fencepost.acquire('another')
    await expect(accounts.update(other, 1, { balance: 9 })).rejects.toMatchObject({
      code: 'WRONG_LEASE',
      what: 'table public.accounts',
      guard: 'repository',
    })
    await expect(accounts.delete(other, 1)).rejects.toMatchObject({ code: 'WRONG_LEASE' })
    expect(await database.query('select id, balance from accounts order by id')).toEqual([
      { id: 1, balance: 1 },
      { id: 2, balance: 2 },
      { id: 3, balance: 7 },
      { id: 4, balance: 5 },
    ])
  })

  test('tells a transaction of another lease which lease guards the table', async () => {
    await Fencepost.protect('accounts', at({ lease: 'settlement' }))
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('other')
    const refused = lease.transaction(database.pool, (client) => client.query('delete from accounts'))
    await expect(refused).rejects.toBeInstanceOf(ProtectedError)
    await expect(refused).rejects.toMatchObject({
      code: 'WRONG_LEASE',
      what: 'table public.accounts',
      guard: 'settlement',
      message: expect.stringContaining('lease "settlement"') as string,
    })
    expect(await database.query('select from accounts')).toHaveLength(2)
  })

  test('called again changes nothing and waits for nothing, and with another lease replaces the protection', async () => {
    await Fencepost.protect('accounts', at({ lease: 'one' }))
    const before = await Fencepost.protections(at({}))
    const writer = await database.session()
    await writer.query('begin')
    await writer.query('lock table accounts in row exclusive mode')
    expect(await Fencepost.protect('accounts', at({ lease: 'one', wait: 0 }))).toBe(1)
    expect(await Fencepost.protections(at({}))).toEqual(before)
    await expect(Fencepost.protect('accounts', at({ lease: 'two', wait: 0 }))).rejects.toMatchObject({
      code: 'TABLE_BUSY',
      sqlState: '55P03',
    })
    expect(await Fencepost.protections(at({}))).toEqual(before)
    await writer.query('rollback')
    await Fencepost.protect('accounts', at({ lease: 'two' }))
    const { tables } = await Fencepost.protections(at({}))
    expect(tables).toMatchObject([{ table: 'public.accounts', guard: 'two', tables: 1, unguarded: [] }])
  })

  test('waits for an open transaction outside the queue, so that others write meanwhile', async () => {
    const reader = await database.session()
    await reader.query('begin')
    await reader.query('select * from accounts')
    let isDone = false
    const protect = async (): Promise<void> => {
      await Fencepost.protect('accounts', at({ lease: 'patient' }))
      isDone = true
    }
    const protecting = protect()
    const giveUps = async (): Promise<number> => {
      const [row] = await database.query<{ count: number }>(
        `select count(*)::integer as count from pg_stat_activity where application_name = 'fencepost protect' and state = 'idle'`,
      )
      return row!.count
    }
    // It has tried, and left the queue.
    await vi.waitUntil(giveUps, { timeout: 10_000, interval: 5 })
    await database.query('update accounts set balance = 1 where id = 1')
    expect(isDone).toBe(false)
    await reader.query('commit')
    await protecting
    await expect(database.query('update accounts set balance = 2')).rejects.toMatchObject({ code: 'FP005' })
  })

  test('finds a table as it is written, and as SQL would read it', async () => {
    await database.query(
      'create schema if not exists "App"; drop table if exists "App"."Orders"; create table "App"."Orders" (id integer)',
    )
    expect(await Fencepost.protect('App.Orders', at({ lease: 'x' }))).toBe(1)
    expect(await Fencepost.unprotect('"App"."Orders"', at({}))).toBe(1)
    expect(await Fencepost.protect('ACCOUNTS', at({ lease: 'x' }))).toBe(1)
    expect(await names()).toEqual(['public.accounts'])
    await database.query('drop schema "App" cascade')
  })

  test.each<[string, string, object, object]>([
    ['a table that is not there', 'nowhere', {}, { code: 'UNKNOWN_TABLE' }],
    ['a name that is none', 'accounts; drop table accounts', {}, { code: 'UNKNOWN_TABLE' }],
    ['a name with broken quotes', '"accounts', {}, { code: 'UNKNOWN_TABLE' }],
    ['a view', 'a_view', {}, { code: 'NOT_PROTECTABLE' }],
    ['a system table', 'pg_catalog.pg_class', {}, { code: 'NOT_PROTECTABLE' }],
    ['a table of the leases', 'fencepost.lease', {}, { code: 'NOT_PROTECTABLE' }],
    ['a fence column of another type', 'accounts', { fenceColumn: 'balance' }, { code: 'NOT_PROTECTABLE' }],
    ['a column that a template lacks', 'accounts', { lease: 'a/{nothing}' }, { code: 'UNKNOWN_COLUMN' }],
    ['an empty lease', 'accounts', { lease: '' }, { code: 'INVALID_ARGUMENT', argument: 'lease' }],
    [
      'a lease with half a brace',
      'accounts',
      { lease: 'a{' },
      { code: 'INVALID_ARGUMENT', argument: 'lease' },
    ],
    ['no table', '', {}, { code: 'INVALID_ARGUMENT', argument: 'table' }],
    [
      'a stamp that is no boolean',
      'accounts',
      { stamp: 'yes' },
      { code: 'INVALID_ARGUMENT', argument: 'stamp' },
    ],
    ['a wait that is none', 'accounts', { wait: -1 }, { code: 'INVALID_ARGUMENT', argument: 'wait' }],
  ])('refuses %s, and changes nothing', async (_, table, options, failure) => {
    await database.query('create or replace view a_view as select 1 as one')
    const before = await database.query('select from pg_trigger')
    await expect(Fencepost.protect(table, at({ lease: 'x', ...options }))).rejects.toMatchObject(failure)
    expect(await names()).toEqual([])
    expect(await database.query('select from pg_trigger')).toHaveLength(before.length)
    expect(await database.query('select * from accounts limit 1')).toEqual([{ id: 1, balance: 100 }])
  })

  test('by a role that does not own the table is refused, with what to do', async () => {
    await Fencepost.migrate(at({ grantTo: [app] }))
    const connectionString = database.urlAs(app, `secret-of-${app}`)
    await expect(Fencepost.protect('accounts', { connectionString, lease: 'x' })).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
      message: expect.stringContaining('owner of the table') as string,
    })
    await database.query(`alter table accounts owner to ${app}`)
    expect(await Fencepost.protect('accounts', { connectionString, lease: 'x' })).toBe(1)
    expect((await Fencepost.protections({ connectionString })).tables).toMatchObject([{ guard: 'x' }])
    expect(await Fencepost.unprotect('accounts', { connectionString })).toBe(1)
  })

  test('prints SQL that does the same in a migration of the user’s own', async () => {
    const sql = protectSql('accounts', { lease: "o'hara\\{{id}}", stamp: true })
    await database.query(`begin; ${sql} commit`)
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([
      { table: 'public.accounts', guard: "o'hara\\{{id}}", isStamped: true, unguarded: [] },
    ])
    const fencepost = await database.open()
    await using lease = await fencepost.acquire("o'hara\\{id}")
    await lease.transaction(database.pool, (client) => client.query('update accounts set balance = 7'))
    expect(await database.query('select distinct fence_token from accounts')).toEqual([
      { fence_token: lease.token.toString() },
    ])
    await database.query(`begin; ${unprotectSql('accounts')} commit`)
    expect(await names()).toEqual([])
  })

  test('is nothing that "migrate --down" takes away silently', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    await database.query('update fencepost.holder set ended_at = clock_timestamp()')
    const down = async (): Promise<void> => {
      for (;;) await Fencepost.migrate(at({ direction: 'down' as const }))
    }
    await expect(down()).rejects.toMatchObject({
      sqlState: '55006',
      message: expect.stringContaining('unprotect') as string,
    })
    await Fencepost.migrate(at({}))
    await expect(database.query('delete from accounts')).rejects.toMatchObject({ code: 'FP005' })
  })
})

describe('stamps', () => {
  test('of an UPDATE are asked for with the word default', async () => {
    await Fencepost.protect('accounts', at({ lease: 'by default' }))
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('by default')
    await lease.transaction(database.pool, (client) =>
      client.query('update accounts set balance = 1, fence_token = default where id = 1'),
    )
    expect(await database.query('select id, fence_token from accounts order by id')).toEqual([
      { id: 1, fence_token: lease.token.toString() },
      { id: 2, fence_token: '0' },
    ])
  })

  test('in another column from now on leave the former one alone', async () => {
    await Fencepost.protect('accounts', at({ lease: 'moving' }))
    await Fencepost.protect('accounts', at({ lease: 'moving', fenceColumn: 'guard' }))
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('moving')
    await lease.transaction(database.pool, (client) => client.query('insert into accounts values (3, 3)'))
    expect(await database.query('select fence_token, guard from accounts where id = 3')).toEqual([
      { fence_token: '0', guard: lease.token.toString() },
    ])
  })
})

describe('a partition', () => {
  beforeEach(async () => {
    await database.query(`
      drop table if exists parted;
      create table parted (id integer) partition by range (id);
      create table parted_1 partition of parted for values from (0) to (9)`)
    await Fencepost.protect('parted', at({ lease: 'p', stamp: true }))
  })

  test('that was added later refuses writes to itself where rows are stamped, until the table is protected again', async () => {
    await database.query('create table parted_2 partition of parted for values from (10) to (19)')
    await expect(database.query('insert into parted_2 values (11)')).rejects.toMatchObject({ code: 'FP005' })
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([{ unguarded: ['public.parted_2'] }])
    expect(await Fencepost.protect('parted', at({ lease: 'p', stamp: true }))).toBe(3)
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([{ unguarded: [] }])
  })

  test('of a protected table is not unprotected by itself, but a detached one is', async () => {
    await expect(Fencepost.unprotect('parted_1', at({}))).rejects.toMatchObject({ code: 'NOT_PROTECTABLE' })
    await database.query('alter table parted detach partition parted_1')
    await expect(database.query('insert into parted_1 values (1)')).rejects.toMatchObject({ code: 'FP005' })
    expect(await Fencepost.unprotect('parted_1', at({}))).toBe(1)
    await database.query('insert into parted_1 values (1)')
  })
})

test('a template may have its column in braces', async () => {
  await Fencepost.protect('accounts', at({ lease: 'a{{{id}}}' }))
  const fencepost = await database.open()
  await using lease = await fencepost.acquire('a{1}')
  const write = (id: number) =>
    lease.transaction(database.pool, (client) =>
      client.query('update accounts set balance = 0 where id = $1', [id]),
    )
  await write(1)
  await expect(write(2)).rejects.toMatchObject({ code: 'WRONG_LEASE' })
})

describe('a protected table that was dropped', () => {
  test('stays in the list, so that one made again under its name is seen to be unprotected', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    await database.query('drop table accounts; create table accounts (id integer)')
    const dropped = { table: 'public.accounts', isDropped: true, unguarded: ['public.accounts'] }
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([dropped])
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([
      { table: 'public.accounts', isDropped: false, unguarded: [] },
    ])
  })

  test('and made again is forgotten by unprotect as well', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    await database.query('drop table accounts; create table accounts (id integer)')
    expect(await Fencepost.unprotect('accounts', at({}))).toBe(1)
    expect(await names()).toEqual([])
    expect(await Fencepost.unprotect('accounts', at({}))).toBe(0)
  })

  test('is forgotten by its name', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    await database.query('drop table accounts')
    await expect(Fencepost.unprotect('account', at({}))).rejects.toMatchObject({ code: 'UNKNOWN_TABLE' })
    expect(await Fencepost.unprotect('accounts', at({}))).toBe(1)
    expect(await names()).toEqual([])
    await expect(Fencepost.unprotect('accounts', at({}))).rejects.toMatchObject({ code: 'UNKNOWN_TABLE' })
  })
})

describe('a trigger that somebody makes with arguments of their own', () => {
  test('sets no other setting than that of a token', async () => {
    await Fencepost.protect('accounts', at({ lease: 'own' }))
    await database.query(`
      create table mine (id integer);
      create trigger t before insert on mine for each statement
        execute function fencepost.guard('own', 'lease', 'own', 'application_name')`)
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('own')
    const name = await lease.transaction(database.pool, async (client) => {
      await client.query('insert into mine values (1)')
      return (await client.query<{ name: string }>(`select current_setting('application_name') as name`)).rows
    })
    expect(name).toEqual([{ name: '' }])
    await database.query('drop table mine')
  })
})

test('a fence of another lease with the same token and holder is no fence of the table', async () => {
  await Fencepost.protect('accounts', at({ lease: 'second' }))
  const fencepost = await database.open()
  // The first tokens of two sequences.
  await using first = await fencepost.acquire('first', { sequence: 'one of its own' })
  await using second = await fencepost.acquire('second', { sequence: 'another of its own' })
  expect([first.token, first.term.holderId]).toEqual([second.token, second.term.holderId])
  const write = first.transaction(database.pool, (client) => client.query('delete from accounts'))
  await expect(write).rejects.toMatchObject({ code: 'WRONG_LEASE' })
})

describe('the record of a protection', () => {
  test('is forgotten for the owner of the table alone, also when the table is gone', async () => {
    await Fencepost.migrate(at({ grantTo: [app] }))
    const session = await database.session({
      connectionString: database.urlAs(app, `secret-of-${app}`),
    })
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    await database.query('drop trigger fencepost_guard on accounts')
    await expect(session.query(`select fencepost.forget_protection('accounts')`)).rejects.toMatchObject({
      code: '42501',
    })
    await database.query('drop table accounts')
    const forget = `select fencepost.forget_dropped('public.accounts') as count`
    expect((await session.query(forget)).rows).toEqual([{ count: 0 }])
    expect(await names()).toEqual(['public.accounts'])
    expect((await database.query(forget))[0]).toEqual({ count: 1 })
    await session.end()
  })

  test('of a partition that was protected by itself goes over to that of the whole', async () => {
    await database.query(`
      drop table if exists parted, part;
      create table part (id integer, fence_token bigint not null default 0);
      create table parted (id integer, fence_token bigint not null default 0) partition by range (id)`)
    await Fencepost.protect('part', at({ lease: 'x' }))
    await database.query('alter table parted attach partition part for values from (0) to (9)')
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([{ unguarded: ['public.part'] }])
    await Fencepost.protect('parted', at({ lease: 'y' }))
    expect((await Fencepost.protections(at({}))).tables).toMatchObject([
      { table: 'public.parted', guard: 'y', tables: 2, unguarded: [] },
    ])
  })
})

describe('unprotect', () => {
  test('lets everybody write again, keeps the column, and may be called again', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    expect(await Fencepost.unprotect('accounts', at({}))).toBe(1)
    expect(await Fencepost.unprotect('accounts', at({}))).toBe(0)
    await database.query('insert into accounts values (3, 3)')
    expect(await database.query('select * from accounts where id = 3')).toEqual([
      { id: 3, balance: 3, fence_token: '0' },
    ])
    expect(await names()).toEqual([])
  })

  test('of a table that somebody uses gives up in time, and changes nothing', async () => {
    await Fencepost.protect('accounts', at({ lease: 'x' }))
    const reader = await database.session()
    await reader.query('begin')
    await reader.query('select * from accounts')
    await expect(Fencepost.unprotect('accounts', at({ wait: 0 }))).rejects.toMatchObject({
      code: 'TABLE_BUSY',
    })
    await reader.query('commit')
    expect(await names()).toEqual(['public.accounts'])
    await expect(database.query('delete from accounts')).rejects.toMatchObject({ code: 'FP005' })
  })
})

describe('protectSchema', () => {
  const attempts: [string, string][] = [
    ['create table', 'create table app.made (id integer)'],
    ['create table as', 'create table app.made as select 1 as one'],
    ['alter table', 'alter table app.data add column more text'],
    ['alter table that rewrites', 'alter table app.data alter column id type bigint'],
    ['drop table', 'drop table app.data'],
    ['drop of a column', 'alter table app.data drop column note'],
    ['create index', 'create index made on app.data (id)'],
    ['drop index', 'drop index app.data_note'],
    ['create view', 'create view app.made as select 1 as one'],
    ['create function', `create function app.made() returns integer language sql as 'select 1'`],
    ['create type', 'create type app.made as (one integer)'],
    ['create sequence', 'create sequence app.made'],
    [
      'create trigger',
      'create trigger made before insert on app.data for each row execute function suppress_redundant_updates_trigger()',
    ],
    ['drop trigger', 'drop trigger kept on app.data'],
    ['disabling a trigger', 'alter table app.data disable trigger all'],
    ['create rule', 'create rule made as on insert to app.data do also select 1'],
    ['create policy', 'create policy made on app.data'],
    ['comment', `comment on table app.data is 'mine'`],
    ['moving a table out of it', 'alter table app.data set schema public'],
    ['moving a table into it', 'alter table public.loose set schema app'],
    ['renaming a table', 'alter table app.data rename to moved'],
    ['renaming the schema', 'alter schema app rename to moved'],
    ['dropping the schema', 'drop schema app cascade'],
    ['drop owned', `drop owned by ${app}`],
    ['moving a table out of it, in disguise', 'alter table app.data set/**/schema public'],
    [
      'moving a table out of it, in a function',
      `do $$ begin execute 'alter table app.data set ' || 'schema public'; end $$`,
    ],
    ['moving a type out of it', 'alter type app.kind set/**/schema public'],
    ['a new column of a parent elsewhere', 'alter table public.parent add column more text'],
    ['a renamed column of a parent elsewhere', 'alter table public.parent rename column id to nr'],
    ['a dropped column of a parent elsewhere', 'alter table public.parent drop column id'],
    ['a constraint of a parent elsewhere', 'alter table public.parent add constraint c check (id > 0)'],
    ['an index of a partitioned table elsewhere', 'create index made on public.whole (id)'],
    [
      'a trigger of a partitioned table elsewhere',
      'create trigger made before update on public.whole for each row execute function suppress_redundant_updates_trigger()',
    ],
    ['detaching a partition', 'alter table public.whole detach partition app.part'],
    ['attaching a partition', `alter table public.whole attach partition app.loose_part for values in (2)`],
    ['a partition elsewhere', 'create table public.made partition of app.whole for values in (1)'],
    ['a child elsewhere', 'create table public.made () inherits (app.data)'],
    ['a type elsewhere that a table is of', 'alter type public.form add attribute more text cascade'],
    [
      'a foreign key from elsewhere',
      'alter table public.loose add column data integer references app.data (id)',
    ],
    ['a grant on a table', `grant select on app.data to ${app}`],
    ['a grant on a column', `grant select (id) on app.data to ${app}`],
    ['a grant on the schema', `grant usage on schema app to ${app}`],
    ['default privileges', `alter default privileges in schema app grant select on tables to ${app}`],
    ['another owner', `alter table app.data owner to ${app}`],
    ['inside a function', `do $$ begin execute 'create table app.made (id integer)'; end $$`],
    ['with a search_path', 'set local search_path to app; create table made (id integer)'],
  ]

  beforeEach(async () => {
    await database.query(`
      drop schema if exists app cascade; create schema app; drop table if exists public.loose; create table public.loose ();
      create table app.data (id integer, note text); create index data_note on app.data (note);
      create table app.owned (); alter table app.owned owner to ${app};
      drop table if exists public.parent, public.whole, public.data cascade; drop type if exists public.form cascade;
      create type app.kind as enum ('a'); alter table app.data add primary key (id);
      create table public.parent (id integer); create table app.child () inherits (public.parent);
      create table public.whole (id integer) partition by list (id); create table app.part partition of public.whole for values in (1);
      create table app.loose_part (id integer); create table app.whole (id integer) partition by list (id);
      create type public.form as (id integer); create table app.formed of public.form;
      create trigger kept before update on app.data for each row execute function suppress_redundant_updates_trigger()`)
    await Fencepost.protectSchema('app', at({ lease: 'deploy' }))
    return async () => {
      await Fencepost.unprotectSchema('app', at({}))
    }
  })

  const shape = () =>
    database.query(
      `select c.relname, c.relkind, n.nspname, c.relacl::text, c.relispartition, pg_get_userbyid(c.relowner) as owner, n.nspacl::text, (select count(*) from pg_trigger t where t.tgrelid = c.oid and t.tgenabled = 'O') as triggers,
              (select array_agg(a.attname || a.atttypid) from pg_attribute a where a.attrelid = c.oid and not a.attisdropped) as columns
         from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('app', 'public', 'moved') order by 1, 3`,
    )

  test.each(attempts)('refuses %s without a fence, and lets it pass with one', async (_, sql) => {
    const before = await shape()
    const session = await database.session()
    await session.query('begin')
    await expect(session.query(sql)).rejects.toMatchObject({ code: 'FP005' })
    await session.query('rollback')
    expect(await shape()).toEqual(before)
    const fencepost = await database.open()
    const pool = database.newPool({ max: 1 })
    await using other = await fencepost.acquire('other')
    await expect(other.transaction(pool, (client) => client.query(sql))).rejects.toMatchObject({
      code: 'WRONG_LEASE',
      guard: 'deploy',
    })
    expect(await shape()).toEqual(before)
    {
      await using stale = await fencepost.acquire('deploy')
      await database.query(`update fencepost.lease set token = token + 1 where name = 'deploy'`)
      const late = fencedTransaction({ term: stale.term }, pool, (client) => client.query(sql))
      await expect(late).rejects.toMatchObject({ code: 'STALE_TERM' })
      await database.query(`update fencepost.lease set token = token - 1 where name = 'deploy'`)
      expect(await shape()).toEqual(before)
    }
    await using lease = await fencepost.acquire('deploy')
    await lease.transaction(pool, (client) => client.query(sql))
    await pool.end()
  })

  test('leaves DDL elsewhere, temporary tables and refreshed views alone', async () => {
    await database.query('create table public.free (id integer); drop table public.free')
    await database.query(`create temporary table temporary_one as select 'concurrently, set schema' as note`)
    await database.query(`comment on table public.accounts is 'set schema, concurrently'`)
    await database.query(`create materialized view if not exists public.seen as select 1 as one`)
    await database.query(`create unique index if not exists seen_one on public.seen (one)`)
    await database.query(`refresh materialized view concurrently public.seen`)
    await database.query('drop materialized view public.seen')
    await database.query('create index concurrently loose_index on public.accounts (balance)').then(
      () => expect.unreachable('CONCURRENTLY is refused before its schema is known'),
      (error: { code: string }) => expect(error.code).toBe('FP005'),
    )
    // What was changed before it came in the same transaction counts for nothing.
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('deploy')
    const session = await database.session()
    await session.query('begin')
    await lease.fence(session)
    await session.query('create table app.made (id integer)')
    await session.query(`select set_config('fencepost.fence', '', true)`)
    await session.query('create temporary table temporary_two (id integer)')
    await session.query('commit')
  })

  test('refuses CREATE INDEX CONCURRENTLY before it leaves anything behind, and lets a fenced session do it', async () => {
    const sql = 'create index concurrently made on app.data (id)'
    await expect(database.query(sql)).rejects.toMatchObject({ code: 'FP005' })
    expect(await database.query(`select from pg_class where relname = 'made'`)).toEqual([])
    const fencepost = await database.open()
    await using lease = await fencepost.acquire('deploy')
    const session = await database.session({ options: lease.environment['FENCEPOST_PGOPTIONS'] })
    await session.query(sql)
    expect(
      await database.query(`select indisvalid from pg_index where indexrelid = 'app.made'::regclass`),
    ).toEqual([{ indisvalid: true }])
    await session.query('drop index concurrently app.made')
  })

  test('is listed, replaced, and taken away with its event triggers', async () => {
    await Fencepost.protectSchema('app', at({ lease: 'deploy/*' }))
    expect((await Fencepost.protections(at({}))).schemas).toMatchObject([
      { schema: 'app', guard: 'deploy/*' },
    ])
    expect(await database.query('select from pg_event_trigger')).toHaveLength(4)
    expect(await Fencepost.unprotectSchema('app', at({}))).toBe(true)
    expect(await Fencepost.unprotectSchema('app', at({}))).toBe(false)
    expect(await database.query('select from pg_event_trigger')).toEqual([])
    await database.query('create table app.made (id integer)')
  })

  test('refuses what cannot be protected, and says which right is missing', async () => {
    const refused = (schema: string, lease = 'x', connectionString = database.url) => ({
      async toMatchObject(failure: object): Promise<void> {
        await expect(Fencepost.protectSchema(schema, { connectionString, lease })).rejects.toMatchObject(
          failure,
        )
      },
    })
    await refused('nowhere').toMatchObject({ code: 'UNKNOWN_TABLE' })
    await refused('pg_catalog').toMatchObject({ code: 'NOT_PROTECTABLE' })
    await refused('fencepost').toMatchObject({ code: 'NOT_PROTECTABLE' })
    await refused('app', 'a/{id}').toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'lease' })
    await refused('', 'a').toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'schema' })
    await Fencepost.unprotectSchema('app', at({}))
    await Fencepost.migrate(at({ grantTo: [app] }))
    await refused('app', 'x', database.urlAs(app, `secret-of-${app}`)).toMatchObject({
      code: 'PERMISSION_DENIED',
      message: expect.stringContaining('superuser') as string,
    })
    expect((await Fencepost.protections(at({}))).schemas).toEqual([])
  })

  test('prints SQL that does the same', async () => {
    await Fencepost.unprotectSchema('app', at({}))
    await database.query(protectSchemaSql('app', { lease: "o'hara" }))
    expect((await Fencepost.protections(at({}))).schemas).toMatchObject([{ schema: 'app', guard: "o'hara" }])
  })
})
