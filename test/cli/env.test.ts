import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { beforeAll, expect, test } from 'vitest'
import { Client } from 'pg'
import { Fencepost } from '../../src/index.ts'
import { Cli, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { program } from '../support/main-program.ts'

const database = useDatabase()
const name = `shop 7: it's \\ "50%" $1`

beforeAll(async () => {
  await database.query('create table stock (id integer primary key, count integer not null)')
  await database.query('insert into stock values (1, 1)')
  await Fencepost.protect('stock', { connectionString: database.url, lease: name })
})

/** What a shell has in its environment after it has evaluated the output. */
async function evaluated(
  output: string,
  before: Record<string, string> = {},
): Promise<Record<string, string>> {
  const { stdout } = await promisify(execFile)('sh', ['-c', `${output}\nenv -0`], {
    env: { PATH: process.env['PATH'], ...before },
  })
  const pairs = stdout.split('\0').map((line) => /^([^=]+)=(.*)$/s.exec(line))
  return Object.fromEntries(pairs.flatMap((pair) => (pair === null ? [] : [[pair[1]!, pair[2]!]])))
}

/** A program that is built on `pg` or libpq: it reads PGOPTIONS and knows nothing of leases. */
async function write(options: string | undefined): Promise<void> {
  const client = new Client({ connectionString: database.url, options })
  await client.connect()
  try {
    await client.query('update stock set count = count + 1')
  } finally {
    await client.end()
  }
}

test('env takes a term for the shell, whose programs are fenced by it until it is given back', async () => {
  const own = { PGOPTIONS: '-c statement_timeout=60000' }
  const result = await runCli(['env', name], { url: database.url, env: own })
  expect(result).toMatchObject({ code: 0, stderr: '' })
  const environment = await evaluated(result.stdout, own)
  expect(environment).toMatchObject({ FENCEPOST_LEASE: name, FENCEPOST_SEQUENCE: 'default' })
  await write(environment['PGOPTIONS'])
  await write(environment['FENCEPOST_PGOPTIONS'])
  await expect(write(undefined)).rejects.toMatchObject({ code: 'FP005' })
  // Its statement fences a program that PGOPTIONS does not reach.
  const session = await database.session()
  await session.query('begin')
  await session.query(environment['FENCEPOST_FENCE_SQL']!)
  await session.query('update stock set count = count + 1')
  await session.query('commit')
  expect(await database.query('select count from stock')).toEqual([{ count: 4 }])

  const held = await runCli(['env', name], { url: database.url })
  expect(held).toMatchObject({ code: 75, stdout: '(exit 75)\n' })
  // What is printed makes eval fail, so that a shell which stops at errors does not go on without a fence.
  await expect(evaluated(`set -e; eval "${held.stdout}"`)).rejects.toMatchObject({ code: 75 })
  const foreign = await runCli(['env', name, '--end'], { url: database.url })
  expect(foreign).toMatchObject({ code: 64, stdout: '(exit 64)\n' })

  const ended = await runCli(['env', name, '--end'], { url: database.url, env: environment })
  expect(ended).toMatchObject({ code: 0, stderr: '' })
  const left = await evaluated(ended.stdout, environment)
  expect(Object.keys(left).filter((key) => key.startsWith('FENCEPOST_'))).toEqual([])
  expect(left['PGOPTIONS']).toBe(own.PGOPTIONS)
  await expect(write(environment['PGOPTIONS'])).rejects.toMatchObject({ code: 'FP002' })
  const next = await runCli(['env', name], { url: database.url })
  const later = await evaluated(next.stdout, environment)
  expect(BigInt(later['FENCEPOST_TOKEN']!)).toBeGreaterThan(BigInt(environment['FENCEPOST_TOKEN']!))
  await runCli(['env', name, '--end'], { url: database.url, env: later })
})

test('env keeps the PGOPTIONS of the shell, and replaces a fence of an earlier time', async () => {
  const own = '-c statement_timeout=60000 -c fencepost.fence=1:x:an\\ old\\ one -c lock_timeout=5000'
  const { stdout } = await runCli(['env', name], { url: database.url, env: { PGOPTIONS: own } })
  const environment = await evaluated(stdout, { PGOPTIONS: own })
  expect(environment['PGOPTIONS']).toBe(
    `-c statement_timeout=60000 -c lock_timeout=5000 ${environment['FENCEPOST_PGOPTIONS']}`,
  )
  await write(environment['PGOPTIONS'])
  await runCli(['env', name, '--end'], { url: database.url, env: environment })
})

test.each([['deploy '], [' deploy'], ['ls\u2028x'], ['a\\'], ['b\'c"d`e$(f)']])(
  'env hands the lease %j over as it is',
  async (odd) => {
    await database.query('drop table if exists odd; create table odd (id integer)')
    await Fencepost.protect('odd', { connectionString: database.url, lease: odd })
    const own = { PGOPTIONS: '-c statement_timeout=60000' }
    const { stdout } = await runCli(['env', odd], { url: database.url, env: own })
    const environment = await evaluated(stdout, own)
    const client = new Client({ connectionString: database.url, options: environment['PGOPTIONS'] })
    await client.connect()
    await client.query('insert into odd values (1)')
    await client.end()
    const ended = await runCli(['env', odd, '--end'], { url: database.url, env: environment })
    expect((await evaluated(ended.stdout, environment))['PGOPTIONS']).toBe(own.PGOPTIONS)
  },
)

test('env under "fencepost run" gives the runner’s term, and never ends it', async () => {
  const fencepost = `'${program.join("' '")}'`
  const script = `${fencepost} env "$FENCEPOST_LEASE" && ${fencepost} env "$FENCEPOST_LEASE" --end; echo "code $?"; read line`
  const cli = new Cli(['run', name, '--', 'sh', '-c', script], { url: database.url })
  await cli.says('code ')
  expect(cli.stdout).toContain('code 64')
  // The two streams arrive each in its own time.
  await cli.says("A runner's term ends with its command", 'stderr')
  const environment = await evaluated(cli.stdout.slice(0, cli.stdout.indexOf('code ')))
  expect(environment['FENCEPOST_LEASE']).toBe(name)
  await write(environment['PGOPTIONS'])
  cli.tell('done')
  expect(await cli.closed).toMatchObject({ code: 0 })
  await expect(write(environment['PGOPTIONS'])).rejects.toMatchObject({ code: 'FP001' })
})

test.each([
  ['a TTL below the bound', ['env', 'x', '--ttl', '10ms'], /--ttl/, '(exit 64)\n'],
  ['a lease without a name', ['env', ''], /name of a lease/, '(exit 64)\n'],
  ['no lease', ['env'], /missing required argument/, ''],
])('env refuses %s', async (_, args, message, stdout) => {
  const result = await runCli(args, { url: database.url })
  expect(result).toMatchObject({ code: 64, stdout })
  expect(result.stderr).toMatch(message)
})
