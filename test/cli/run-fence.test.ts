import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { Cli, type CliResult, eventually, runCli } from '../support/cli.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()
const { database } = bench

const hasPsql = ((): boolean => {
  try {
    execFileSync('psql', ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
})()

const psql = ['--no-psqlrc', '--quiet', '--no-align', '--tuples-only', '--set=VERBOSITY=verbose', '--file=-']

function isStopped(pid: number): boolean {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
  return stat[stat.lastIndexOf(')') + 2] === 'T'
}

describe.skipIf(!hasPsql)('psql, which knows nothing of leases, under run --fence', () => {
  beforeAll(async () => {
    await database.query('create table stock (id integer primary key, writer text not null)')
    await database.query('create schema shop')
    const { url } = database
    await Fencepost.protect('stock', { connectionString: url, lease: 'stock' })
    await Fencepost.protectSchema('shop', { connectionString: url, lease: 'deploy' })
  })

  /** psql as the command, which has said its number and that it is connected. */
  async function start(lease: string, options: readonly string[]): Promise<{ cli: Cli; pid: number }> {
    const cli = new Cli(
      ['run', lease, ...options, '--', 'sh', '-c', 'echo "$$"; exec psql "$0" "$@"', database.url, ...psql],
      { url: database.url },
    )
    cli.tell(`select 'ready';`)
    await cli.says('ready')
    return { cli, pid: Number(/\d+/.exec(cli.stdout)![0]) }
  }

  const cases = [
    ['a protected table', 'stock', (n: number) => `insert into stock values (${n}, 'runner');`],
    ['a protected schema', 'deploy', (n: number) => `create table shop.t${n} (id integer);`],
  ] as const

  test.for(cases)('writes to %s while the lease is held', async ([, lease, write]) => {
    const { cli } = await start(lease, ['--fence'])
    cli.tell(write(1))
    cli.endInput()
    expect(await cli.closed).toMatchObject({ code: 0, stderr: '' })
  })

  test.for(cases)('is refused by %s without --fence', async ([, lease, write]) => {
    const { cli } = await start(lease, [])
    cli.tell(write(2))
    cli.endInput()
    expect((await cli.closed).stderr).toContain('FP005')
  })

  test.for(cases)(
    'is refused by %s when it was stopped beyond its TTL, with the wrapper, and the successor is not',
    async ([, lease, write]) => {
      const { cli, pid } = await start(lease, ['--fence', '--ttl', '1s'])
      cli.tell(write(3))
      cli.tell(`select 'has written';`)
      await cli.says('has written')
      // First the wrapper, which would continue or end it.
      cli.signal('SIGSTOP')
      process.kill(pid, 'SIGSTOP')
      await eventually(() => isStopped(cli.pid) && isStopped(pid))
      const successor = await database.open()
      const term = await successor.acquire(lease, { wait: '20s' })
      cli.tell(write(4))
      process.kill(pid, 'SIGCONT')
      await cli.says('FP001', 'stderr')
      await term.transaction(database.pool, (client) => client.query(write(4)))
      cli.signal('SIGCONT')
      expect(await cli.closed).toMatchObject({ code: 70 })
      await term.release()
    },
  )

  test('is refused when the wrapper was killed and it could not be ended with it', async () => {
    const { cli, pid } = await start('stock', ['--fence', '--ttl', '1s'])
    const gate = await database.session()
    await gate.query('select pg_advisory_lock(9)')
    // Told now, because its input ends with the wrapper.
    cli.tell(`select 'waits'; select pg_advisory_lock(9); insert into stock values (9, 'orphan');`)
    await cli.says('waits')
    const children = readFileSync(`/proc/${cli.pid}/task/${cli.pid}/children`, 'latin1')
    const watchdog = children
      .trim()
      .split(' ')
      .map(Number)
      .find((child) => child !== pid)!
    process.kill(watchdog, 'SIGKILL')
    cli.signal('SIGKILL')
    const successor = await database.open()
    await using term = await successor.acquire('stock', { wait: '20s' })
    await gate.query('select pg_advisory_unlock(9)')
    await cli.says('FP001', 'stderr')
    await cli.closed
    expect(term.isHeld).toBe(true)
    expect(await database.query('select from stock where id = 9')).toEqual([])
  })

  test('keeps what the caller has in PGOPTIONS, and without --fence nothing else', async () => {
    const env = { PGOPTIONS: '-c statement_timeout=61s -c fencepost.fence=old' }
    const show = `select current_setting('statement_timeout'), current_setting('fencepost.fence');`
    const said: string[] = []
    for (const options of [['--fence'], []]) {
      const cli = new Cli(['run', 'shown', ...options, '--', 'psql', database.url, ...psql], {
        url: database.url,
        env,
      })
      cli.tell(show)
      cli.endInput()
      // oxlint-disable-next-line no-await-in-loop -- They need the same lease.
      said.push((await cli.closed).stdout.trim())
    }
    expect(said).toEqual([expect.stringMatching(/^61s\|\d+:[0-9a-f-]{36}:shown$/), '61s|old'])
  })
})

describe.skipIf(pgbouncerReason() !== undefined)('run --fence by way of a pooler', () => {
  test.for([
    ['that refuses the fence', {}, 'refuses connections with the fence'],
    ['that drops the fence', { ignore_startup_parameters: 'extra_float_digits,options' }, 'drops the fence'],
  ] as const)('%s warns, and a quiet one does not', async ([, settings, warning]) => {
    await using bouncer = await PgBouncer.start(database.url, settings)
    const loud = await bench.run([bench.newName(), '--fence'], ['true'], bouncer.url)
    expect(loud).toMatchObject({ code: 0, stdout: '' })
    expect(loud.stderr).toContain(warning)
    const quiet = await bench.run([bench.newName(), '--fence', '--quiet'], ['true'], bouncer.url)
    expect(quiet).toMatchObject({ code: 0, stdout: '', stderr: '' })
  })

  test('warns of the way that the command goes, not of its own', async () => {
    await using bouncer = await PgBouncer.start(database.url)
    const { url } = database
    const to = async (own: string, commands: string): Promise<CliResult> =>
      runCli(['run', bench.newName(), '--fence', '--', 'true'], { url: own, env: { DATABASE_URL: commands } })
    expect(await to(bouncer.url, url)).toMatchObject({ code: 0, stderr: '' })
    expect((await to(url, bouncer.url)).stderr).toContain('refuses connections with the fence')
    expect(await to(url, 'mysql://db.example/shop')).toMatchObject({ code: 0, stderr: '' })
  })
})

test('run --fence says nothing where the fence gets through', async () => {
  expect(await bench.run([bench.newName(), '--fence'], ['true'])).toMatchObject({ code: 0, stderr: '' })
})
