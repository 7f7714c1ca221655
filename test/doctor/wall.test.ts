import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { tokenSetting } from '../../src/doctor/records.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { type Case, applyFix, examineAt, cure, findingOf, run, troubles } from './patient.ts'

const database = useDatabase()
const schemas = useDatabase()
const fenceOnly = useDatabase({ migrated: false })
const role = `doctor_${randomBytes(4).toString('hex')}`
const stranger = `doctor_${randomBytes(4).toString('hex')}`

beforeAll(async () => {
  await run(database.url, [
    `create role ${role}`,
    `create role ${stranger} login password 'geheim'`,
    'create table accounts (id integer primary key, status text)',
    'create table "Odd.Table" (id integer primary key, "Owner" text)',
    'create table lines (id integer, customer integer) partition by list (id)',
    'create table lines_1 partition of lines for values in (1)',
    'create table stamped (id integer primary key, "Guard" bigint not null default 0)',
    `select fencepost.protect('accounts', 'settlement')`,
    `select fencepost.protect('"Odd.Table"', 'it''s {Owner}')`,
    `select fencepost.protect('lines', 'customer/{customer}')`,
    `select fencepost.protect('stamped', 'orders/*', 'Guard', true)`,
  ])
})
afterAll(async () => {
  for (const one of [role, stranger]) {
    await database.query(`drop owned by ${one}`)
    await database.query(`drop role ${one}`)
  }
})

/** The arguments that protect gives the guard of accounts, and those that it gives one of another protection. */
const wanted = `'settlement', 'lease', 'settlement', '${tokenSetting('settlement')}'`
const foreign = `'other', 'lease', 'other', '${tokenSetting('other')}'`

const cases: Record<string, Case> = {
  'a trigger that is gone': {
    code: 'trigger-missing',
    severity: 'error',
    object: 'public.accounts',
    breaks: ['drop trigger fencepost_guard on accounts'],
  },
  'the triggers of a template, of a table with an odd name': {
    code: 'trigger-missing',
    severity: 'error',
    object: 'public."Odd.Table"',
    breaks: ['drop trigger fencepost_guard_rows_updated on "Odd.Table"'],
  },
  'the stamp of another column': {
    code: 'trigger-missing',
    severity: 'error',
    object: 'public.stamped',
    breaks: ['drop trigger fencepost_stamp on stamped'],
  },
  'a trigger that is disabled': {
    code: 'trigger-disabled',
    severity: 'error',
    object: 'public.accounts',
    breaks: ['alter table accounts disable trigger user'],
  },
  'a trigger that fires for replicas only': {
    code: 'trigger-disabled',
    severity: 'error',
    object: 'public.lines_1',
    breaks: ['alter table lines_1 enable replica trigger fencepost_guard_again'],
  },
  'a trigger with another guard': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update or delete or truncate on accounts for each statement
         execute function fencepost.guard(${foreign})`,
    ],
  },
  'a trigger that leaves DELETE out': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update or truncate on accounts for each statement
         execute function fencepost.guard(${wanted})`,
    ],
  },
  'a trigger that looks at some columns only': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update of id or delete or truncate on accounts for each statement
         execute function fencepost.guard(${wanted})`,
    ],
  },
  'a trigger with a condition': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update or delete or truncate on accounts for each statement
         when (false) execute function fencepost.guard(${wanted})`,
    ],
  },
  'a trigger of the same name that does nothing': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create function nothing() returns trigger language plpgsql as 'begin return null; end'`,
      `create trigger fencepost_guard before insert or update or delete or truncate on accounts for each statement
         execute function nothing(${wanted})`,
    ],
    tidies: ['drop function nothing()'],
  },
  'a trigger that leaves the token elsewhere': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update or delete or truncate on accounts for each statement
         execute function fencepost.guard('settlement', 'lease', 'settlement', '${tokenSetting('other')}')`,
    ],
  },
  'a stamp that takes the token of another guard': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.stamped',
    breaks: [
      'drop trigger fencepost_stamp on stamped',
      `create trigger fencepost_stamp before insert or update on stamped for each row
         execute function fencepost.stamp('${tokenSetting('other')}', 'Guard')`,
    ],
  },
  'a trigger that looks at the rows of a partition on a condition': {
    code: 'trigger-altered',
    severity: 'error',
    object: 'public.lines_1',
    breaks: [
      'drop trigger fencepost_guard_rows_inserted on lines_1',
      `create trigger fencepost_guard_rows_inserted after insert on lines_1 referencing new table as rows
         for each statement when (false)
         execute function fencepost.guard_rows('customer/{customer}', '''customer/'' || r.customer::text')`,
    ],
  },
  'a trigger of another protection': {
    code: 'trigger-unwanted',
    severity: 'warning',
    object: 'public.accounts',
    breaks: [
      `create trigger former_guard after insert on accounts for each statement
         execute function fencepost.guard(${foreign})`,
    ],
  },
  'a new partition': {
    code: 'partition-unguarded',
    severity: 'error',
    object: 'public.lines_2',
    breaks: ['create table lines_2 partition of lines for values in (2)'],
  },
  'a table that inherits from a protected one': {
    code: 'partition-unguarded',
    severity: 'error',
    object: 'public.old_accounts',
    breaks: ['create table old_accounts () inherits (accounts)'],
    tidies: ['drop table old_accounts'],
  },
  'a partition on another server': {
    code: 'partition-foreign',
    severity: 'error',
    object: 'public.lines_3',
    breaks: [
      'create extension postgres_fdw',
      'create server elsewhere foreign data wrapper postgres_fdw',
      'create foreign table lines_3 partition of lines for values in (3) server elsewhere',
    ],
    mends: ['alter table lines detach partition lines_3', 'drop extension postgres_fdw cascade'],
  },
  'a protected table that became a partition': {
    code: 'parent-unprotected',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'create table all_accounts (id integer not null, status text, fence_token bigint not null) partition by list (id)',
      'alter table all_accounts attach partition accounts default',
    ],
    tidies: [
      'alter table all_accounts detach partition accounts',
      `select fencepost.unprotect('all_accounts')`,
      'drop table all_accounts',
      `select fencepost.protect('accounts', 'settlement')`,
    ],
  },
  'a protected table that became a child, of a table with other protected children': {
    code: 'parent-unprotected',
    severity: 'error',
    object: 'public.stamped',
    breaks: [
      'create table whole (id integer not null)',
      'create table other_part (id integer not null)',
      `select fencepost.protect('other_part', 'settlement')`,
      'alter table other_part inherit whole',
      'alter table stamped inherit whole',
    ],
    others: ['parent-unprotected public.other_part'],
    mends: ['alter table stamped no inherit whole', 'drop table whole cascade'],
    tidies: [`select fencepost.forget_dropped('public.other_part')`],
  },
  'a child of a protected table that has another parent as well': {
    code: 'parent-unprotected',
    severity: 'error',
    object: 'public.child',
    breaks: [
      'create table open (id integer not null)',
      'create table child () inherits (accounts)',
      `select fencepost.protect('accounts', 'settlement')`,
      'alter table child inherit open',
    ],
    mends: ['alter table child no inherit open'],
    tidies: ['drop table child, open'],
  },
  'a child of two protected tables': {
    code: 'parent-unprotected',
    severity: 'warning',
    object: 'public.child',
    breaks: [
      'create table second (id integer not null)',
      'create table child () inherits (accounts)',
      `select fencepost.protect('accounts', 'settlement')`,
      `select fencepost.protect('second', 'settlement')`,
      'alter table child inherit second',
    ],
    mends: ['alter table child no inherit second'],
    tidies: ['drop table child, second', `select fencepost.forget_dropped('public.second')`],
  },
  'a protected table that is part of a protected one': {
    code: 'parent-unprotected',
    severity: 'warning',
    object: 'public.lines_3',
    breaks: [
      'create table lines_3 (id integer, customer integer)',
      `select fencepost.protect('lines_3', 'customer/{customer}')`,
      'alter table lines attach partition lines_3 for values in (3)',
    ],
    tidies: ['drop table lines_3'],
  },
  'a column of the guard that is gone': {
    code: 'guard-column-missing',
    severity: 'error',
    object: 'public."Odd.Table"',
    breaks: ['alter table "Odd.Table" rename column "Owner" to keeper'],
    mends: ['alter table "Odd.Table" rename column keeper to "Owner"'],
  },
  'a column of the guard whose text depends on settings by now': {
    code: 'guard-column-missing',
    severity: 'error',
    object: 'public."Odd.Table"',
    breaks: ['alter table "Odd.Table" alter "Owner" type timestamptz using null'],
    mends: ['alter table "Odd.Table" alter "Owner" type text'],
  },
  'a detached partition': {
    code: 'table-unrecorded',
    severity: 'warning',
    object: 'public.lines_1',
    breaks: ['alter table lines detach partition lines_1'],
    tidies: [`select fencepost.unprotect('lines_1')`, 'drop table lines_1'],
  },
  'a table that is gone': {
    code: 'protected-table-dropped',
    severity: 'warning',
    object: 'public.gone',
    breaks: [
      'create table gone (id integer)',
      `select fencepost.protect('gone', 'settlement')`,
      'drop table gone',
    ],
  },
  'a table that was made anew': {
    code: 'protected-table-remade',
    severity: 'error',
    object: 'public."Gone"',
    breaks: [
      'create table "Gone" (id integer)',
      `select fencepost.protect('"Gone"', 'settlement')`,
      'drop table "Gone"',
      'create table "Gone" (id integer)',
    ],
  },
  'a fence column that is gone': {
    code: 'fence-column-missing',
    severity: 'error',
    object: 'public.accounts',
    breaks: ['alter table accounts drop column fence_token cascade'],
  },
  'a fence column of another type': {
    code: 'fence-column-type',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'alter table accounts alter fence_token drop default',
      'alter table accounts alter fence_token type text',
    ],
  },
  'a fence column that is generated': {
    code: 'fence-column-type',
    severity: 'error',
    object: 'public.accounts',
    breaks: [
      'alter table accounts drop fence_token cascade',
      'alter table accounts add fence_token bigint generated always as (id + 0) stored',
    ],
    mends: [
      'alter table accounts drop fence_token cascade',
      'alter table accounts add fence_token bigint not null default 0',
      `select fencepost.protect('accounts', 'settlement')`,
    ],
  },
  'a fence column that an INSERT does not fill': {
    code: 'fence-default-missing',
    severity: 'warning',
    object: 'public.accounts',
    breaks: ['alter table accounts alter fence_token set default 7'],
  },
  'a fence column that an INSERT fills with the token of another guard': {
    code: 'fence-default-missing',
    severity: 'warning',
    object: 'public.accounts',
    breaks: [
      `alter table accounts alter fence_token
         set default coalesce(nullif(current_setting('${tokenSetting('other')}', true), ''), '0')::bigint`,
    ],
  },
  'a rule that leads writes elsewhere': {
    code: 'rule-on-protected-table',
    severity: 'warning',
    object: 'public.accounts',
    breaks: ['create rule "Elsewhere" as on insert to accounts do instead nothing'],
  },
  'a role that may add triggers': {
    code: 'trigger-grant',
    severity: 'warning',
    object: 'public.accounts',
    breaks: [`grant trigger on accounts to ${role}`],
  },
  'an owner that can log in': {
    code: 'owner-may-bypass',
    severity: 'note',
    object: `role ${stranger}`,
    breaks: [`alter table accounts owner to ${stranger}`],
    tidies: ['alter table accounts owner to postgres', `drop role ${stranger}_tables`],
  },
  'a member of the owner that can log in': {
    code: 'owner-may-bypass',
    severity: 'note',
    object: `role ${stranger}`,
    breaks: [`alter table accounts owner to ${role}`, `grant ${role} to ${stranger}`],
    tidies: ['alter table accounts owner to postgres'],
  },
}

test.each(Object.entries(cases))('%s is found, and the fix mends it', async (_name, one) => {
  expect(await cure(database.url, one)).toEqual([])
})

test('an owner whose sessions are open is a warning', async () => {
  await run(database.url, [`alter table accounts owner to ${stranger}`])
  const session = await database.session({ connectionString: database.urlAs(stranger, 'geheim') })
  expect(findingOf(await examineAt(database.url), 'owner-may-bypass')).toMatchObject({
    severity: 'warning',
    object: `role ${stranger}`,
  })
  await session.end()
  await run(database.url, ['alter table accounts owner to postgres'])
})

test('with a trigger missing, a write without a fence does go through', async () => {
  await run(database.url, ['create table gap (id integer)', `select fencepost.protect('gap', 'settlement')`])
  const write = 'insert into gap values (1)'
  await expect(run(database.url, [write])).rejects.toMatchObject({ code: 'FP005' })
  await run(database.url, ['drop trigger fencepost_guard on gap', write])
  await applyFix(database.url, findingOf(await examineAt(database.url), 'trigger-missing', 'public.gap')!)
  await expect(run(database.url, [write])).rejects.toMatchObject({ code: 'FP005' })
})

describe('stamps above the tokens given out', () => {
  test('are found by way of an index, in partitions, and in tables of repositories, and raise_token_floor mends it', async () => {
    await run(database.url, [
      'create table orders (id integer, fence_token bigint not null default 0)',
      'insert into orders select n, 0 from generate_series(1, 1000) n',
      'insert into orders values (0, 1000)',
      'create table many (id integer, fence_token bigint not null default 0) partition by list (id)',
      'create table many_1 partition of many for values in (1)',
      'insert into many values (1, 2000)',
      'create index on many (fence_token)',
    ])
    const report = await examineAt(database.url)
    expect(troubles(report)).toEqual([
      'stamp-above-sequence public.many_1',
      'stamp-above-sequence public.orders',
    ])
    await applyFix(database.url, findingOf(report, 'stamp-above-sequence', 'public.many_1')!)
    expect(troubles(await examineAt(database.url))).toEqual([])
    const holder = await SqlHolder.join(database.pool)
    expect(await holder.take('after')).toBe(2001n)
  })

  test('of a table guarded by a lease with a sequence of its own are compared with that one', async () => {
    const holder = await SqlHolder.join(database.pool)
    await database.query(`select * from fencepost.acquire(array['own'], $1, 1, 'small')`, [holder.id])
    await run(database.url, [
      'create table own (id integer, fence_token bigint not null default 0)',
      'insert into own values (1, 50)',
      `select fencepost.protect('own', 'own')`,
    ])
    const report = await examineAt(database.url)
    expect(troubles(report)).toEqual(['stamp-above-sequence public.own'])
    expect(findingOf(report, 'stamp-above-sequence')!.fix).toBe(
      `select fencepost.raise_token_floor('small', 50);`,
    )
    await applyFix(database.url, findingOf(report, 'stamp-above-sequence')!)
    expect(troubles(await examineAt(database.url))).toEqual([])
  })

  test('are searched for in a sample of a large table, and it is said so', async () => {
    await run(database.url, [
      'create table large (id integer, filler text, fence_token bigint not null default 0)',
      `insert into large select n, repeat('x', 500) from generate_series(1, 5000) n`,
    ])
    const report = await examineAt(database.url, { sampledBlocks: 10 })
    expect(findingOf(report, 'stamps-sampled', 'public.large')).toMatchObject({ severity: 'note' })
    expect(findingOf(await examineAt(database.url), 'stamps-sampled')).toBeUndefined()
  })
})

describe('protected schemas', () => {
  beforeAll(() =>
    run(schemas.url, ['create schema ledger', `select fencepost.protect_schema('ledger', 'deploy')`]),
  )

  const events: Record<string, Case> = {
    'an event trigger that is gone': {
      code: 'event-trigger-missing',
      severity: 'error',
      object: 'event trigger fencepost_sql_drop',
      breaks: ['drop event trigger fencepost_sql_drop'],
    },
    'an event trigger that is disabled': {
      code: 'event-trigger-disabled',
      severity: 'error',
      object: 'event trigger fencepost_ddl_command_end',
      breaks: ['alter event trigger fencepost_ddl_command_end disable'],
    },
    'an event trigger that minds some commands only': {
      code: 'event-trigger-altered',
      severity: 'error',
      object: 'event trigger fencepost_ddl_command_end',
      breaks: [
        'drop event trigger fencepost_ddl_command_end',
        `create event trigger fencepost_ddl_command_end on ddl_command_end when tag in ('CREATE TABLE')
           execute function fencepost.guard_ddl()`,
      ],
    },
    'a protected schema that is gone': {
      code: 'protected-schema-missing',
      severity: 'warning',
      object: 'schema gone',
      breaks: [
        'create schema gone',
        `select fencepost.protect_schema('gone', 'deploy')`,
        `set session_replication_role = replica; drop schema gone; reset session_replication_role`,
      ],
    },
  }
  test.each(Object.entries(events))('%s is found, and the fix mends it', async (_name, one) => {
    expect(await cure(schemas.url, one)).toEqual([])
  })
})

describe('a database that only guards data', () => {
  beforeAll(async () => {
    await Fencepost.migrate({ connectionString: fenceOnly.url, fenceOnly: true })
    await run(fenceOnly.url, [
      'create table copies (id integer primary key)',
      `select fencepost.protect('copies', 'settlement')`,
    ])
  })

  test('is healthy as it was installed', async () => {
    const report = await examineAt(fenceOnly.url)
    expect(troubles(report)).toEqual([])
    expect(findingOf(report, 'not-checked')).toBeUndefined()
  })

  test.each<[string, Case]>([
    [
      'a trigger that is gone',
      {
        code: 'trigger-missing',
        severity: 'error',
        object: 'public.copies',
        breaks: ['drop trigger fencepost_guard on copies'],
      },
    ],
    [
      'a function with another body',
      {
        code: 'function-altered',
        severity: 'error',
        object: 'fencepost.fence_key(text)',
        breaks: [
          `create or replace function fencepost.fence_key(p_name text) returns integer language sql immutable as 'select 1'`,
        ],
      },
    ],
    [
      'a stamp above what was announced',
      {
        code: 'stamp-above-sequence',
        severity: 'error',
        object: 'public.copies',
        breaks: [
          `insert into fencepost.highest_token (lease, token, holder_id) values ('settlement', 5, gen_random_uuid())`,
          'alter table copies disable trigger user',
          'insert into copies (id, fence_token) values (1, 9)',
          'alter table copies enable trigger user',
        ],
      },
    ],
    [
      'a role that lacks what an upgrade brought',
      {
        code: 'grant-incomplete',
        severity: 'warning',
        object: `role ${role}`,
        breaks: [
          `grant usage on schema fencepost to ${role}`,
          `grant execute on function fencepost.fence(text, bigint, uuid, bigint, bigint) to ${role}`,
        ],
        tidies: [`drop owned by ${role}`],
      },
    ],
  ])('%s is found, and the fix mends it', async (_name, one) => {
    expect(await cure(fenceOnly.url, one)).toEqual([])
  })
})
