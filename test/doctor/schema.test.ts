import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { type Case, applyFix, examineAt, cure, findingOf, run, troubles } from './patient.ts'

const database = useDatabase()
const empty = useDatabase({ migrated: false })
const older = useDatabase()
const poor = useDatabase()
const role = `doctor_${randomBytes(4).toString('hex')}`

beforeAll(() => database.query(`create role ${role}`))
afterAll(async () => {
  await database.query(`drop owned by ${role}`)
  await database.query(`drop role ${role}`)
})

const fenceArguments = 'text, bigint, uuid, bigint, bigint'
const cases: Record<string, Case> = {
  'a function with another body': {
    code: 'function-altered',
    severity: 'error',
    object: 'fencepost.be_certain()',
    breaks: [
      `create or replace function fencepost.be_certain() returns void language plpgsql as 'begin end'`,
    ],
  },
  'the fence with the rights of its caller': {
    code: 'function-altered',
    severity: 'error',
    object: `fencepost.fence(${fenceArguments})`,
    breaks: [`alter function fencepost.fence(${fenceArguments}) security invoker`],
  },
  'a function that looks names up where its caller says': {
    code: 'function-altered',
    severity: 'error',
    object: 'fencepost.beat(uuid)',
    breaks: ['alter function fencepost.beat(uuid) reset search_path'],
  },
  'a function that is evaluated once and for all': {
    code: 'function-altered',
    severity: 'error',
    object: 'fencepost.is_fenced(text)',
    breaks: ['alter function fencepost.is_fenced(text) immutable'],
  },
  'a function that is gone': {
    code: 'function-missing',
    severity: 'error',
    object: 'fencepost.purge(interval)',
    breaks: ['drop function fencepost.purge(interval)'],
  },
  'a function that calls of others may mean': {
    code: 'object-unknown',
    severity: 'warning',
    object: 'fencepost.hold_term(text, integer, uuid, boolean)',
    breaks: [
      `create function fencepost.hold_term(text, integer, uuid, boolean) returns void language sql as 'select'`,
      'revoke execute on function fencepost.hold_term(text, integer, uuid, boolean) from public',
    ],
  },
  'a view that shows the wall other terms': {
    code: 'view-altered',
    severity: 'error',
    object: 'fencepost.current_term',
    breaks: [
      `create or replace view fencepost.current_term as
       select l.name, l.token + 0 as token, l.holder_id from fencepost.lease l where true`,
    ],
  },
  'a table of somebody else': {
    code: 'object-unknown',
    severity: 'warning',
    object: 'fencepost.stray',
    breaks: ['create table fencepost.stray (id integer)'],
    tidies: ['drop table public.stray'],
  },
  'a table with another owner': {
    code: 'foreign-owner',
    severity: 'error',
    object: 'fencepost.lease',
    breaks: [`alter table fencepost.lease owner to ${role}`],
  },
  'a function with another owner': {
    code: 'foreign-owner',
    severity: 'error',
    object: `fencepost.beat(uuid)`,
    breaks: [`alter function fencepost.beat(uuid) owner to ${role}`],
  },
  'the schema with another owner': {
    code: 'foreign-owner',
    severity: 'error',
    object: 'schema fencepost',
    breaks: [`alter schema fencepost owner to ${role}`],
  },
  'CREATE on the schema for everybody': {
    code: 'create-granted',
    severity: 'error',
    object: 'role public',
    breaks: ['grant create on schema fencepost to public'],
  },
  'EXECUTE for everybody': {
    code: 'public-execute',
    severity: 'warning',
    object: 'schema fencepost',
    breaks: ['grant execute on function fencepost.raise_token_floor(text, bigint) to public'],
  },
  'a role that lacks what an upgrade brought': {
    code: 'grant-incomplete',
    severity: 'warning',
    object: `role ${role}`,
    breaks: [
      `grant usage on schema fencepost to ${role}`,
      `grant execute on all functions in schema fencepost to ${role}`,
      `revoke execute on function fencepost.announce(text, bigint, uuid, bigint) from ${role}`,
    ],
  },
  'a role that may write leases': {
    code: 'table-writable',
    severity: 'warning',
    object: 'fencepost.lease',
    breaks: [`grant update on fencepost.lease to ${role}`],
  },
  'a role that may read the ids of holders': {
    code: 'holder-id-readable',
    severity: 'note',
    object: 'fencepost.holder',
    breaks: [`grant select on fencepost.holder to ${role}`],
  },
  'a role that may write leases by way of a view': {
    code: 'table-writable',
    severity: 'warning',
    object: 'fencepost.current_term',
    breaks: [`grant update on fencepost.current_term to ${role}`],
  },
  'a role that may read the ids of holders by way of a view': {
    code: 'holder-id-readable',
    severity: 'note',
    object: 'fencepost.current_term',
    breaks: [`grant select on fencepost.current_term to ${role}`],
  },
  'a trigger on the leases': {
    code: 'trigger-planted',
    severity: 'error',
    object: 'fencepost.lease',
    breaks: [
      `create trigger planted before update on fencepost.lease for each row
       execute function suppress_redundant_updates_trigger()`,
    ],
  },
  'a rule on the holders': {
    code: 'trigger-planted',
    severity: 'error',
    object: 'fencepost.holder',
    breaks: ['create rule planted as on update to fencepost.holder do instead nothing'],
  },
  'row security on the leases': {
    code: 'row-security',
    severity: 'error',
    object: 'fencepost.lease',
    breaks: [
      'alter table fencepost.lease enable row level security',
      'alter table fencepost.lease force row level security',
    ],
  },
  'a table that inherits from the leases': {
    code: 'child-planted',
    severity: 'error',
    object: 'fencepost.lease',
    breaks: ['create table public.more () inherits (fencepost.lease)'],
    tidies: ['drop table public.more'],
  },
  'leases without their key': {
    code: 'primary-key-missing',
    severity: 'error',
    object: 'fencepost.lease',
    breaks: ['alter table fencepost.lease drop constraint lease_pkey'],
  },
  'tokens that a crash forgets': {
    code: 'table-unlogged',
    severity: 'error',
    object: 'fencepost.token_sequence',
    breaks: ['alter table fencepost.token_sequence set unlogged'],
  },
}

test.each(Object.entries(cases))('%s is found, and the fix mends it', async (_name, one) => {
  expect(await cure(database.url, one)).toEqual([])
})

test('a database as it was installed has no error, no warning and nothing that could not be looked at', async () => {
  const report = await examineAt(database.url)
  expect(troubles(report)).toEqual([])
  expect(findingOf(report, 'not-checked')).toBeUndefined()
  expect(report.checked).toContain('clocks')
})

test('a database without the schema is told to migrate', async () => {
  const report = await examineAt(empty.url)
  expect(troubles(report)).toEqual(['schema-missing schema fencepost'])
  await applyFix(empty.url, findingOf(report, 'schema-missing')!)
  expect(troubles(await examineAt(empty.url))).toEqual([])
})

test('an older schema is told to migrate, and is compared with what it was', async () => {
  await Fencepost.migrate({ connectionString: older.url, direction: 'down' })
  const report = await examineAt(older.url)
  expect(troubles(report)).toContain('schema-outdated schema fencepost')
  expect(findingOf(report, 'function-altered')).toBeUndefined()
  await applyFix(older.url, findingOf(report, 'schema-outdated')!)
  expect(troubles(await examineAt(older.url))).toEqual([])
})

test('a newer schema is not compared with what this version knows', async () => {
  await run(older.url, [
    `create or replace function fencepost.schema_version() returns integer language sql immutable as 'select 99'`,
    `create or replace function fencepost.be_certain() returns void language plpgsql as 'begin end'`,
  ])
  const report = await examineAt(older.url)
  expect(troubles(report)).toEqual([])
  expect(findingOf(report, 'schema-newer')).toMatchObject({ severity: 'note' })
})

test('a table or view that is gone is found', async () => {
  await run(poor.url, ['drop view fencepost.leases', 'drop table fencepost.resource'])
  const report = await examineAt(poor.url)
  expect(troubles(report)).toEqual([
    'relation-missing fencepost.leases',
    'relation-missing fencepost.resource',
  ])
})
