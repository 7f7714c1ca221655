import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { runCli } from '../support/cli.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'

const database = useDatabase({ migrated: false })
const other = useDatabase({ migrated: false })
const role = `app_${randomBytes(4).toString('hex')}`

beforeAll(() => database.query(`create role ${role} login password 'geheim'`))
afterAll(async () => {
  await database.query(`drop owned by ${role}`)
  await database.query(`drop role ${role}`)
})

async function hasSchema(of: TestDatabase): Promise<boolean> {
  const [row] = await of.query<{ found: boolean }>(
    `select to_regclass('fencepost.lease') is not null as found`,
  )
  return row!.found
}

test('a role without rights cannot migrate: 69, and it is told what to do', async () => {
  const result = await runCli(['migrate'], { url: database.urlAs(role, 'geheim') })
  expect(result).toMatchObject({ code: 69, stdout: '' })
  expect(result.stderr).toContain('--grant-to')
  expect(await hasSchema(database)).toBe(false)
})

test('migrate installs the schema, and nothing when it is called again', async () => {
  expect(await runCli(['migrate'], { url: database.url })).toMatchObject({
    code: 0,
    stdout: [
      'applied 0001_leases_and_fence',
      'applied 0002_hold_term',
      'applied 0003_protected_tables',
      'applied 0004_resources',
      'applied 0005_acquire_all',
      'applied 0006_waiting',
      'applied 0007_operators',
      'applied 0008_plain_path',
      'applied 0009_cheaper_fence',
      'applied 0010_faster_hand_over',
      'applied 0011_clock_sequence',
      '',
    ].join('\n'),
    stderr: '',
  })
  expect(await hasSchema(database)).toBe(true)
  const again = await runCli(['migrate'], { url: database.url })
  expect(again).toMatchObject({ code: 0, stderr: '' })
  expect(again.stdout).toMatch(/^nothing to do: the schema has version \d+\n$/)
})

test('a role may use leases after --grant-to, and not before', async () => {
  const url = database.urlAs(role, 'geheim')
  const refused = await runCli(['run', 'job', '--', 'true'], { url })
  expect(refused).toMatchObject({ code: 69, stdout: '' })
  expect(refused.stderr).toContain('--grant-to')
  expect(await runCli(['migrate', '--grant-to', role], { url: database.url })).toMatchObject({ code: 0 })
  expect(await runCli(['run', 'job', '--', 'true'], { url })).toMatchObject({ code: 0, stderr: '' })
  expect(await runCli(['ls', '--json'], { url })).toMatchObject({ code: 0, stderr: '' })
})

test('--grant-to a role that does not exist fails, and installs nothing', async () => {
  const result = await runCli(['migrate', '--grant-to', 'no_such_role'], { url: other.url })
  expect(result).toMatchObject({ code: 1, stdout: '' })
  expect(result.stderr).toContain('Create the role first')
  expect(await hasSchema(other)).toBe(false)
})

test('--down removes the newest migration, and tokens go on rising after the next installation', async () => {
  const token = async (): Promise<bigint> => {
    const { stdout } = await runCli(['run', 'job', '--', 'printenv', 'FENCEPOST_TOKEN'], {
      url: database.url,
    })
    return BigInt(stdout.trim())
  }
  const before = await token()
  for (const name of [
    '0011_clock_sequence',
    '0010_faster_hand_over',
    '0009_cheaper_fence',
    '0008_plain_path',
    '0007_operators',
    '0006_waiting',
    '0005_acquire_all',
    '0004_resources',
    '0003_protected_tables',
    '0002_hold_term',
    '0001_leases_and_fence',
  ]) {
    expect(await runCli(['migrate', '--down'], { url: database.url })).toMatchObject({
      code: 0,
      stdout: `removed ${name}\n`,
      stderr: '',
    })
  }
  expect(await hasSchema(database)).toBe(false)
  expect(await runCli(['migrate', '--down'], { url: database.url })).toMatchObject({
    code: 0,
    stdout: 'nothing to do: the schema has version 0\n',
  })
  await runCli(['migrate'], { url: database.url })
  expect(await token()).toBeGreaterThan(before)
})

test('migrate without a database is wrong usage that names --database-url and --local', async () => {
  const result = await runCli(['migrate'])
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toMatch(/--database-url.*--local/)
})

test('migrate of a server that cannot be reached fails with 69', async () => {
  const result = await runCli(['migrate'], { url: 'postgres://u:geheim@127.0.0.1:1/none' })
  expect(result).toMatchObject({ code: 69, stdout: '' })
})
