import { beforeEach, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const run = (...args: string[]) => runCli(args, { url: database.url })

beforeEach(async () => {
  await database.query('drop table if exists accounts cascade; delete from fencepost.protected_table')
  await database.query('create table accounts (id integer primary key, region text not null)')
})

test('protect, protected and unprotect go round, and each may be called again', async () => {
  const protectedLine = 'protected accounts: writes need a fence of lease "settlement"\n'
  for (let time = 0; time < 2; time += 1) {
    expect(await run('protect', 'accounts', '--lease', 'settlement')).toMatchObject({
      code: 0,
      stdout: protectedLine,
      stderr: '',
    })
  }
  await expect(database.query('delete from accounts')).rejects.toMatchObject({ code: 'FP005' })
  const listed = await run('protected')
  expect(listed).toMatchObject({ code: 0, stderr: '' })
  const [head, row] = listed.stdout.trimEnd().split('\n')
  expect(head!.split(/ {2,}/)).toEqual([
    'PROTECTED',
    'LEASE',
    'COLUMN',
    'STAMPS',
    'SINCE',
    'TABLES',
    'UNGUARDED',
  ])
  expect(row!.split(/ {2,}/).slice(0, 4)).toEqual(['public.accounts', 'settlement', 'fence_token', 'inserts'])
  expect(await run('unprotect', 'accounts')).toMatchObject({
    code: 0,
    stdout: 'accounts is no longer protected\n',
  })
  expect(await run('unprotect', 'accounts')).toMatchObject({
    code: 0,
    stdout: 'nothing to do: accounts is not protected\n',
  })
  expect(await run('protected')).toMatchObject({ code: 0, stdout: 'nothing is protected yet\n' })
  await database.query('delete from accounts')
})

test('protected --json has a stable shape', async () => {
  await run('protect', 'accounts', '--lease', 'region/{region}', '--stamp', '--fence-column', 'guard')
  await run('protect', '--ddl', 'public', '--lease', 'deploy/*')
  const { stdout } = await run('protected', '--json')
  const parsed = JSON.parse(stdout) as { tables: object[]; schemas: object[] }
  expect(Object.keys(parsed.tables[0]!)).toEqual([
    'table',
    'isDropped',
    'guard',
    'fenceColumn',
    'isStamped',
    'since',
    'tables',
    'unguarded',
  ])
  expect(parsed).toMatchObject({
    tables: [
      {
        table: 'public.accounts',
        guard: 'region/{region}',
        fenceColumn: 'guard',
        isStamped: true,
        unguarded: [],
      },
    ],
    schemas: [{ schema: 'public', guard: 'deploy/*' }],
  })
  expect(await run('unprotect', '--ddl', 'public')).toMatchObject({
    code: 0,
    stdout: 'schema public is no longer protected\n',
  })
  expect(await run('unprotect', '--ddl', 'public')).toMatchObject({
    stdout: 'nothing to do: schema public is not protected\n',
  })
})

test('protect counts the partitions it guards', async () => {
  await database.query(
    'drop table if exists parted; create table parted (id integer) partition by range (id); create table parted_1 partition of parted for values from (0) to (9)',
  )
  expect(await run('protect', 'parted', '--lease', 'x')).toMatchObject({
    stdout: 'protected parted and its 1 partition: writes need a fence of lease "x"\n',
  })
  await database.query('create table parted_2 partition of parted for values from (10) to (19)')
  expect((await run('protected')).stdout).toContain('public.parted_2')
})

test('--sql prints what does the same, and asks no database', async () => {
  const { stdout, code } = await runCli(['protect', 'accounts', '--lease', "it's", '--sql'])
  expect(code).toBe(0)
  await database.query(`begin; ${stdout} commit`)
  expect((await Fencepost.protections({ connectionString: database.url })).tables).toMatchObject([
    { table: 'public.accounts', guard: "it's" },
  ])
  const undo = await runCli(['unprotect', 'accounts', '--sql'])
  await database.query(`begin; ${undo.stdout} commit`)
  expect((await runCli(['protect', '--ddl', 'public', '--lease', 'x', '--sql'])).stdout).toBe(
    "select fencepost.protect_schema('public', 'x');\n",
  )
  expect((await runCli(['unprotect', '--ddl', 'public', '--sql'])).stdout).toBe(
    "select fencepost.unprotect_schema('public');\n",
  )
})

describe('wrong usage is told before any database is asked', () => {
  test.each([
    ['no lease', ['protect', 'accounts'], /--lease/],
    ['no table and no schema', ['protect', '--lease', 'x'], /either a table or, with --ddl, a schema/],
    ['both', ['protect', 'accounts', '--ddl', 'public', '--lease', 'x'], /either a table or/],
    ['a stamp for a schema', ['protect', '--ddl', 'public', '--stamp', '--lease', 'x'], /are for tables/],
    ['an empty lease', ['protect', 'accounts', '--lease', ''], /lease must have 1 to 512 bytes/],
    ['a wait that is none', ['unprotect', 'accounts', '--wait', 'soon'], /--wait/],
    ['nothing to unprotect', ['unprotect'], /either a table or/],
  ])('%s', async (_, args, message) => {
    const result = await runCli(args, { url: 'postgres://nobody@127.0.0.1:1/none' })
    expect(result).toMatchObject({ code: 64, stdout: '' })
    expect(result.stderr).toMatch(message)
  })
})

test.each([
  ['a table that is not there', ['protect', 'nowhere', '--lease', 'x'], 1, /no table "nowhere"/],
  [
    'a view',
    ['protect', 'pg_catalog.pg_tables', '--lease', 'x'],
    1,
    /cannot be protected: it is a system table/,
  ],
  ['a guard of a column that is not there', ['protect', 'accounts', '--lease', 'a/{b}'], 1, /column "b"/],
  ['a guard with half a brace', ['protect', 'accounts', '--lease', 'a{b'], 64, /braces/],
])('protect of %s fails and says why', async (_, args, code, message) => {
  const result = await run(...args)
  expect(result).toMatchObject({ code, stdout: '' })
  expect(result.stderr).toMatch(message)
})

test('a server that cannot be reached fails with 69', async () => {
  for (const args of [['protect', 'accounts', '--lease', 'x'], ['unprotect', 'accounts'], ['protected']]) {
    expect(await runCli(args, { url: 'postgres://u:geheim@127.0.0.1:1/none' })).toMatchObject({ code: 69 })
  }
})
