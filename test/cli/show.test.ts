import { hostname } from 'node:os'
import { expect, test, vi } from 'vitest'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const show = (...args: string[]) => runCli(['show', ...args], { url: database.url })

test('show --json has the shape of ls and three keys more, with tokens as strings', async () => {
  await database.query('select fencepost.raise_token_floor($1, $2)', ['default', (2n ** 53n).toString()])
  const holding = await database.open({ ttl: '1h', label: 'runner-7' })
  const waiting = await database.open({ ttl: '1h', label: 'runner-8' })
  const first = await holding.acquire('deploy')
  await holding.forceRelease('deploy', first.token, { reason: 'it hung' })
  const lease = await holding.acquire('deploy')
  const session = await database.session({ application_name: 'the app' })
  await session.query('begin')
  await lease.fence(session)
  const { rows } = await session.query<{ pid: number; role: string }>(
    'select pg_backend_pid() as pid, current_user::text as role',
  )
  waiting.acquire('deploy').catch(() => {})
  await vi.waitUntil(async () => (await database.query('select from fencepost.waiter')).length === 1)

  const result = await show('deploy', '--json')
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/) as string
  expect(JSON.parse(result.stdout)).toEqual({
    name: 'deploy',
    token: lease.token.toString(),
    state: 'held',
    holder: 'runner-7',
    host: hostname(),
    pid: process.pid,
    since: time,
    remainingMs: expect.any(Number) as number,
    sequence: 'default',
    sequenceKind: 'counter',
    waiters: [{ holder: 'runner-8', host: hostname(), pid: process.pid, since: time }],
    transactions: [
      {
        pid: rows[0]!.pid,
        state: 'idle in transaction',
        role: rows[0]!.role,
        application: 'the app',
        since: time,
        ageMs: expect.any(Number) as number,
      },
    ],
    forcedReleases: [
      {
        token: first.token.toString(),
        holder: 'runner-7',
        host: hostname(),
        pid: process.pid,
        reason: 'it hung',
        at: time,
        by: rows[0]!.role,
        cancelled: [],
      },
    ],
  })

  const text = await show('deploy')
  expect(text).toMatchObject({ code: 0, stderr: '' })
  for (const line of [
    /^lease +deploy$/m,
    /^state +held$/m,
    new RegExp(`^token +${lease.token}$`, 'm'),
    new RegExp(`^holder +runner-7 \\(pid ${process.pid} on ${hostname()}\\)$`, 'm'),
    /^ +1 +runner-8 /m,
    new RegExp(`^ +${rows[0]!.pid} +idle in transaction +[\\d.]+s +the app +`, 'm'),
    /it hung$/m,
  ]) {
    expect(text.stdout).toMatch(line)
  }
  const [{ id } = { id: '' }] = await database.query<{ id: string }>(
    `select id::text from fencepost.holder where label = 'runner-7'`,
  )
  expect(text.stdout + result.stdout).not.toContain(id)
  await session.query('commit')
})

test('show of a lease that nobody holds tells its last token', async () => {
  const fencepost = await database.open()
  const lease = await fencepost.acquire('free')
  await lease.release()
  const result = await show('free')
  expect(result).toMatchObject({ code: 0, stderr: '' })
  expect(result.stdout).toContain(`${lease.token} (of the last term)`)
  expect(JSON.parse((await show('free', '--json')).stdout)).toMatchObject({
    state: 'free',
    holder: null,
    waiters: [],
    transactions: [],
    forcedReleases: [],
  })
})

test('show of an unknown lease exits with 3 and prints nothing on standard output', async () => {
  const result = await show('no such lease', '--json')
  expect(result).toMatchObject({ code: 3, stdout: '' })
  expect(result.stderr).toContain('"no such lease" is unknown')
})

test('show without a lease, or of a name that cannot be one, is wrong usage', async () => {
  expect(await show()).toMatchObject({ code: 64, stdout: '' })
  expect(await show('')).toMatchObject({ code: 64, stdout: '' })
})

test('show without a database that answers fails with 69', async () => {
  const result = await runCli(['show', 'x'], { url: 'postgres://u:geheim@127.0.0.1:1/none' })
  expect(result).toMatchObject({ code: 69, stdout: '' })
})
