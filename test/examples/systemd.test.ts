import { execFile, spawnSync } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { eventually, isGone } from '../support/cli.ts'
import type { TestDatabase } from '../support/database.ts'
import { exampleText, useExampleApp } from '../support/example-app.ts'
import { Program } from '../support/program.ts'
import { Systemd, systemdReason } from '../support/systemd.ts'
import { closeGate, endsWithinMs, freshDatabase, readRun, stateOf } from './bench.ts'
import { UnitFile } from './unit-file.ts'

const app = useExampleApp()
const serviceText = await exampleText('fencepost-migrate.service')
const timerText = await exampleText('fencepost-migrate.timer')
const service = new UnitFile(serviceText)
const timer = new UnitFile(timerText)
const [program, ...words] = service.get('Service', 'ExecStart').split(' ')
const run = readRun(words)
const lease = 'nightly/migrate'
const reason = systemdReason()
const hasAnalyze = spawnSync('systemd-analyze', ['--version']).status === 0

/** What systemd starts, with the app in another folder than the example's. */
function startService(database: TestDatabase, command = words): Program {
  const at = service.get('Service', 'WorkingDirectory')
  return new Program([program!.replace(at, app.folder), ...command], {
    cwd: app.folder,
    env: app.environment({ DATABASE_URL: database.url }),
  })
}

/** What KillMode=mixed does: TERM to the main process alone, KILL when TimeoutStopSec is over. */
function stop(main: Program): ReturnType<Program['stop']> {
  expect(service.get('Service', 'KillMode')).toBe('mixed')
  return main.stop('SIGTERM', service.span('Service', 'TimeoutStopSec'))
}

describe('the units', () => {
  test('are found correct by systemd', async (context) => {
    context.skip(!hasAnalyze, 'systemd-analyze is not installed')
    const folder = await mkdtemp(join(tmpdir(), 'fencepost-units-'))
    onTestFinished(() => rm(folder, { recursive: true, force: true }))
    const verify = async (text: string): Promise<string> => {
      const unit = join(folder, 'fencepost-migrate.service')
      await writeFile(unit, text.replaceAll('/srv/shop', app.folder))
      await writeFile(join(folder, 'fencepost-migrate.timer'), timerText)
      const options = ['verify', '--man=no', unit, join(folder, 'fencepost-migrate.timer')]
      // It fails for what it does not know only when the program is not there, and else tells on stderr.
      const { stderr } = await promisify(execFile)('systemd-analyze', options)
      return stderr
    }
    expect(await verify(serviceText)).toBe('')
    expect(await verify(serviceText.replace('KillMode=mixed', 'KillMode=mixd'))).toContain('mixd')
  })

  test('need no quoting of their command, which names npx and a password nowhere', () => {
    expect(service.get('Service', 'ExecStart')).toMatch(/^[\w/.\- ]+$/)
    expect(program).toBe('/srv/shop/node_modules/.bin/fencepost')
    expect(run.command).toEqual(['node', 'migrate.js'])
    expect(service.has('Service', 'Environment')).toBe(false)
  })

  test('leave fencepost the time that it takes, twice over', () => {
    const { settings } = run
    expect(service.span('Service', 'TimeoutStopSec')).toBeGreaterThan(2 * endsWithinMs(settings))
    expect(service.span('Service', 'TimeoutStartSec')).toBeGreaterThan(settings.waitMs + settings.maxHoldMs!)
  })

  test('start the hosts closer together than the minimum hold lasts', () => {
    const spread = timer.span('Timer', 'RandomizedDelaySec') + timer.span('Timer', 'AccuracySec')
    expect(run.settings.minHoldMs).toBeGreaterThan(1.5 * spread)
    expect(timer.has('Timer', 'Persistent')).toBe(false)
  })
})

describe('the service', () => {
  test('migrates on one host, and is skipped with 0 on one that starts meanwhile, or a moment later', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const first = startService(database)
    await gate.isReachedBy(1)
    const meanwhile = await startService(database).closed
    expect(meanwhile).toMatchObject({ code: 0, stdout: '' })
    expect(meanwhile.stderr).toContain('The command is skipped')
    await gate.open()
    expect(await first.closed).toMatchObject({ code: 0, stdout: 'applied 0001_accounts.sql\n', stderr: '' })
    expect(await stateOf(database, lease)).toBe('withheld')
    expect(await startService(database).closed).toMatchObject({ code: 0, stdout: '' })
  })

  test('without the minimum hold would run again on a host that is late', async () => {
    const database = await freshDatabase()
    const without = words.toSpliced(words.indexOf('--min-hold'), 2)
    expect(await startService(database, without).closed).toMatchObject({ code: 0 })
    expect(await startService(database, without).closed).toMatchObject({ code: 0, stdout: 'nothing to do\n' })
  })

  test('that is stopped ends with its command, and gives the lease back before KILL', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const main = startService(database)
    await gate.isReachedBy(1)
    expect(await stop(main)).toMatchObject({ code: 143, isKilled: false, stdout: '' })
    // Given back, and withheld until the minimum hold is over.
    expect(await stateOf(database, lease)).toBe('withheld')
    await gate.open()
  })

  test('that is stopped ends what its command leaves behind by itself, after the grace', async () => {
    const database = await freshDatabase()
    // A shorter grace than the example's, for the sake of the test, which has a process that ignores TERM.
    const own = words.slice(0, words.indexOf('--')).with(words.indexOf('--grace') + 1, '300ms')
    const stubborn = `trap "" TERM; echo "$$ ready"; exec sleep 100 >/dev/null 2>&1`
    const command = ['sh', '-c', `sh -c '${stubborn}' & wait`]
    const main = startService(database, [...own, '--', ...command])
    await main.says('ready')
    const leftBehind = Number.parseInt(main.stdout, 10)
    expect(await stop(main)).toMatchObject({ code: 143, isKilled: false })
    expect(isGone(leftBehind)).toBe(true)
    expect(await stateOf(database, lease)).toBe('withheld')
  })
})

/** Says how often it gets TERM, and takes a while to end, in which a second one would come. */
const counter = `
process.on('SIGTERM', () => {
  console.log('TERM')
  setTimeout(() => process.exit(143), 500)
})
setInterval(() => {}, 60_000)
console.log('ready')
`

describe('under systemd itself', () => {
  const name = 'fencepost-migrate.service'
  const start = (database: TestDatabase, text = serviceText): Promise<Systemd> =>
    app
      .nameDatabase(database.url)
      .then(() => Systemd.start(app.folder, { [name]: text, 'fencepost-migrate.timer': timerText }))
  beforeEach((context) => context.skip(reason !== undefined, reason))

  test('the service migrates, and is skipped the next time, which is a success', async () => {
    const database = await freshDatabase()
    const systemd = await start(database)
    await systemd.systemctl('start', name)
    expect(await systemd.output()).toBe('applied 0001_accounts.sql\n')
    await systemd.systemctl('start', name)
    expect(await systemd.show(name, 'Result', 'ExecMainStatus')).toEqual({
      Result: 'success',
      ExecMainStatus: '0',
    })
    expect(await systemd.output()).toContain('The command is skipped')
  })

  test('a service that is stopped has given the lease back, and has not failed', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const systemd = await start(database)
    await systemd.systemctl('start', '--no-block', name)
    await gate.isReachedBy(1)
    // Its own user, who cannot read the file that the password came from.
    expect(await systemd.show(name, 'UID')).toEqual({ UID: systemd.shopUser })
    await systemd.systemctl('stop', name)
    expect(await stateOf(database, lease)).toBe('withheld')
    expect(await systemd.show(name, 'ActiveState', 'Result')).toEqual({
      ActiveState: 'inactive',
      Result: 'success',
    })
    expect(await systemd.output()).toBe('')
    await gate.open()
  })

  test('its command gets TERM once', async () => {
    const database = await freshDatabase()
    await writeFile(join(app.folder, 'counter.js'), counter)
    const systemd = await start(database, serviceText.replace('node migrate.js', 'node counter.js'))
    await systemd.systemctl('start', '--no-block', name)
    await eventually(async () => (await systemd.output()) === 'ready\n')
    await systemd.systemctl('stop', name)
    expect(await systemd.output()).toBe('ready\nTERM\n')
  })

  test('the timer starts it between half past three and five minutes later', async () => {
    const database = await freshDatabase()
    const systemd = await start(database)
    await systemd.systemctl('start', 'fencepost-migrate.timer')
    const { Unit, NextElapseUSecRealtime } = await systemd.show(
      'fencepost-migrate.timer',
      'Unit',
      'NextElapseUSecRealtime',
    )
    expect(Unit).toBe(name)
    expect(NextElapseUSecRealtime).toMatch(/ 03:3[0-5]:\d\d /)
  })
})
