import { existsSync } from 'node:fs'
import { chmod, writeFile } from 'node:fs/promises'
import { describe, expect, test } from 'vitest'
import { Cli, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()
const empty = useDatabase({ migrated: false })

describe('the exit code', () => {
  test.for([0, 1, 3, 70, 255])("is the command's own: %i", async (code) => {
    const name = bench.newName()
    const result = await bench.run([name], ['sh', '-c', `exit ${code}`])
    expect(result).toEqual({ code, signal: null, stdout: '', stderr: '' })
    expect(await bench.stateOf(name)).toBe('free')
  })

  test.for([
    ['TERM', 143],
    ['KILL', 137],
  ] as const)('is 128 + n when SIG%s ended the command', async ([signal, code]) => {
    expect(await bench.run([bench.newName()], ['sh', '-c', `kill -${signal} $$`])).toMatchObject({
      code,
      stderr: '',
    })
  })

  test.for([
    ['a command that does not exist', ['fencepost-no-such-command'], 127],
    ['a path that does not exist', ['/no/such/file'], 127],
    ['an empty command', [''], 127],
    ['a folder', ['/'], 126],
    ['a path through a file', ['/etc/passwd/command'], 126],
  ] as const)('is as in a shell for %s', async ([, command, code]) => {
    const name = bench.newName()
    const result = await bench.run([name], command)
    expect(result.code).toBe(code)
    expect(result.stderr).toMatch(/^fencepost: cannot run the command: .+\n$/)
    expect(await bench.stateOf(name)).toBe('free')
  })

  test('is 126 for a file that may not be executed', async () => {
    const file = bench.newFile()
    await writeFile(file, '#!/bin/sh\n')
    await chmod(file, 0o644)
    expect(await bench.run([bench.newName()], [file])).toMatchObject({ code: 126 })
  })

  test.for([
    ['no command', ['run', 'job', '--'], 'put "--" and the command after the options'],
    ['no "--"', ['run', 'job'], 'put "--" and the command after the options'],
    ['a command without "--"', ['run', 'job', 'echo', 'hi'], 'put "--" and the command after the options'],
    ['no lease', ['run', '--', 'true'], "missing required argument 'lease'"],
    ['two leases', ['run', 'job', 'other', '--', 'true'], 'put "--" and the command after the options'],
    ['an empty name', ['run', '', '--', 'true'], 'the name of a lease must have 1 to 512 bytes'],
    ['a name with a line break', ['run', 'a\nb', '--', 'true'], 'no control characters'],
    ['a name of 513 bytes', ['run', 'x'.repeat(513), '--', 'true'], 'got 513'],
    ['--ttl 5', ['run', 'job', '--ttl', '5', '--', 'true'], '--ttl must be a number of milliseconds'],
    ['--ttl 0x10', ['run', 'job', '--ttl', '0x10', '--', 'true'], '--ttl must be'],
    ['an empty --ttl', ['run', 'job', '--ttl', '', '--', 'true'], '--ttl must be'],
    ['--ttl -1s', ['run', 'job', '--ttl=-1s', '--', 'true'], '--ttl must be'],
    ['--ttl 999ms', ['run', 'job', '--ttl', '999ms', '--', 'true'], '--ttl must be between 1s and 1d'],
    ['--ttl 25h', ['run', 'job', '--ttl', '25h', '--', 'true'], '--ttl must be between 1s and 1d'],
    ['--wait 5', ['run', 'job', '--wait', '5', '--', 'true'], '--wait must be'],
    ['--wait forevermore', ['run', 'job', '--wait', 'forevermore', '--', 'true'], 'Or: --wait forever'],
    [
      '--wait with --no-wait',
      ['run', 'job', '--wait', '5s', '--no-wait', '--', 'true'],
      'cannot be used with',
    ],
    [
      '--no-wait with --wait',
      ['run', 'job', '--no-wait', '--wait', '0s', '--', 'true'],
      'cannot be used with',
    ],
    ['--max-hold 1ms', ['run', 'job', '--max-hold', '1ms', '--', 'true'], '--max-hold must be between 1s'],
    [
      '--max-hold below --min-hold',
      ['run', 'job', '--max-hold', '1m', '--min-hold', '2m', '--', 'true'],
      '--max-hold must be between 2m',
    ],
    ['--min-hold 2d', ['run', 'job', '--min-hold', '2d', '--', 'true'], '--min-hold must be between'],
    [
      '--grace 5s with --max-hold 3s',
      ['run', 'job', '--max-hold', '3s', '--grace', '5s', '--', 'true'],
      'got --grace 5s with --max-hold 3s, which allows 1s',
    ],
    [
      '--on-conflict wait',
      ['run', 'job', '--on-conflict', 'wait', '--', 'true'],
      'Allowed choices are fail, skip',
    ],
    [
      '--on-conflict with --conflict-exit-code',
      ['run', 'job', '--on-conflict', 'skip', '--conflict-exit-code', '3', '--', 'true'],
      'cannot be used with',
    ],
    ['--meta without a value', ['run', 'job', '--meta', 'build', '--', 'true'], 'the form KEY=VALUE'],
    ['--meta without a key', ['run', 'job', '--meta', '=7', '--', 'true'], 'the form KEY=VALUE'],
    ['--meta twice', ['run', 'job', '--meta', 'a=1', '--meta', 'a=2', '--', 'true'], 'names "a" twice'],
    ['--grace soon', ['run', 'job', '--grace', 'soon', '--', 'true'], '--grace must be'],
    [
      '--grace 5s with --ttl 3s',
      ['run', 'job', '--ttl', '3s', '--grace', '5s', '--', 'true'],
      'got --grace 5s with --ttl 3s, which allows 1s',
    ],
    [
      'a --grace a little above a third of the TTL',
      ['run', 'job', '--grace', '10001ms', '--', 'true'],
      'at most a third of --ttl',
    ],
    ['an empty --label', ['run', 'job', '--label', '', '--', 'true'], '--label must have'],
    ['--conflict-exit-code 256', ['run', 'job', '--conflict-exit-code', '256', '--', 'true'], '0 to 255'],
    ['--conflict-exit-code no', ['run', 'job', '--conflict-exit-code', 'no', '--', 'true'], '0 to 255'],
    ['an unknown option', ['run', 'job', '--wiat', '5s', '--', 'true'], '(Did you mean --wait?)'],
    [
      '--local with a URL',
      ['run', 'job', '--local', '--database-url', 'postgres://h', '--', 'true'],
      'not both',
    ],
  ] as const)('is 64 for wrong usage, before any database is asked: %s', async ([, args, message]) => {
    // The port is one that nothing listens on: asking it would be answered with 69.
    const result = await runCli(args, { url: 'postgres://127.0.0.1:1/none' })
    expect(result.stderr).toContain(message)
    expect(result).toMatchObject({ code: 64, stdout: '' })
  })

  test('is 64 when no database is named, and the message names --database-url and --local', async () => {
    const marker = bench.newFile()
    const result = await runCli(['run', 'job', '--', 'touch', marker])
    expect(result).toMatchObject({ code: 64, stdout: '' })
    expect(result.stderr).toMatch(/--database-url.*--local/)
    expect(existsSync(marker)).toBe(false)
  })

  test('is 69 when the local server cannot be started', async () => {
    const result = await runCli(['run', 'job', '--local', '--', 'true'], {
      env: { FENCEPOST_LOCAL_DIR: '/dev/null/fencepost' },
    })
    expect(result).toMatchObject({ code: 69, stdout: '' })
  })

  test('is 64 for an empty --database-url, whatever the environment names', async () => {
    const result = await runCli(['run', 'job', '--database-url', '', '--', 'true'], {
      url: bench.database.url,
    })
    expect(result).toMatchObject({ code: 64, stdout: '' })
  })

  test.for([
    'mysql://u:geheim@h/db',
    'postgres://u:geheim@h:99999/db',
    'postgres://u:geheim%e9@h/db',
    'postgres://u:geheim@h/db?sslmode=verify-full&sslrootcert=/no/such/file',
  ])('is 64 for a URL that cannot be read, and does not repeat its password: %s', async (url) => {
    const result = await bench.run([bench.newName()], ['true'], url)
    expect(result).toMatchObject({ code: 64, stdout: '' })
    expect(result.stderr).toContain('the database URL')
    expect(result.stderr).not.toContain('geheim')
  })

  test('is 69 when the database cannot be used, and the command is not started', async () => {
    await bench.database.query(`create role run_refused login password 'richtig'`)
    try {
      const cases = {
        'cannot be reached': 'postgres://u:geheim@127.0.0.1:1/none',
        'refused the user name or the password': bench.database.urlAs('run_refused', 'geheim'),
        'has no database of that name': `${bench.database.url}_geheim_none`,
        'Run "fencepost migrate"': empty.url,
      }
      for (const [message, url] of Object.entries(cases)) {
        const marker = bench.newFile()
        const result = await bench.run([bench.newName(), '--wait', '1m'], ['touch', marker], url)
        expect(result).toMatchObject({ code: 69, stdout: '' })
        expect(result.stderr).toContain(message)
        expect(result.stderr).not.toContain('geheim')
        expect(existsSync(marker)).toBe(false)
      }
    } finally {
      await bench.database.query('drop role run_refused')
    }
  })

  describe('when somebody else holds the lease', () => {
    test.for([
      ['75', [], 75],
      ['75 after a wait', ['--wait', '300ms'], 75],
      ['the one asked for', ['--conflict-exit-code', '3'], 3],
      ['75 without a wait', ['--no-wait'], 75],
      ['75 when it is to fail', ['--on-conflict', 'fail'], 75],
      ['0 when skipping is fine', ['--conflict-exit-code', '0'], 0],
      ['0 when it is to be skipped', ['--on-conflict', 'skip'], 0],
      ['75 also when it is to be quiet', ['--quiet'], 75],
    ] as const)('is %s, and the command is not started', async ([, options, code]) => {
      const name = bench.newName()
      const marker = bench.newFile()
      const holder = await bench.database.open({ label: 'the-other-one' })
      await holder.acquire(name)
      const result = await bench.run([name, ...options], ['touch', marker])
      expect(result).toMatchObject({ code, stdout: '' })
      expect(result.stderr).toMatch(/was not granted .* held by the-other-one/)
      expect(existsSync(marker)).toBe(false)
      expect(await bench.stateOf(name)).toBe('held')
    })

    test.for(['1m', 'forever'])(
      "is the command's own when the lease becomes free within --wait %s",
      async (wait) => {
        const name = bench.newName()
        const holder = await bench.database.open()
        const lease = await holder.acquire(name)
        const cli = new Cli(['run', name, '--wait', wait, '--quiet', '--', 'sh', '-c', 'exit 5'], {
          url: bench.database.url,
        })
        await bench.isWaiting(cli)
        await lease.release()
        expect(await cli.closed).toMatchObject({ code: 5, stderr: '' })
      },
    )
  })
})
