import { hostname } from 'node:os'
import { beforeAll, expect, test, vi } from 'vitest'
import { fencedTransaction } from '../../src/index.ts'
import { Cli, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const unused = useDatabase()
const empty = useDatabase({ migrated: false })

/** Greater than a JSON number holds exactly. */
const firstToken = 2n ** 53n + 1n

const keys = [
  'name',
  'token',
  'state',
  'holder',
  'host',
  'pid',
  'since',
  'remainingMs',
  'sequence',
  'waiters',
]

/** One lease in each state, draining, expired, free, held, withheld; and somebody who waits for the held one. */
beforeAll(async () => {
  await database.query('select fencepost.raise_token_floor($1, $2)', [
    'default',
    (firstToken - 1n).toString(),
  ])
  const lasting = await database.open({ ttl: '1h', label: 'worker-1' })
  const ended = await database.open({ ttl: '1h', label: 'worker-2' })
  const draining = await ended.acquire('draining')
  await ended.acquire('expired')
  const session = await database.session()
  await session.query('begin')
  await draining.fence(session)
  await database.query(`update fencepost.holder set expires_at = clock_timestamp() where label = 'worker-2'`)
  const freed = await lasting.acquire('free')
  await freed.release()
  await lasting.acquire('held')
  await (await lasting.acquire('withheld', { minHold: '1h' })).release()
  const waiting = await database.open({ ttl: '1h', label: 'worker-3' })
  waiting.acquire('held').catch(() => {})
  await vi.waitUntil(async () => (await database.query('select from fencepost.waiter')).length === 1)
})

test('ls --json is an array of ten keys each, with tokens as strings', async () => {
  const before = Date.now()
  const result = await runCli(['ls', '--json'], { url: database.url })
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const leases = JSON.parse(result.stdout) as Record<string, unknown>[]
  for (const lease of leases) expect(Object.keys(lease)).toEqual(keys)
  const gone = {
    holder: 'worker-2',
    host: hostname(),
    pid: process.pid,
    remainingMs: null,
    sequence: 'default',
  }
  expect(leases).toMatchObject([
    { name: 'draining', token: `${firstToken}`, state: 'draining', ...gone },
    { name: 'expired', token: `${firstToken + 1n}`, state: 'expired', ...gone },
    {
      name: 'free',
      token: `${firstToken + 2n}`,
      state: 'free',
      holder: null,
      host: null,
      pid: null,
      since: null,
      remainingMs: null,
      sequence: 'default',
    },
    {
      name: 'held',
      token: `${firstToken + 3n}`,
      state: 'held',
      holder: 'worker-1',
      host: hostname(),
      pid: process.pid,
      waiters: [{ holder: 'worker-3', host: hostname(), pid: process.pid }],
    },
    { name: 'withheld', token: `${firstToken + 4n}`, state: 'withheld', holder: null, waiters: [] },
  ])
  const held = leases[3]!
  expect(new Date(held['since'] as string).toISOString()).toBe(held['since'])
  expect(Math.abs(Date.parse(held['since'] as string) - before)).toBeLessThan(60_000)
  expect(held['remainingMs']).toBeGreaterThan(3_000_000)
  expect(held['remainingMs']).toBeLessThanOrEqual(3_600_000)
  expect(leases[4]!['remainingMs']).toBeGreaterThan(3_000_000)
  const [waiter] = held['waiters'] as { since: string }[]
  expect(Date.parse(waiter!.since)).toBeGreaterThanOrEqual(Date.parse(held['since'] as string))
})

test('ls prints a table for people', async () => {
  const result = await runCli(['ls'], { url: database.url })
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const lines = result.stdout.trimEnd().split('\n')
  const cells = lines.map((line) => line.split(/ {2,}/))
  expect(cells[0]).toEqual(['LEASE', 'TOKEN', 'STATE', 'HOLDER', 'SINCE', 'EXPIRES IN'])
  const shown = lines.slice(1).map((line) => line.replaceAll(/ {2,}/g, ' '))
  const begins = [
    `draining ${firstToken} draining worker-2`,
    `expired ${firstToken + 1n} expired worker-2`,
    `free ${firstToken + 2n} free`,
    `held ${firstToken + 3n} held worker-1`,
    'held waiting worker-3',
    `withheld ${firstToken + 4n} withheld`,
  ]
  expect(shown.map((line, index) => line.slice(0, begins[index]?.length))).toEqual(begins)
  expect(cells[4]!.at(-1)).toMatch(/^\d+(\.\d+)?(ms|s|m|h)$/)
  expect(result.stdout).not.toMatch(/[ \t]+\n/)
})

test('ls never shows the id of a holder, which is its secret', async () => {
  const holders = await database.query<{ id: string }>('select id from fencepost.holder')
  expect(holders.length).toBeGreaterThan(0)
  for (const args of [['ls'], ['ls', '--json']]) {
    const { stdout } = await runCli(args, { url: database.url })
    for (const { id } of holders) expect(stdout).not.toContain(id)
  }
})

test('ls of a database without leases says so, and --json is an empty array', async () => {
  expect(await runCli(['ls'], { url: unused.url })).toMatchObject({ code: 0, stdout: 'no leases yet\n' })
  expect(await runCli(['ls', '--json'], { url: unused.url })).toMatchObject({ code: 0, stdout: '[]\n' })
})

test('ls of a database without the schema fails with 69 and prints no table', async () => {
  const result = await runCli(['ls', '--json'], { url: empty.url })
  expect(result).toMatchObject({ code: 69, stdout: '' })
  expect(result.stderr).toContain('Run "fencepost migrate"')
})

test('ls takes the URL of the option before that of the environment', async () => {
  const result = await runCli(['ls', '--database-url', unused.url], { url: database.url })
  expect(result.stdout).toBe('no leases yet\n')
})

test('ls without a reader ends without a stack trace', async () => {
  const cli = new Cli(['ls'], { url: database.url })
  cli.hangUp('stdout')
  expect(await cli.closed).toMatchObject({ signal: null, stderr: '' })
})

test.for([
  ['--state held,draining', ['--state', 'held,draining'], ['draining', 'held']],
  ['a pattern', ['*e?d*'], ['held', 'withheld']],
  ['a pattern without a star is the whole name', ['free'], ['free']],
  ['--prefix', ['--prefix', 'f'], ['free']],
  ['--holder, in part and in any case', ['--holder', 'WORKER-1'], ['held']],
  ['--holder, by its process id', ['--holder', String(process.pid), '--state', 'held'], ['held']],
  ['all of them together', ['*d', '--prefix', 'w', '--state', 'withheld'], ['withheld']],
  ['--sort token', ['--sort', 'token', '--state', 'held,free,withheld'], ['free', 'held', 'withheld']],
  [
    '--sort since, with those that nobody holds last',
    ['--sort', 'since'],
    ['draining', 'expired', 'held', 'free', 'withheld'],
  ],
  ['nothing', ['no-such-*'], []],
] as const)('ls picks and sorts by %s', async ([, args, names]) => {
  const result = await runCli(['ls', ...args, '--json'], { url: database.url })
  expect(result).toMatchObject({ code: 0, stderr: '' })
  expect((JSON.parse(result.stdout) as { name: string }[]).map(({ name }) => name)).toEqual(names)
})

test('ls says when nothing matches', async () => {
  const result = await runCli(['ls', 'no-such-*'], { url: database.url })
  expect(result).toMatchObject({ code: 0, stdout: 'none of 5 leases matches\n' })
})

test('ls refuses a state and an order that it does not know', async () => {
  for (const args of [
    ['--state', 'held,lost'],
    ['--sort', 'age'],
    ['--sort', 'constructor'],
  ]) {
    expect(await runCli(['ls', ...args], { url: database.url })).toMatchObject({ code: 64, stdout: '' })
  }
})

test('the term of a draining lease is still fenced, so ls tells the truth', async () => {
  const taker = await database.open()
  expect(await taker.tryAcquire('draining')).toBeNull()
  const lease = await taker.acquire('expired')
  const written = await fencedTransaction(lease, database.pool, async () => 'written')
  expect(written).toBe('written')
  await lease.release()
})
