import { afterEach, expect, test } from 'vitest'
import { Cli, type CliResult, eventually, isGone, runCli } from '../support/cli.ts'
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
