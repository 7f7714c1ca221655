import { afterEach, expect, test } from 'vitest'
import { Cli, type CliResult, eventually, isGone, runCli } from '../support/cli.ts'
import { demoClientReason } from '../../src/cli/demo-clients/registry.ts'
import { demoClientNames } from '../../src/cli/demo-clients/names.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase({ migrated: false })
const lease = 'fencepost-demo'

afterEach(async () => {
  await database.query('delete from fencepost.lease')
  await database.query('delete from fencepost.holder')
})

/** The tokens that A and B were granted. */
function tokens({ stdout }: CliResult): { a: bigint; b: bigint } {
  const [a, b] = ['A', 'B'].map((name) => {
    const line = new RegExp(`  ${name}  is granted the lease, token (\\d+)`).exec(stdout)
    return BigInt(line?.[1] ?? 0)
  })
  return { a: a!, b: b! }
}

async function pidsOfWorkers(): Promise<number[]> {
  const rows = await database.query<{ pid: number }>('select pid from fencepost.holder order by joined_at')
  return rows.map((row) => row.pid)
}

test("the demo exits 0: the stale write is refused, and the table holds B's value under B's token", async () => {
  const result = await runCli(['demo', '--database-url', database.url])
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const { a, b } = tokens(result)
  expect(a).toBeGreaterThan(0n)
  expect(b).toBeGreaterThan(a)
  expect(result.stdout).toContain(
    `A  is refused by the database: the write under lease "${lease}" with token ${a} was refused: the term is stale; ` +
      `the current token is ${b}.`,
  )
  expect(result.stdout).toContain('A  its signal has aborted')
  expect(result.stdout).toContain(`the account holds 20, stamped ${b}\n`)
  expect(result.stdout).toContain('right: 100 − 30 − 50 = 20.')
  expect(await database.query(`select to_regclass('fencepost_demo') as left_over`)).toEqual([
    { left_over: null },
  ])
  expect(await database.query(`select name from fencepost.leases where state = 'held'`)).toEqual([])
  expect((await pidsOfWorkers()).every(isGone)).toBe(true)
})

test('without the fence the demo exits 1: the stale write lands', async () => {
  const result = await runCli(['demo', '--unfenced', '--database-url', database.url])
  expect(result).toMatchObject({ code: 1, stderr: '' })
  const { a, b } = tokens(result)
  expect(b).toBeGreaterThan(a)
  expect(result.stdout).toContain('A  writes 50')
  expect(result.stdout).toContain(`the account holds 50, stamped ${a}\n`)
  expect(result.stdout).toContain("WRONG: 100 − 30 − 50 = 20, and B's 50 have vanished.")
  expect(result.stdout).not.toContain('refused')
})

const cases = await Promise.all(
  demoClientNames.map(async (client) => {
    // A package of npm is never missing here.
    const isProgram = ['psql', 'psycopg', 'dbd-pg'].includes(client)
    const reason = isProgram ? await demoClientReason(client) : undefined
    return { client, reason, title: reason === undefined ? client : `${client} (skipped: ${reason})` }
  }),
)

test.for(cases)('the demo exits 0 with $title, on protected tables', async ({ client, reason }, { skip }) => {
  skip(reason !== undefined, reason)
  const result = await runCli(['demo', '--client', client, '--database-url', database.url])
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const { a, b } = tokens(result)
  expect(result.stdout).toContain(`with the fence, written with ${client}; the tables are protected`)
  expect(result.stdout).toContain(
    `A  is refused by the database: the write under lease "${lease}" with token ${a} was refused: the term is stale; ` +
      `the current token is ${b}.`,
  )
  expect(result.stdout).toContain(`the account holds 20, stamped ${b}\n`)
  expect(result.stdout).toContain('its book says 70, 20\n')
  expect(result.stdout).toContain('right: 100 − 30 − 50 = 20.')
})

test.for(cases.filter(({ client }) => ['prisma', 'psql'].includes(client)))(
  'without the fence the demo exits 1 with $title',
  async ({ client, reason }, { skip }) => {
    skip(reason !== undefined, reason)
    const result = await runCli(['demo', '--client', client, '--unfenced', '--database-url', database.url])
    expect(result).toMatchObject({ code: 1, stderr: '' })
    expect(result.stdout).toContain(`WITHOUT the fence (--unfenced), written with ${client}\n`)
    expect(result.stdout).toContain('its book says 70, 20, 50\n')
    expect(result.stdout).toContain("WRONG: 100 − 30 − 50 = 20, and B's 50 have vanished.")
    expect(result.stdout).not.toContain('refused')
  },
)

test('a client that the demo does not know is wrong usage, and the message names those that it knows', async () => {
  const result = await runCli(['demo', '--client', 'sequelize', '--database-url', database.url])
  expect(result.code).toBe(64)
  expect(result.stderr).toContain(`Allowed choices are ${demoClientNames.join(', ')}.`)
})

test.each([
  ['knex', 'it is not installed: npm install knex'],
  ['prisma', 'it is not installed: npm install prisma @prisma/client @prisma/adapter-pg'],
] as const)('a client whose package is missing is wrong usage: %s', async (client, reason) => {
  const hide = `import { registerHooks } from 'node:module'
    registerHooks({ resolve(name, context, next) {
      if (/^(knex|@prisma)/.test(name)) throw Object.assign(new Error(name), { code: 'ERR_MODULE_NOT_FOUND' })
      return next(name, context)
    } })`
  const env = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(hide)}` }
  const result = await runCli(['demo', '--client', client, '--database-url', database.url], { env })
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toBe(`fencepost: the demo cannot write with ${client}: ${reason}\n`)
})

test('a client whose program is missing is wrong usage', async () => {
  const result = await runCli(['demo', '--client', 'psql', '--database-url', database.url], {
    env: { PATH: '' },
  })
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toContain('the program psql is not installed')
})

test('the demo cannot be shown on a server that cannot be reached', async () => {
  const result = await runCli(['demo', '--database-url', 'postgres://u:geheim@127.0.0.1:1/none'])
  expect(result.code).toBe(69)
  expect(result.stdout + result.stderr).not.toContain('geheim')
})

test('a demo that is ended by a signal leaves no stopped process behind', async () => {
  const cli = new Cli(['demo', '--database-url', database.url])
  await cli.says('is stopped (SIGSTOP)')
  const pids = await pidsOfWorkers()
  expect(pids.map(isGone)).toEqual([false])
  cli.signal('SIGTERM')
  expect(await cli.closed).toMatchObject({ code: 143, signal: null })
  await eventually(() => pids.every(isGone))
  expect(pids.map(isGone)).toEqual([true])
})

test('the processes of a killed demo end by themselves', async () => {
  const cli = new Cli(['demo', '--database-url', database.url])
  await cli.says('is stopped (SIGSTOP)')
  const [stopped] = await pidsOfWorkers()
  await eventually(async () => (await pidsOfWorkers()).length === 2)
  cli.signal('SIGKILL')
  process.kill(stopped!, 'SIGCONT')
  const pids = await pidsOfWorkers()
  await eventually(() => pids.every(isGone))
  expect(pids.map(isGone)).toEqual([true, true])
})
