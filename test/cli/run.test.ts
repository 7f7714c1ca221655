import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { constants } from 'node:os'
import { dirname } from 'node:path'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { Cli, type CliResult, eventually, isGone, runCli } from '../support/cli.ts'
import { program } from '../support/main-program.ts'
import { runProgram } from '../support/program.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()

/** A background process, in shell, that TERM does not end. It says its number first. */
const stubborn = `sh -c 'trap "" TERM; echo "$$ ready"; exec sleep 100 >/dev/null 2>&1'`
/** A loop, in shell, that a signal can interrupt, and that ends with the folder of the file: after the tests. */
function untilTheEnd(file: string): string {
  return `while test -d ${dirname(file)}; do sleep 0.01; done`
}
/** A TTL and a grace that no test waits for. */
const unhurried = ['--ttl', '1d', '--grace', '8h']

describe('what the command gets', () => {
  test('is its arguments byte by byte, without a shell', async () => {
    const args = ['a b', '$HOME', '*', '', '--', '-v', '--ttl', '"\'\\', 'ü\n', ';exit 1']
    const script = 'process.stdout.write(JSON.stringify(process.argv.slice(1)))'
    const result = await bench.run([bench.newName()], [process.execPath, '-e', script, 'first', ...args])
    expect(result).toMatchObject({ code: 0, stderr: '' })
    expect(JSON.parse(result.stdout)).toEqual(['first', ...args])
  })

  test.skipIf(process.platform !== 'linux')('is never an argument that has become another', async () => {
    const marker = bench.newFile()
    const run = (bytes: string): Promise<CliResult> => {
      const shell = `exec "$@" "$(printf '${bytes}')"`
      const args = [...program, 'run', bench.newName(), '--', 'touch', marker]
      return runProgram(['sh', '-c', shell, 'sh', ...args], {
        env: { ...process.env, FENCEPOST_DATABASE_URL: bench.database.url },
      })
    }
    const refused = await run(String.raw`\377\376`)
    expect(refused).toMatchObject({ code: 64, stdout: '' })
    expect(refused.stderr).toContain('argument 2 of the command is not UTF-8')
    expect(existsSync(marker)).toBe(false)
    // The replacement character itself is an argument like others.
    expect(await run(String.raw`${marker}\357\277\275`)).toMatchObject({ code: 0, stderr: '' })
    expect(existsSync(`${marker}\u{fffd}`)).toBe(true)
  })

  test("is stdin, stdout and stderr as they are, and nothing of fencepost's", async () => {
    const cli = new Cli(['run', bench.newName(), '--', 'sh', '-c', 'cat; echo problem >&2'], {
      url: bench.database.url,
    })
    const bytes = '0123456789abcdef'.repeat(65_536)
    cli.tell(bytes)
    cli.endInput()
    const result = await cli.closed
    expect(result).toMatchObject({ code: 0, stderr: 'problem\n' })
    expect(result.stdout === `${bytes}\n`).toBe(true)
  })

  test('is the lease, its token and the fence in the environment, and no URL that was given as an option', async () => {
    const name = bench.newName()
    const result = await runCli(['run', name, '--database-url', bench.database.url, '--', 'env'])
    const [row] = await bench.database.query<{ token: string; holder_id: string | null }>(
      `select l.token, (select h.id from fencepost.holder h order by h.joined_at desc limit 1) as holder_id
         from fencepost.lease l where l.name = $1`,
      [name],
    )
    const variables = result.stdout.split('\n').filter((line) => /FENCEPOST|DATABASE/.test(line))
    expect(variables.toSorted()).toEqual([
      `FENCEPOST_FENCE_SQL=select fencepost.fence('${name}', ${row!.token}, '${row!.holder_id}'::uuid, null, null);`,
      `FENCEPOST_HOLDER=${row!.holder_id}`,
      `FENCEPOST_LEASE=${name}`,
      `FENCEPOST_PGOPTIONS=-c fencepost.fence=${row!.token}:${row!.holder_id}:${name}`,
      'FENCEPOST_SEQUENCE=default',
      `FENCEPOST_TOKEN=${row!.token}`,
    ])
  })

  describe('lets it fence its writes', () => {
    beforeAll(() => bench.database.query('create table ledger (writer text not null)'))

    const viaSql = `
      import pg from 'pg'
      const client = new pg.Client({ connectionString: process.env.FENCEPOST_DATABASE_URL })
      await client.connect()
      const write = async () => {
        await client.query('begin')
        try {
          await client.query(process.env.FENCEPOST_FENCE_SQL)
          await client.query('insert into ledger values ($1)', [process.env.FENCEPOST_LEASE])
          await client.query('commit')
          return 'written'
        } catch (error) {
          await client.query('rollback')
          return error.code
        }
      }
      const close = () => client.end()`
    const viaLibrary = `
      import pg from 'pg'
      import { fencedTransaction, inheritedFence } from './src/index.ts'
      const pool = new pg.Pool({ connectionString: process.env.FENCEPOST_DATABASE_URL })
      const write = () => fencedTransaction(inheritedFence(), pool, (client) =>
        client.query('insert into ledger values ($1)', [process.env.FENCEPOST_LEASE]),
      ).then(() => 'written', (error) => error.code)
      const close = () => pool.end()`
    const twice = `
      console.log('ready', await write())
      await new Promise((resolve) => process.stdin.once('data', resolve))
      console.log(await write())
      await close()
      process.exit(0)`

    test.for([
      ['FENCEPOST_FENCE_SQL', viaSql, 'FP001'],
      ['inheritedFence()', viaLibrary, 'STALE_TERM'],
    ] as const)(
      'through %s, which writes while the lease is held and is refused after a takeover: 70 although it said 0',
      async ([, script, refusal]) => {
        const name = bench.newName()
        const command = [process.execPath, '--input-type=module', '-e', `${script}\n${twice}`]
        const cli = await bench.startReady([name], command)
        await bench.steal(name)
        const successor = await bench.database.open()
        await successor.acquire(name)
        cli.tell('write again')
        const result = await cli.closed
        expect(result.stdout).toBe(`ready written\n${refusal}\n`)
        expect(result.code).toBe(70)
        expect(result.stderr).toMatch(/was lost while the command ran/)
        expect(await bench.database.query('select from ledger where writer = $1', [name])).toHaveLength(1)
        // The loser must not give back what is another's now.
        expect(await bench.stateOf(name)).toBe('held')
      },
    )
  })
})

describe('a lease that is lost while the command runs', () => {
  test('ends the command with TERM, and the exit code is 70 although the command says 0', async () => {
    const name = bench.newName()
    const script = 'trap "echo ended; exit 0" TERM; echo ready; while :; do read line || exit 9; done'
    const cli = await bench.startReady([name, '--ttl', '1s'], ['sh', '-c', script])
    await bench.steal(name)
    // A shell runs its trap when the line it reads has come.
    await cli.says('ending the command', 'stderr')
    cli.tell('')
    const result = await cli.closed
    expect(result).toMatchObject({ code: 70, stdout: 'ready\nended\n' })
  })

  test('takes the grandchildren along: TERM is ignored, KILL comes after the grace', async () => {
    const name = bench.newName()
    const script = 'trap "" TERM; sleep 100 & echo "$$ $! ready"; wait'
    const cli = await bench.startReady([name, '--ttl', '1s', '--grace', '200ms'], ['sh', '-c', script])
    const pids = cli.stdout.match(/\d+/g)!.map(Number)
    expect(pids.map(isGone)).toEqual([false, false])
    await bench.steal(name)
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(pids.map(isGone)).toEqual([true, true])
  })

  test('takes along what outlives the command itself', async () => {
    const name = bench.newName()
    // Without its output it could not keep the wrapper's pipes open either.
    const cli = await bench.startReady(
      [name, '--ttl', '1s', '--grace', '200ms'],
      ['sh', '-c', `${stubborn} & wait`],
    )
    const pid = Number(/\d+/.exec(cli.stdout)![0])
    await bench.steal(name)
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(isGone(pid)).toBe(true)
  })

  test('is noticed when the database falls silent, and the wrapper ends although it stays so', async () => {
    const proxy = await TcpProxy.start(bench.database.url)
    try {
      const name = bench.newName()
      const cli = await bench.startReady(
        [name, '--ttl', '1s'],
        ['sh', '-c', 'echo ready; exec sleep 100'],
        proxy.url,
      )
      proxy.drop()
      expect(await cli.closed).toMatchObject({ code: 70 })
    } finally {
      await proxy.stop()
    }
  })

  test('is noticed by a wrapper that was stopped for longer than the TTL', async () => {
    const name = bench.newName()
    const marker = bench.newFile()
    const cli = await bench.startReady(
      [name, '--ttl', '1s'],
      ['sh', '-c', `trap "touch ${marker}" EXIT; echo ready; read line; exit 0`],
    )
    cli.signal('SIGSTOP')
    const successor = await bench.database.open()
    await successor.acquire(name, { wait: '20s' })
    cli.tell('')
    await eventually(() => existsSync(marker))
    cli.signal('SIGCONT')
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(await bench.stateOf(name)).toBe('held')
  })

  test("is not the wrapper's to end once the output has no reader", async () => {
    const name = bench.newName()
    const marker = bench.newFile()
    const cli = await bench.startReady(
      [name, '--ttl', '1s'],
      ['sh', '-c', `trap "touch ${marker}; exit 0" TERM; echo ready; while :; do read line || exit 9; done`],
    )
    cli.hangUp('stderr')
    await bench.steal(name)
    await eventually(() => {
      cli.tell('')
      return existsSync(marker)
    })
    expect(await cli.closed).toMatchObject({ code: 70 })
  })
})

describe('a lease that no heartbeat renews', () => {
  let proxy: TcpProxy
  beforeEach(async () => {
    proxy = await TcpProxy.start(bench.database.url)
  })
  afterEach(() => proxy.stop())

  async function expiryOf(cli: Cli): Promise<Date> {
    const [row] = await bench.database.query<{ expires_at: Date }>(
      'select expires_at from fencepost.holder where pid = $1',
      [cli.pid],
    )
    return row!.expires_at
  }

  test('has its command dead before it is granted to another, although TERM is ignored', async () => {
    const name = bench.newName()
    const cli = await bench.startReady(
      [name, '--ttl', '2s', '--grace', '600ms'],
      ['sh', '-c', stubborn],
      proxy.url,
    )
    const pid = Number(/\d+/.exec(cli.stdout)![0])
    const successor = await bench.database.open()
    proxy.drop()
    await successor.acquire(name, { wait: '20s' })
    expect(isGone(pid)).toBe(true)
    await proxy.stop()
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(cli.stderr).toMatch(/runs out and no heartbeat gets through: ending the command/)
  })

  test('counts as lost from TERM on, even when heartbeats come through again and the command says 0', async () => {
    const name = bench.newName()
    const cli = await bench.startReady(
      // Between TERM and KILL a heartbeat has to get through.
      [name, '--ttl', '6s', '--grace', '2s'],
      ['sh', '-c', `trap "read line; exit 0" TERM; echo ready; ${untilTheEnd(bench.newFile())}`],
      proxy.url,
    )
    proxy.drop()
    await cli.says('no heartbeat gets through: ending the command', 'stderr')
    const before = await expiryOf(cli)
    expect(await bench.stateOf(name)).toBe('held')
    proxy.restore()
    await eventually(async () => (await expiryOf(cli)) > before)
    cli.tell('')
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(cli.stderr).toContain('was given up while the command ran')
    expect(await bench.stateOf(name)).toBe('free')
  })

  test('changes nothing when a heartbeat comes through in time', async () => {
    const name = bench.newName()
    let beats = 0
    proxy.onReply((_reply, sent) => {
      // By its text at first, and then by the name under which it was prepared.
      if (!/fencepost[._]beat/.test(sent.toString('latin1'))) return 'pass'
      beats += 1
      return beats === 1 ? 'cut' : 'pass'
    })
    const cli = await bench.startReady([name, '--ttl', '1s'], undefined, proxy.url)
    // By the fourth the time of the grant is over.
    await eventually(() => beats >= 4)
    cli.tell('on')
    expect(await cli.closed).toEqual({ code: 0, signal: null, stdout: 'ready\nread on\n', stderr: '' })
  })
})

describe('a command that ends before what it has started', () => {
  // It takes TERM for a request, and ends when it is allowed to.
  const careful = (permit: string): string =>
    `trap "echo cleaning; while test -d ${dirname(permit)} && ! test -e ${permit}; do sleep 0.01; done; exit 0" TERM; echo ready; ${untilTheEnd(permit)}`

  test.for([
    ['by itself', 3],
    ['by a signal', 143],
  ] as const)('keeps the lease held until that is gone: %s', async ([how, code]) => {
    const name = bench.newName()
    const permit = bench.newFile()
    const cli = await bench.startReady(
      [name, ...unhurried],
      ['sh', '-c', `sh -c '${careful(permit)}' & read line; exit 3`],
    )
    if (how === 'by a signal') cli.signal('SIGTERM')
    else cli.tell('')
    await cli.says('cleaning')
    await cli.says('what it has started is not', 'stderr')
    expect(await bench.stateOf(name)).toBe('held')
    await writeFile(permit, '')
    expect(await cli.closed).toMatchObject({ code })
    expect(await bench.stateOf(name)).toBe('free')
  })

  test.for([
    ['a process of its group', stubborn],
    ['a process of another group of its session', `timeout 100 ${stubborn}`],
  ] as const)('has it killed after the grace: %s', async ([, background]) => {
    const name = bench.newName()
    const cli = await bench.startReady(
      [name, '--grace', '100ms'],
      ['sh', '-c', `${background} & read line; exit 3`],
    )
    const pid = Number(/\d+/.exec(cli.stdout)![0])
    cli.tell('')
    expect(await cli.closed).toMatchObject({ code: 3 })
    expect(isGone(pid)).toBe(true)
    expect(await bench.stateOf(name)).toBe('free')
  })

  test('does not make the wrapper wait for the grace when everything is gone', async () => {
    const cli = await bench.startReady(
      [bench.newName(), ...unhurried],
      ['sh', '-c', 'sleep 100 & echo ready; read line; exit 3'],
    )
    cli.tell('')
    expect(await cli.closed).toMatchObject({ code: 3 })
  })

  test('lets a signal to the wrapper end the grace', async () => {
    const name = bench.newName()
    const cli = await bench.startReady([name, ...unhurried], ['sh', '-c', `${stubborn} & read line; exit 3`])
    const pid = Number(/\d+/.exec(cli.stdout)![0])
    cli.tell('')
    await cli.says('what it has started is not', 'stderr')
    cli.signal('SIGHUP')
    expect(await cli.closed).toMatchObject({ code: 3 })
    expect(isGone(pid)).toBe(true)
  })

  test('may leave behind what has a session of its own', async () => {
    const name = bench.newName()
    const script = `
      const child = require('node:child_process').spawn('sleep', ['100'], { detached: true, stdio: 'ignore' })
      console.log(child.pid)
      child.unref()`
    const result = await bench.run([name], [process.execPath, '-e', script])
    expect(result).toMatchObject({ code: 0, stderr: '' })
    const pid = Number(result.stdout)
    expect(isGone(pid)).toBe(false)
    process.kill(pid)
    expect(await bench.stateOf(name)).toBe('free')
  })
})

describe('a signal to the wrapper', () => {
  test.for(['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const)(
    'is passed on: %s',
    async (signal) => {
      const name = bench.newName()
      const cli = await bench.startReady([name], ['sh', '-c', 'ulimit -c 0; echo ready; exec sleep 100'])
      cli.signal(signal)
      const code = 128 + constants.signals[signal]
      expect(await cli.closed).toEqual({ code, signal: null, stdout: 'ready\n', stderr: '' })
      expect(await bench.stateOf(name)).toBe('free')
    },
  )

  test('reaches what the command started', async () => {
    const cli = await bench.startReady(
      [bench.newName()],
      ['sh', '-c', 'sleep 100 & echo "$$ $! ready"; wait'],
    )
    const pids = cli.stdout.match(/\d+/g)!.map(Number)
    cli.signal('SIGTERM')
    expect(await cli.closed).toMatchObject({ code: 143 })
    await eventually(() => pids.every(isGone))
  })

  test('leaves the lease held until the command is gone, whose own code counts', async () => {
    const name = bench.newName()
    const script = `
      process.on('SIGTERM', () => console.log('cleaning up'))
      process.stdin.once('data', () => process.exit(4))
      console.log('ready')`
    const cli = await bench.startReady([name], [process.execPath, '-e', script])
    cli.signal('SIGTERM')
    await cli.says('cleaning up')
    expect(await bench.stateOf(name)).toBe('held')
    cli.tell('done')
    expect(await cli.closed).toMatchObject({ code: 4, stderr: '' })
    expect(await bench.stateOf(name)).toBe('free')
  })

  test('is passed on a second time as well', async () => {
    const script = `
      let count = 0
      process.on('SIGINT', () => {
        count += 1
        console.log('interrupted', count)
        if (count === 2) process.exit(6)
      })
      process.stdin.resume().once('end', () => process.exit(9))
      console.log('ready')`
    const cli = await bench.startReady([bench.newName()], [process.execPath, '-e', script])
    cli.signal('SIGINT')
    await cli.says('interrupted 1')
    cli.signal('SIGINT')
    expect(await cli.closed).toMatchObject({ code: 6, stdout: 'ready\ninterrupted 1\ninterrupted 2\n' })
  })

  test.for([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
    ['SIGQUIT', 131],
  ] as const)('ends the waiting and leaves no lease behind: %s', async ([signal, code]) => {
    const name = bench.newName()
    const marker = bench.newFile()
    const holder = await bench.database.open()
    const lease = await holder.acquire(name)
    const cli = new Cli(['run', name, '--wait', '1h', '--', 'touch', marker], { url: bench.database.url })
    await bench.isWaiting(cli)
    cli.signal(signal)
    expect(await cli.closed).toMatchObject({ code, stdout: '' })
    const left = await bench.database.query(
      'select from fencepost.holder where pid = $1 and ended_at is null',
      [cli.pid],
    )
    expect(left).toEqual([])
    await lease.release()
    expect(await bench.stateOf(name)).toBe('free')
    expect(existsSync(marker)).toBe(false)
  })

  test('that would tell the command something keeps its own meaning while there is none: SIGUSR2', async () => {
    const name = bench.newName()
    const holder = await bench.database.open()
    await holder.acquire(name)
    const cli = new Cli(['run', name, '--wait', '1h', '--', 'true'], { url: bench.database.url })
    await bench.isWaiting(cli)
    cli.signal('SIGUSR2')
    expect(await cli.closed).toMatchObject({ code: null, signal: 'SIGUSR2' })
  })

  test('ends the connecting to a database that does not answer', async () => {
    const proxy = await TcpProxy.start(bench.database.url)
    try {
      proxy.drop()
      const cli = new Cli(['run', bench.newName(), '--wait', '1h', '--', 'true'], { url: proxy.url })
      await eventually(() => proxy.connections > 0)
      cli.signal('SIGTERM')
      expect(await cli.closed).toMatchObject({ code: 143, stdout: '' })
    } finally {
      await proxy.stop()
    }
  })
})

describe('a database that does not answer any more', () => {
  test("keeps back neither the wrapper nor the command's own code, and nor does a signal", async () => {
    const proxy = await TcpProxy.start(bench.database.url)
    try {
      const cli = await bench.startReady(
        [bench.newName(), '--ttl', '1h'],
        ['sh', '-c', 'echo "$$ ready"; read line; exit 3'],
        proxy.url,
      )
      const pid = Number(/\d+/.exec(cli.stdout)![0])
      proxy.drop()
      cli.tell('')
      await eventually(() => isGone(pid))
      for (const signal of ['SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const) cli.signal(signal)
      const result = await cli.closed
      expect(result).toMatchObject({ code: 3, signal: null })
      expect(result.stderr).toContain('could not be given back: it is free after its TTL')
    } finally {
      await proxy.stop()
    }
  })
})
