import { existsSync } from 'node:fs'
import { hostname } from 'node:os'
import { describe, expect, test } from 'vitest'
import { Cli, isGone, runCli } from '../support/cli.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()
const { database } = bench

function eventsOf(stderr: string): Record<string, unknown>[] {
  const lines = stderr.split('\n').filter((line) => line !== '')
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>)
}

describe('a run that waits', () => {
  test('says who holds the lease, since when, where, and its place in line, and again when that changes; a quiet one does not', async () => {
    const name = bench.newName()
    const holder = await database.open({ label: 'ci-7' })
    const lease = await holder.acquire(name)
    const wait = ['run', name, '--wait', 'forever']
    const url = { url: database.url }
    const quiet = new Cli(
      [...wait, '--quiet', '--label', 'ci-8', '--', 'sh', '-c', 'echo ready; read line'],
      url,
    )
    await bench.isWaiting(quiet)
    const loud = new Cli([...wait, '--', 'echo', 'done'], url)
    await loud.says('place 2 of 2 in line', 'stderr')
    const where = `held by ci-7 (pid ${process.pid} on ${hostname()}) since 2`
    expect(loud.stderr).toContain(`fencepost: waiting for lease "${name}": ${where}`)
    await lease.release()
    await quiet.says('ready')
    await loud.says(`held by ci-8 (pid ${quiet.pid} on ${hostname()}) since 2`, 'stderr')
    await loud.says('place 1 of 1 in line', 'stderr')
    quiet.tell('done')
    expect(await quiet.closed).toMatchObject({ code: 0, stderr: '' })
    const result = await loud.closed
    expect(result).toMatchObject({ code: 0, stdout: 'done\n' })
    expect(result.stderr).toMatch(/granted lease "job-\d+" \(token \d+\) after \d+m?s\n$/)
  })

  test('finds what the one before it has done', async () => {
    const name = bench.newName()
    const marker = bench.newFile()
    const first = await bench.startReady([name], ['sh', '-c', `echo ready; read line; touch ${marker}`])
    const second = new Cli(['run', name, '--wait', 'forever', '--', 'test', '-e', marker], {
      url: database.url,
    })
    await bench.isWaiting(second)
    expect(existsSync(marker)).toBe(false)
    first.tell('')
    expect(await second.closed).toMatchObject({ code: 0 })
  })

  test('does not wait for longer because the database does not answer', async () => {
    const proxy = await TcpProxy.start(database.url)
    try {
      proxy.drop()
      const marker = bench.newFile()
      const result = await bench.run([bench.newName(), '--wait', '100ms'], ['touch', marker], proxy.url)
      expect(result).toMatchObject({ code: 69, stdout: '' })
      expect(result.stderr).toMatch(/no answer within (4\d{3}|5000) ms/)
      expect(existsSync(marker)).toBe(false)
    } finally {
      await proxy.stop()
    }
  })

  test('does not wait for longer because somebody has locked the row of the lease', async () => {
    const name = bench.newName()
    expect(await bench.run([name], ['true'])).toMatchObject({ code: 0 })
    const session = await database.session()
    await session.query('begin')
    await session.query('select from fencepost.lease where name = $1 for update', [name])
    for (const options of [['--no-wait'], ['--wait', '300ms']]) {
      // oxlint-disable-next-line no-await-in-loop -- They would wait for each other.
      expect(await bench.run([name, ...options], ['true'])).toMatchObject({ code: 75, stdout: '' })
    }
    await session.query('rollback')
    expect(await bench.run([name], ['true'])).toMatchObject({ code: 0 })
  })

  test('that is skipped says so, unless it is to be quiet', async () => {
    const name = bench.newName()
    const holder = await database.open()
    await holder.acquire(name)
    const skipping = [name, '--no-wait', '--on-conflict', 'skip']
    const result = await bench.run(skipping, ['true'])
    expect(result).toMatchObject({ code: 0, stdout: '' })
    expect(result.stderr).toContain('The command is skipped')
    const quiet = { code: 0, stdout: '', stderr: '' }
    expect(await bench.run([...skipping, '--quiet'], ['true'])).toMatchObject(quiet)
    expect(await bench.run([...skipping, '--quiet', '--json'], ['true'])).toMatchObject(quiet)
  })
})

describe('--json', () => {
  test('tells of the wait, the grant, the start and the end, one object a line', async () => {
    const name = bench.newName()
    const holder = await database.open({ label: 'ci-7' })
    const lease = await holder.acquire(name)
    const cli = new Cli(['run', name, '--json', '--wait', '1h', '--', 'sh', '-c', 'exit 3'], {
      url: database.url,
    })
    await cli.says('"waiting"', 'stderr')
    await lease.release()
    const result = await cli.closed
    expect(result).toMatchObject({ code: 3, stdout: '' })
    const events = eventsOf(result.stderr)
    const token = String(lease.token + 1n)
    const common = { lease: name, time: expect.stringMatching(/^2.*Z$/), message: expect.any(String) }
    const at = { holder: 'ci-7', host: hostname(), pid: process.pid, since: expect.stringMatching(/^2.*Z$/) }
    expect(events).toEqual([
      {
        event: 'waiting',
        ...common,
        ...at,
        state: 'held',
        remainingMs: expect.any(Number),
        place: 1,
        waiters: 1,
      },
      { event: 'granted', ...common, token, waitedMs: expect.any(Number), ttlMs: 30_000 },
      { event: 'started', ...common, token, pid: expect.any(Number) },
      { event: 'released', ...common, token, outcome: 'released', exitCode: 3 },
    ])
  })

  test('tells of a conflict', async () => {
    const name = bench.newName()
    const holder = await database.open({ label: 'ci-7' })
    await holder.acquire(name)
    const result = await bench.run([name, '--json'], ['true'])
    expect(result.code).toBe(75)
    expect(eventsOf(result.stderr)).toMatchObject([{ event: 'conflict', holder: 'ci-7', exitCode: 75 }])
  })

  test('tells of a loss, and nothing else when it is to be quiet', async () => {
    for (const [options, events] of [
      [[], ['granted', 'started', 'ending', 'lost']],
      [['--quiet'], ['lost']],
    ] as const) {
      const name = bench.newName()
      // oxlint-disable-next-line no-await-in-loop -- One after the other is what is compared.
      const cli = await bench.startReady(
        [name, '--json', '--ttl', '1s', ...options],
        ['sh', '-c', 'echo ready; exec sleep 100'],
      )
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await bench.steal(name)
      // oxlint-disable-next-line no-await-in-loop -- As above.
      const result = await cli.closed
      expect(result.code).toBe(70)
      const told = eventsOf(result.stderr).filter(({ event }) => event !== 'at-risk')
      expect(told.map(({ event }) => event)).toEqual(events)
      expect(told.at(-1)).toMatchObject({ reason: 'ended', commandExitCode: 143, exitCode: 70 })
    }
  })

  test('tells of wrong usage, of a signal that ends the waiting, and of a command that is not there', async () => {
    const name = bench.newName()
    const usage = await bench.run([name, '--json', '--ttl', '5'], ['true'])
    expect(eventsOf(usage.stderr)).toMatchObject([{ event: 'error', exitCode: 64 }])
    for (const args of [['--ttl'], ['--no-such-option'], ['--wait', '1s', '--no-wait'], ['more']]) {
      // oxlint-disable-next-line no-await-in-loop -- Each for itself is what is looked at.
      const parsed = await runCli(['run', name, '--json', ...args, '--', 'true'], { url: database.url })
      expect(parsed.code).toBe(64)
      expect(eventsOf(parsed.stderr)).toMatchObject([{ event: 'error', lease: null, exitCode: 64 }])
    }
    const missing = await bench.run([name, '--json'], ['fencepost-no-such-command'])
    expect(eventsOf(missing.stderr)).toMatchObject([
      { event: 'granted' },
      { event: 'error', exitCode: 127 },
      { event: 'released', exitCode: 127 },
    ])
    const holder = await database.open()
    await holder.acquire(name)
    const cli = new Cli(['run', name, '--json', '--wait', '1h', '--', 'true'], { url: database.url })
    await cli.says('"waiting"', 'stderr')
    cli.signal('SIGTERM')
    const stopped = await cli.closed
    expect(eventsOf(stopped.stderr).at(-1)).toMatchObject({
      event: 'stopped',
      signal: 'SIGTERM',
      exitCode: 143,
    })
  })
})

describe('the terms of a run', () => {
  test('end at --max-hold, with 70, and the command is dead before another is granted the lease', async () => {
    const name = bench.newName()
    const cli = await bench.startReady(
      [name, '--max-hold', '2s', '--grace', '200ms'],
      ['sh', '-c', 'trap "" TERM; echo "$$ ready"; exec sleep 100'],
    )
    const pid = Number(/\d+/.exec(cli.stdout)![0])
    // The database would grant it to the next one on time, however late this machine lets the wrapper be.
    await database.query(`update fencepost.lease set deadline = 'infinity' where name = $1`, [name])
    const successor = await database.open()
    await successor.acquire(name, { wait: '20s' })
    expect(isGone(pid)).toBe(true)
    const result = await cli.closed
    expect(result.code).toBe(70)
    expect(result.stderr).toMatch(/(has been|was) held for its maximum of 2s: ending the command/)
    expect(result.stderr).toContain('was held for its maximum of 2s, which has ended the command')
  })

  test('are not touched by a --max-hold that is not reached', async () => {
    const result = await bench.run([bench.newName(), '--max-hold', '1h'], ['sh', '-c', 'exit 3'])
    expect(result).toMatchObject({ code: 3, stderr: '' })
  })

  test('keep others out for --min-hold although the command is done, and without it they do not', async () => {
    const name = bench.newName()
    expect(await bench.run([name], ['true'])).toMatchObject({ code: 0 })
    expect(await bench.run([name, '--min-hold', '1h'], ['true'])).toMatchObject({ code: 0 })
    expect(await bench.run([name], ['true'])).toMatchObject({ code: 75 })
  })

  test('carry what --label and --meta say of the holder', async () => {
    const name = bench.newName()
    const cli = await bench.startReady([name, '--label', 'ci-9', '--meta', 'build=17', '--meta', 'by=a=b'])
    const [row] = await database.query<{ label: string; meta: object }>(
      'select label, meta from fencepost.holder where pid = $1',
      [cli.pid],
    )
    expect(row).toEqual({ label: 'ci-9', meta: { build: '17', by: 'a=b' } })
    cli.tell('')
    expect(await cli.closed).toMatchObject({ code: 0 })
  })
})
