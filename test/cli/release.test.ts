import { hostname } from 'node:os'
import { expect, test, vi } from 'vitest'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { Terminal, hasTerminal } from '../support/terminal.ts'

const database = useDatabase()
const release = (...args: string[]) => runCli(['release', ...args], { url: database.url })

const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/) as string

test('release takes the lease away: 0, the next in line has it, and the old holder’s write is refused', async () => {
  const old = await database.open({ label: 'old' })
  const next = await database.open({ label: 'next' })
  const lease = await old.acquire('deploy')
  const waiting = next.acquire('deploy')
  await vi.waitUntil(async () => (await database.query('select from fencepost.waiter')).length === 1)
  const result = await release('deploy', '--token', String(lease.token), '--reason', 'it hangs', '--json')
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const granted = await waiting
  expect(JSON.parse(result.stdout)).toEqual({
    outcome: 'released',
    lease: 'deploy',
    token: lease.token.toString(),
    holder: 'old',
    host: hostname(),
    pid: process.pid,
    since: time,
    next: { token: granted.token.toString(), holder: 'next' },
    cancelled: [],
  })
  await expect(lease.transaction(database.pool, async () => {})).rejects.toMatchObject({ code: 'STALE_TERM' })

  const text = await release('deploy', '--token', String(granted.token), '--reason', 'it hangs too')
  expect(text).toMatchObject({ code: 0, stderr: '' })
  expect(text.stdout).toMatch(
    /^released lease "deploy" \(token \d+\) from next \(pid .*Nobody was waiting for it\.\n$/,
  )
})

test('release with a wrong token exits with 3, changes nothing and tells the current one', async () => {
  const fencepost = await database.open({ label: 'safe' })
  const lease = await fencepost.acquire('safe')
  const wrong = String(lease.token - 1n)
  const result = await release('safe', '--token', wrong, '--reason', 'a slip', '--json')
  expect(result.code).toBe(3)
  expect(JSON.parse(result.stdout)).toMatchObject({
    outcome: 'wrong-token',
    lease: 'safe',
    token: lease.token.toString(),
    holder: 'safe',
    next: null,
    cancelled: [],
  })
  expect(result.stderr).toContain(`has token ${lease.token} now`)
  expect(await release('safe', '--token', wrong, '--reason', 'a slip')).toMatchObject({ code: 3, stdout: '' })
  await lease.transaction(database.pool, async () => {})
  expect(await lease.release()).toBe('released')
})

test('release of a lease that nobody holds, or that is unknown, exits with 3', async () => {
  const fencepost = await database.open()
  const lease = await fencepost.acquire('over')
  await lease.release()
  const over = await release('over', '--token', String(lease.token), '--reason', 'late', '--json')
  expect(over.code).toBe(3)
  expect(JSON.parse(over.stdout)).toMatchObject({
    outcome: 'not-held',
    token: lease.token.toString(),
    holder: null,
  })
  const unknown = await release('unknown', '--token', '1', '--reason', 'late', '--json')
  expect(unknown.code).toBe(3)
  expect(JSON.parse(unknown.stdout)).toMatchObject({ outcome: 'not-held', token: null, since: null })
})

test('release exits with 75 while a fenced transaction is open; --cancel ends it', async () => {
  const holder = await SqlHolder.join(database.pool)
  const token = await holder.take('busy')
  const session = await database.session()
  await session.query('begin')
  await holder.fence(session, 'busy', token)
  const { rows } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
  const args = ['busy', '--token', String(token), '--reason', 'it is stuck', '--json']
  const kept = await release(...args, '--wait', '100ms')
  expect(kept.code).toBe(75)
  expect(JSON.parse(kept.stdout)).toMatchObject({
    outcome: 'draining',
    token: token.toString(),
    cancelled: [],
  })
  expect(kept.stderr).toContain('--cancel')
  await session.query('select 1')
  const result = await release(...args, '--cancel')
  expect(result).toMatchObject({ code: 0, stderr: '' })
  expect(JSON.parse(result.stdout)).toMatchObject({ outcome: 'released', cancelled: [rows[0]!.pid] })
  await expect(session.query('commit')).rejects.toThrow()
})

test.for([
  ['no token', ['job', '--reason', 'x'], '--token'],
  ['no reason', ['job', '--token', '1'], '--reason'],
  ['an empty reason', ['job', '--token', '1', '--reason', ' '], 'reason'],
  ['a token that is no number', ['job', '--token', '-1', '--reason', 'x'], '--token'],
  ['a token that is too large', ['job', '--token', '9223372036854775808', '--reason', 'x'], 'token'],
  ['a wait without a unit', ['job', '--token', '1', '--reason', 'x', '--wait', '5'], '--wait'],
] as const)('%s is wrong usage: 64', async ([, args, hint]) => {
  const result = await release(...args)
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toContain(hint)
})

test.skipIf(!hasTerminal)('a release that waits shows so on a terminal, and is quiet in a pipe', async () => {
  const holder = await SqlHolder.join(database.pool)
  const token = await holder.take('slow')
  const session = await database.session()
  await session.query('begin')
  await holder.fence(session, 'slow', token)
  const args = ['release', 'slow', '--token', String(token), '--reason', 'x', '--wait', '2m']
  const terminal = new Terminal(args, { columns: 100, rows: 20 }, database.url)
  await vi.waitUntil(() => terminal.shown.includes('waiting for open fenced transactions … 1 s'), {
    timeout: 20_000,
  })
  await session.query('commit')
  expect(await terminal.closed).toBe(0)
  expect(terminal.shown).toContain('released lease "slow"')
})
