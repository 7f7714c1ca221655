import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const unused = useDatabase()
const run = (...args: string[]) => runCli(args, { url: database.url })
const role = `app_${randomBytes(4).toString('hex')}`

beforeAll(async () => {
  await database.query(`create role ${role} login password 'geheim'`)
  await Fencepost.migrate({ connectionString: database.url, grantTo: [role] })
})
afterAll(async () => {
  await database.query(`drop owned by ${role}; drop role ${role}`)
})

test('holders --json is an array of ten keys each, without the id, which is a secret', async () => {
  const fencepost = await database.open({ ttl: '1m', label: 'worker-1', meta: { build: 7 } })
  await fencepost.acquireMany(['a', 'b'])
  const result = await run('holders', '--json')
  expect(result).toMatchObject({ code: 0, stderr: '' })
  expect(JSON.parse(result.stdout)).toEqual([
    {
      holder: 'worker-1',
      host: hostname(),
      pid: process.pid,
      meta: { build: 7 },
      state: 'alive',
      ttlMs: 60_000,
      since: expect.stringMatching(/Z$/) as string,
      remainingMs: expect.any(Number) as number,
      leases: 2,
      waits: 0,
    },
  ])
  const text = await run('holders')
  const [head, row] = text.stdout.trimEnd().split('\n')
  expect(head!.split(/ {2,}/)).toEqual([
    'HOLDER',
    'HOST',
    'PID',
    'STATE',
    'TTL',
    'SINCE',
    'EXPIRES IN',
    'LEASES',
    'WAITS',
  ])
  expect(row).toMatch(/^worker-1 .* alive +60\.0s .* 2 +0$/)
  const [{ id } = { id: '' }] = await database.query<{ id: string }>('select id::text from fencepost.holder')
  expect(result.stdout + text.stdout).not.toContain(id)
})

test('holders of a database that nobody uses says so', async () => {
  expect(await runCli(['holders'], { url: unused.url })).toMatchObject({ code: 0, stdout: 'no holders\n' })
  expect(await runCli(['holders', '--json'], { url: unused.url })).toMatchObject({ code: 0, stdout: '[]\n' })
})

test('raise-tokens lifts the next token, and never lowers it', async () => {
  const above = (2n ** 53n + 1n).toString()
  const raised = await run('raise-tokens', '--above', above, '--sequence', 's')
  expect(raised).toMatchObject({ code: 0, stderr: '' })
  expect(raised.stdout).toBe(`sequence "s": every token from now on is greater than ${above}\n`)
  const again = await run('raise-tokens', '--above', '5', '--sequence', 's', '--json')
  expect(JSON.parse(again.stdout)).toEqual({ sequence: 's', lastToken: above })
  const fencepost = await database.open()
  expect((await fencepost.acquire('raised', { sequence: 's' })).token).toBe(BigInt(above) + 1n)
})

test('raise-tokens to what is no token is wrong usage', async () => {
  for (const above of ['-1', '1e3', '4611686018427387905', '9223372036854775808', 'max']) {
    expect(await run('raise-tokens', '--above', above)).toMatchObject({ code: 64, stdout: '' })
  }
  expect(await run('raise-tokens')).toMatchObject({ code: 64, stdout: '' })
})

test('purge forgets what is old enough and tells how much, and nothing on standard error in a pipe', async () => {
  await database.query(
    `insert into fencepost.lease (name, token, granted_at) select 'bulk/' || i, i, now() - interval '9 days' from generate_series(1, 10001) i`,
  )
  expect(await run('purge', '--older-than', '8d', '--json')).toMatchObject({
    code: 0,
    stdout: '{\n  "forgotten": 10001\n}\n',
    stderr: '',
  })
  expect(await run('purge', '--older-than', '8d')).toMatchObject({
    code: 0,
    stdout: 'forgot 0 leases that nobody has held for 8d\n',
    stderr: '',
  })
})

test('purge without an age, or one that is no duration, is wrong usage and forgets nothing', async () => {
  for (const args of [[], ['--older-than', '8'], ['--older-than', '-1d']]) {
    expect(await run('purge', ...args)).toMatchObject({ code: 64, stdout: '' })
  }
})

test('an application’s role is refused with 69 and told which right is missing', async () => {
  const url = database.urlAs(role, 'geheim')
  for (const args of [
    ['purge', '--older-than', '1d'],
    ['raise-tokens', '--above', '1'],
    ['release', 'a', '--token', '1', '--reason', 'x'],
  ]) {
    const result = await runCli(args, { url })
    expect(result).toMatchObject({ code: 69, stdout: '' })
    expect(result.stderr).toContain('grant execute on function fencepost.')
  }
  for (const args of [['holders'], ['show', 'a'], ['ls', 'a']]) {
    expect(await runCli(args, { url })).toMatchObject({ code: 0, stderr: '' })
  }
})
