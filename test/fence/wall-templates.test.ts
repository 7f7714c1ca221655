import type { Client } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { copyIn } from './wall-attacks.ts'
import { type GrantedTerm, callFence, grant, refusalOf, sessionOfTest, setFence } from './wall-terms.ts'

// Guards that fit more than one lease: templates, by which each row has a lease of its own, and prefixes.

const database = useDatabase()
let version = 0

beforeAll(async () => {
  const [server] = await database.query<{ version: number }>(
    `select current_setting('server_version_num')::integer as version`,
  )
  version = server!.version
  await database.query(`select fencepost.raise_token_floor('default', 100)`)
})

const madeUp = 'aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa'

describe('a table guarded by account/{account_id}', () => {
  const terms = new Map<number, GrantedTerm>()
  let session: Client

  beforeAll(async () => {
    await database.query(`
      create table owner (id integer primary key);
      create table item (
        account_id integer,
        no integer not null,
        code text unique,
        amount integer not null default 0,
        owner_id integer references owner on delete cascade on update cascade);
      create unique index on item (account_id, no);
      create table line (account_id integer, no integer, region text, amount integer not null default 0)
        partition by list (region);
      create table line_east partition of line for values in ('east');
      create table line_west (amount integer not null default 0, dropped text, region text, no integer, account_id integer);
      alter table line_west drop column dropped;
      alter table line attach partition line_west for values in ('west');
      create table parcel (account_id integer, no integer);
      create table crate (lid text) inherits (parcel);
      select fencepost.protect(t::regclass, 'account/{account_id}') from unnest('{item,line,parcel}'::text[]) t;
      create function reset() returns void language sql set session_replication_role = replica as $$
        delete from item; delete from line; delete from parcel; delete from owner;
        insert into owner values (1), (2), (12);
        insert into item values
          (1, 1, 'a1', 1, 1), (1, 2, 'a2', 2, 12), (2, 1, 'b1', 1, 2), (2, 2, 'b2', 2, 12);
        insert into line (account_id, no, region) values
          (1, 1, 'east'), (1, 2, 'west'), (2, 1, 'east'), (2, 2, 'west');
        insert into parcel values (1, 1), (2, 1);
        insert into crate values (1, 2), (2, 2);
      $$`)
    for (const account of [1, 2, 3]) terms.set(account, await grant(database, `account/${account}`))
    session = await database.session()
  })
  beforeEach(async () => {
    await database.query('select reset()')
    await session.query('reset fencepost.fence')
  })

  const contents = async (): Promise<unknown[]> =>
    (
      await database.query(`
        select (select relname from pg_class where oid = x.relation) || x.row as row from (
          select tableoid as relation, i::text as row from item i
          union all select tableoid, l::text from line l
          union all select tableoid, p::text from parcel p) x order by 1`)
    ).map(({ row }) => row as unknown)

  /** Runs it in a transaction that is fenced by these accounts. */
  async function attempt(accounts: number[], sql: string): Promise<string | undefined> {
    await session.query('begin')
    for (const account of accounts) await callFence(session, terms.get(account)!)
    const refusal = await refusalOf(session.query(sql))
    await session.query('commit')
    return refusal
  }

  /** What the holder of account 1 may do, and the same to rows of account 2. */
  const statements: [what: string, own: string, others: string, since?: number][] = [
    [
      'INSERT',
      'insert into item (account_id, no) values (1, 10)',
      'insert into item (account_id, no) values (2, 10)',
    ],
    [
      'INSERT of rows of several accounts',
      'insert into item (account_id, no) values (1, 10), (1, 11)',
      'insert into item (account_id, no) values (1, 10), (2, 10)',
    ],
    [
      'INSERT … SELECT',
      'insert into item (account_id, no) select 1, g from generate_series(10, 20) g',
      'insert into item (account_id, no) select 1 + g / 20, g from generate_series(10, 20) g',
    ],
    ['UPDATE', 'update item set amount = 9 where account_id = 1', 'update item set amount = 9 where no = 1'],
    [
      'UPDATE that moves a row away to another account',
      'update item set account_id = account_id where account_id = 1',
      'update item set account_id = 2, no = 10 where account_id = 1 and no = 1',
    ],
    [
      'UPDATE that moves a row over from another account',
      'update item set account_id = 1 where account_id = 1',
      'update item set account_id = 1, no = 10 where account_id = 2 and no = 1',
    ],
    [
      'UPDATE that swaps two rows',
      'update item set no = 30 - no where account_id = 1',
      'update item set account_id = 3 - account_id, no = no + 10 where no = 1',
    ],
    ['DELETE', 'delete from item where account_id = 1', 'delete from item'],
    [
      'ON CONFLICT DO UPDATE that updates',
      `insert into item (account_id, no, code) values (1, 10, 'a1') on conflict (code) do update set amount = 9`,
      `insert into item (account_id, no, code) values (1, 10, 'b1') on conflict (code) do update set amount = 9`,
    ],
    [
      'ON CONFLICT DO UPDATE that inserts',
      `insert into item (account_id, no, code) values (1, 10, 'a9') on conflict (code) do update set amount = 9`,
      `insert into item (account_id, no, code) values (2, 10, 'b9') on conflict (code) do update set amount = 9`,
    ],
    [
      'ON CONFLICT DO UPDATE that moves a row away',
      `insert into item (account_id, no, code) values (1, 10, 'a1') on conflict (code) do update set account_id = 1`,
      `insert into item (account_id, no, code) values (1, 10, 'a1')
         on conflict (code) do update set account_id = 2, no = 10`,
    ],
    [
      'MERGE that inserts',
      `merge into item i using (values (1, 10)) v (a, n) on i.account_id = v.a and i.no = v.n
         when not matched then insert (account_id, no) values (v.a, v.n)`,
      `merge into item i using (values (2, 10)) v (a, n) on i.account_id = v.a and i.no = v.n
         when not matched then insert (account_id, no) values (v.a, v.n)`,
      150_000,
    ],
    [
      'MERGE that updates',
      `merge into item i using (values (1)) v (n) on i.no = v.n and i.account_id = 1
         when matched then update set amount = 9`,
      `merge into item i using (values (1)) v (n) on i.no = v.n when matched then update set amount = 9`,
      150_000,
    ],
    [
      'MERGE that deletes',
      `merge into item i using (values (1)) v (n) on i.no = v.n and i.account_id = 1 when matched then delete`,
      `merge into item i using (values (1)) v (n) on i.no = v.n when matched then delete`,
      150_000,
    ],
    [
      'writable CTE',
      `with gone as (delete from item where account_id = 1 returning no)
       insert into line (account_id, no, region) select 1, no, 'east' from gone`,
      `with gone as (delete from item where account_id = 1 returning no)
       insert into line (account_id, no, region) select 2, no, 'east' from gone`,
    ],
    [
      'writable CTE beside a permitted statement',
      `with gone as (delete from item where account_id = 1) update line set amount = 9 where account_id = 1`,
      `with gone as (delete from item where account_id = 2) update line set amount = 9 where account_id = 1`,
    ],
    ['ON DELETE CASCADE', 'delete from owner where id = 1', 'delete from owner where id = 2'],
    [
      'ON DELETE CASCADE of several parents',
      'delete from owner where id = 1',
      'delete from owner where id in (1, 12)',
    ],
    [
      'ON UPDATE CASCADE',
      'update owner set id = 21 where id = 1',
      'update owner set id = id + 20 where id in (1, 2)',
    ],
    [
      'INSERT into a partitioned table',
      `insert into line (account_id, no, region) values (1, 10, 'east'), (1, 11, 'west')`,
      `insert into line (account_id, no, region) values (1, 10, 'east'), (2, 11, 'west')`,
    ],
    [
      'INSERT into a partition',
      `insert into line_west (account_id, no, region) values (1, 10, 'west')`,
      `insert into line_west (account_id, no, region) values (2, 10, 'west')`,
    ],
    [
      'UPDATE of a partition',
      'update line_west set amount = 9 where account_id = 1',
      'update line_west set amount = 9',
    ],
    ['DELETE from a partition', 'delete from line_east where account_id = 1', 'delete from line_east'],
    [
      'UPDATE that moves rows between partitions',
      `update line set region = 'west' where account_id = 1 and region = 'east'`,
      `update line set region = 'west' where region = 'east'`,
    ],
    [
      'UPDATE that moves a row to another partition and another account',
      `update line set region = 'west', account_id = 1 where account_id = 1`,
      `update line set region = 'west', account_id = 2 where account_id = 1 and region = 'east'`,
    ],
    [
      'INSERT into an inheriting table',
      'insert into crate (account_id, no) values (1, 10)',
      'insert into crate (account_id, no) values (2, 10)',
    ],
    [
      'UPDATE of an inheriting table through the one it inherits from',
      'update parcel set no = no + 10 where account_id = 1',
      'update parcel set no = no + 10 where account_id = 1 or no = 2',
    ],
    [
      'function',
      'do $$ begin update item set amount = 9 where account_id = 1; end $$',
      'do $$ begin update item set amount = 9 where account_id = 2; end $$',
    ],
  ]

  test.for(statements)(
    'the holder of account/1 writes its own rows and no others: %s',
    async ([, own, others, since = 0], { skip }) => {
      skip(version < since, 'this PostgreSQL does not know MERGE')
      const before = await contents()
      expect(await attempt([1], others)).toBe('FP006')
      expect(await contents()).toEqual(before)
      expect(await attempt([2], own)).toBe('FP006')
      expect(await attempt([3], own)).toBe('FP006')
      expect(await attempt([], own)).toBe('FP005')
      expect(await contents()).toEqual(before)
      expect(await attempt([1], own)).toBeUndefined()
    },
  )

  test.for(statements)(
    'what the holder of account/1 may not write, the holder of both accounts may: %s',
    async ([, , others, since = 0], { skip }) => {
      skip(version < since, 'this PostgreSQL does not know MERGE')
      const before = await contents()
      expect(await attempt([1, 2], others)).toBeUndefined()
      expect(await contents()).not.toEqual(before)
      await database.query('select reset()')
      await setFence(session, terms.get(2)!.fence, terms.get(3)!.fence, terms.get(1)!.fence)
      expect(await refusalOf(session.query(others))).toBeUndefined()
      expect(await contents()).not.toEqual(before)
    },
  )

  test('COPY is refused when one of its rows is of another account', async () => {
    await setFence(session, terms.get(1)!.fence)
    const before = await contents()
    const copy = (rows: string) => copyIn(session, 'copy line (account_id, no, region) from stdin', rows)
    expect(await refusalOf(copy('1\t10\teast\n2\t11\twest\n'))).toBe('FP006')
    expect(await contents()).toEqual(before)
    expect(await refusalOf(copy('1\t10\teast\n1\t11\twest\n'))).toBeUndefined()
    expect(await contents()).toHaveLength(before.length + 2)
  })

  test.for(['item', 'line', 'line_west', 'parcel', 'crate', 'owner cascade'])(
    'TRUNCATE is refused whoever holds what, because it would delete the rows of others: %s',
    async (table) => {
      const before = await contents()
      expect(await attempt([1], `truncate ${table}`)).toBe('FP006')
      expect(await attempt([1, 2, 3], `truncate ${table}`)).toBe('FP006')
      expect(await attempt([], `truncate ${table}`)).toBe('FP005')
      expect(await contents()).toEqual(before)
    },
  )

  test('a row whose column is null has no lease, so nobody writes it', async () => {
    const before = await contents()
    expect(await attempt([1], 'insert into item (account_id, no) values (null, 1)')).toBe('FP006')
    expect(await attempt([1], 'update item set account_id = null where account_id = 1')).toBe('FP006')
    expect(await contents()).toEqual(before)
  })

  test('a refused row is named by its lease, for people and for programs', async () => {
    const refused = await session
      .query('begin')
      .then(() => callFence(session, terms.get(1)!))
      .then(() => session.query('update item set amount = 9 where account_id = 2'))
      .catch((error: unknown) => error as { message: string; detail: string })
    await session.query('rollback')
    expect(refused).toMatchObject({
      code: 'FP006',
      message:
        'table public.item is guarded by "account/{account_id}": a row belongs to lease "account/2", and this transaction is fenced by "account/1"',
    })
    expect(JSON.parse((refused as { detail: string }).detail)).toEqual({
      by: 'wall',
      what: 'table public.item',
      guard: 'account/{account_id}',
      row: 'account/2',
    })
  })

  test('a lease outside the template is refused before any row is looked at', async () => {
    const other = await grant(database, 'accounts/1')
    await setFence(session, other.fence)
    expect(await refusalOf(session.query('update item set amount = 9 where false'))).toBe('FP006')
  })

  test('a stale, an expired and a forged fence are refused like those of a plain guard', async () => {
    const stale = await grant(database, 'account/9')
    const expired = await grant(database, 'account/9')
    const write = 'insert into item (account_id, no) values (9, 1)'
    await setFence(session, stale.fence)
    expect(await refusalOf(session.query(write))).toBe('FP001')
    await expired.holder.expire()
    await setFence(session, expired.fence)
    expect(await refusalOf(session.query(write))).toBe('FP002')
    await setFence(session, expired.fence.replace(expired.holder.id, madeUp))
    expect(await refusalOf(session.query(write))).toBe('FP001')
    // One fence that fits and is bad spoils the good ones beside it.
    await setFence(session, terms.get(1)!.fence, stale.fence)
    expect(await refusalOf(session.query('update item set amount = 9 where account_id = 1'))).toBe('FP001')
  })

  test.for<[string, () => string, string]>([
    ['a forged fence of the other account', () => `${terms.get(2)!.token}:${madeUp}:account/2`, 'FP001'],
    ['a fence that was never granted', () => `9999:${madeUp}:account/7`, 'FP003'],
    [
      'a forged fence beside the valid one',
      () => `${terms.get(1)!.fence}\n${terms.get(2)!.token}:${madeUp}:account/2`,
      'FP001',
    ],
    ['nothing', () => '', 'FP005'],
    ['what is no fence', () => '2:account/2', 'FP005'],
    ['the fence of a lease outside the template', () => `1:${madeUp}:other`, 'FP006'],
  ])('a statement that changes the setting in its middle to %s gains nothing', async ([, fenceOf, code]) => {
    const before = await contents()
    const setting = `set_config('fencepost.fence', '${fenceOf()}', true)`
    for (const sql of [
      `with s as materialized (select ${setting}) update item set amount = 9 from s where account_id = 2`,
      `insert into item (account_id, no, code) select 2, 10, ${setting}`,
      `delete from item where account_id = 2 and ${setting} is not null`,
      `insert into line (account_id, no, region) select 2, 10, case when ${setting} is not null then 'east' end`,
    ]) {
      expect(await attempt([1], sql)).toBe(code)
    }
    expect(await contents()).toEqual(before)
  })

  test('a valid fence of both accounts that a statement gives itself is a valid fence', async () => {
    const both = `${terms.get(1)!.fence}\n${terms.get(2)!.fence}`
    const sql = `with s as materialized (select set_config('fencepost.fence', '${both}', true))
      update item set amount = 9 from s where no = 1`
    expect(await attempt([1], sql)).toBeUndefined()
  })

  test('rows that a transaction inserts under several leases carry the lowest of their tokens, which no later term of any of them is below', async () => {
    await attempt([2, 3, 1], 'insert into item (account_id, no) values (1, 10), (2, 10)')
    const stamps = await database.query('select fence_token from item where no = 10')
    const lowest = [1, 2, 3].map((account) => terms.get(account)!.token).toSorted((a, b) => Number(a - b))[0]
    expect(stamps).toEqual([{ fence_token: `${lowest}` }, { fence_token: `${lowest}` }])
  })
})

describe('a template', () => {
  test.for([
    ['smallint', '7', '7'],
    ['integer', '-7', '-7'],
    ['bigint', '9007199254740993', '9007199254740993'],
    ['text', `'it''s {x}: "ü" %'`, `it's {x}: "ü" %`],
    ['varchar(10)', `'v'`, 'v'],
    ['uuid', `'AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA'`, madeUp],
    ['boolean', 'true', 'true'],
    ['name', `'n'`, 'n'],
    ['mood', `'so so'`, 'so so'],
    ['label', `'l'`, 'l'],
  ] as const)('reads a column of type %s as its text', async ([type, value, text]) => {
    const session = await sessionOfTest(database)
    await session.query('begin')
    await session.query(`create type mood as enum ('so so'); create domain label as text`)
    await session.query(`create table typed ("the key" ${type}, "second" integer)`)
    await session.query(`select fencepost.protect('typed', 'a {the key}/{second}.{{}} b')`)
    await session.query('commit')
    const [right, wrong] = [
      await grant(database, `a ${text}/1.{} b`),
      await grant(database, `a ${text}/2.{} b`),
    ]
    await setFence(session, wrong.fence)
    expect(await refusalOf(session.query(`insert into typed values (${value}, 1)`))).toBe('FP006')
    await setFence(session, right.fence)
    expect(await refusalOf(session.query(`insert into typed values (${value}, 1)`))).toBeUndefined()
    await database.query(
      `select fencepost.unprotect('typed'); drop table typed; drop type mood; drop domain label`,
    )
  })

  test.for(['numeric', 'timestamptz', 'double precision', 'char(5)', 'jsonb', 'integer[]', 'bytea', 'date'])(
    'does not read a column of type %s, whose text is not the same everywhere',
    async (type) => {
      await database.query(`create table untyped (id ${type})`)
      const refused = database.query(`select fencepost.protect('untyped', 'a/{id}')`)
      await expect(refused).rejects.toMatchObject({
        code: '22023',
        message: expect.stringContaining('whose text depends on settings') as string,
      })
      await database.query('drop table untyped')
    },
  )

  test('of a column that the table lacks is refused', async () => {
    await database.query('create table lacking (id integer)')
    const refused = database.query(`select fencepost.protect('lacking', 'a/{nr}')`)
    await expect(refused).rejects.toMatchObject({
      code: '42703',
      message: expect.stringContaining('"nr"') as string,
    })
    await database.query('drop table lacking')
  })

  test('compares leases byte by byte, whatever the collation of the column', async ({ skip }) => {
    const icu = await database.query(`select from pg_collation where collprovider = 'i' limit 1`)
    skip(icu.length === 0, 'this PostgreSQL has no ICU')
    await database.query(`
      create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
      create table word (id text collate blind);
      select fencepost.protect('word', 'word/{id}')`)
    onTestFinished(async () => {
      await database.query(`select fencepost.unprotect('word'); drop table word; drop collation blind`)
    })
    const session = await sessionOfTest(database)
    await setFence(session, (await grant(database, 'word/a')).fence)
    expect(await refusalOf(session.query(`insert into word values ('a')`))).toBeUndefined()
    expect(await refusalOf(session.query(`insert into word values ('A')`))).toBe('FP006')
  })
})

describe('a guard', () => {
  beforeEach(async () => {
    await database.query('create table guarded (id integer)')
  })
  afterEach(async () => {
    await database.query(`select fencepost.unprotect('guarded'); drop table guarded`)
  })

  test.for([
    ['orders/*', ['orders/7', 'orders/', 'orders/7/8', 'orders/*'], ['orders', 'Orders/7', 'a/orders/7']],
    ['*', ['anything', 'a*', '{x}'], []],
    ['a**', ['a*'], ['a', 'ab', 'a**', '*']],
    ['a*b', ['a*b'], ['ab', 'axb', 'a*']],
    ['{{x}}', ['{x}'], ['x', '{{x}}', '{x', 'x}']],
    ['{{*', ['{', '{y', '{{'], ['y']],
    ['a%', ['a%'], ['ab', 'a']],
    ['a_', ['a_'], ['ab']],
    [String.raw`it's a \ "wall" 100% – ü`, [String.raw`it's a \ "wall" 100% – ü`], ["it's", 'ü']],
    ['a:b:c', ['a:b:c'], ['c', 'b:c', 'a']],
    ['x'.repeat(512), ['x'.repeat(512)], ['x'.repeat(511)]],
  ] as [string, string[], string[]][])(
    '%s fits the leases that it is meant for, and no others',
    async ([guard, fitting, others]) => {
      await database.query('select fencepost.protect($1, $2)', ['guarded', guard])
      const session = await sessionOfTest(database)
      for (const lease of fitting) {
        const { fence, token } = await grant(database, lease)
        await setFence(session, fence)
        const { rows } = await session.query('insert into guarded values (1) returning fence_token')
        expect(rows).toEqual([{ fence_token: `${token}` }])
      }
      for (const lease of others) {
        await setFence(session, (await grant(database, lease)).fence)
        expect(await refusalOf(session.query('insert into guarded values (1)'))).toBe('FP006')
      }
      // What is stored of it says that nothing is left to do.
      const [seen] = await database.query(
        `select guard, unguarded from fencepost.protections where "table" = 'public.guarded'`,
      )
      expect(seen).toEqual({ guard, unguarded: [] })
    },
  )

  test.for([
    ['an empty one', ''],
    ['513 bytes', `${'x'.repeat(511)}ü`],
    ['a control character', 'a\tb'],
    ['a newline', 'a\n'],
    ['an open brace', 'a{b'],
    ['a closing brace', 'a}b'],
    ['an empty column', 'a/{}'],
    ['nested braces', 'a/{b{c}}'],
    ['a template that ends in a star', 'a/{id}*'],
    ['null', null],
  ] as const)('that is malformed is refused: %s', async ([, guard]) => {
    const refused = database.query('select fencepost.protect($1, $2)', ['guarded', guard])
    await expect(refused).rejects.toMatchObject({ code: '22023' })
    expect(
      await database.query(`select from fencepost.protections where "table" = 'public.guarded'`),
    ).toEqual([])
  })
})
