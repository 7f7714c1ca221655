import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { beforeEach, describe, expect, test } from 'vitest'
import { eventually } from '../support/cli.ts'
import { Cron, cronReason } from '../support/cron.ts'
import type { TestDatabase } from '../support/database.ts'
import { exampleText, useExampleApp } from '../support/example-app.ts'
import { Gate } from '../support/gate.ts'
import { Program, type ProgramResult } from '../support/program.ts'
import { freshDatabase, readRun, stateOf } from './bench.ts'

const app = useExampleApp()
const lease = 'nightly/settle'
const crontab = await exampleText('crontab')

/** As cron reads it: variables, and lines of five fields and a command. */
const lines = (await exampleText('crontab'))
  .split('\n')
  .filter((line) => line !== '' && !line.startsWith('#'))
const variables = new Map(
  lines.flatMap((line) => {
    const [, name, value] = /^(\w+)=(.*)$/.exec(line) ?? []
    return name === undefined ? [] : [[name, value!] as const]
  }),
)
const [, schedule, command] = /^((?:\S+ ){5})(.*)$/.exec(lines.at(-1)!)!
const words = /fencepost (run .*?) 2>&1\)/.exec(command!)![1]!.split(' ')

/** Starts the line on another host, in nothing but the environment that cron gives it. */
async function startJob(
  database: TestDatabase | { readonly url: string },
  environment: Readonly<Record<string, string>> = {},
): Promise<Program> {
  await app.nameDatabase(database.url)
  const env = {
    LOGNAME: 'shop',
    HOME: app.folder,
    PATH: '/usr/bin:/bin',
    ...Object.fromEntries(variables),
    ...environment,
  }
  const text = command!.replaceAll('/srv/shop', app.folder).replaceAll('/etc/shop', `${app.folder}/etc`)
  // The tests' Node stands in for the one of /usr/local/bin.
  env.PATH = env.PATH.replace('/usr/local/bin', app.bin)
  return new Program([variables.get('SHELL')!, '-c', text], { cwd: env.HOME, env })
}

const runJob = async (...args: Parameters<typeof startJob>): Promise<ProgramResult> =>
  (await startJob(...args)).closed

/** What cron would send to MAILTO: it mails what was printed, and nothing when that is nothing. */
const mailed = ({ stdout, stderr }: ProgramResult): string => stdout + stderr

async function accounts(database: TestDatabase): Promise<void> {
  await database.query(await readFile(join(app.folder, 'migrations/0001_accounts.sql'), 'utf8'))
  await database.query(`insert into accounts values (1, 'due'), (2, 'due'), (3, 'closed')`)
}

const reason = cronReason()

describe('the crontab', () => {
  test('has a line that cron reads as it stands', () => {
    expect(schedule!.trim()).toMatch(/^\d+ \d+ \* \* \*$/)
    expect(command).not.toMatch(/(?<!\\)%/)
    expect([...variables.keys()]).toEqual(['SHELL', 'PATH', 'MAILTO'])
    // cron expands nothing in the values.
    expect([...variables.values()].join('')).not.toMatch(/[$~"']/)
  })

  test('skips, holds no password and names no npx', () => {
    const { settings } = readRun(words)
    expect(settings).toMatchObject({ isSkippedOnConflict: true, waitMs: 0 })
    expect(settings.minHoldMs).toBeGreaterThan(60_000)
    expect(command).not.toMatch(/npx|postgres:/)
  })
})

describe('the line', () => {
  test('on two hosts at once runs once, skips once with 0, and mails nothing', async () => {
    const database = await freshDatabase()
    await accounts(database)
    const gate = await Gate.close(database, 'accounts')
    const first = await startJob(database)
    await gate.isReachedBy(1)
    const second = await runJob(database)
    expect([second.code, mailed(second)]).toEqual([0, ''])
    await gate.open()
    const ran = await first.closed
    expect([ran.code, mailed(ran)]).toEqual([0, ''])
    expect(await database.query('select status from accounts order by id')).toEqual([
      { status: 'settled' },
      { status: 'settled' },
      { status: 'closed' },
    ])
  })

  test('on a host whose clock is a moment behind does not run again', async () => {
    const database = await freshDatabase()
    await accounts(database)
    await runJob(database)
    expect(await stateOf(database, lease)).toBe('withheld')
    await database.query(`update accounts set status = 'due' where id = 1`)
    expect(await runJob(database)).toMatchObject({ code: 0 })
    expect(await database.query('select status from accounts where id = 1')).toEqual([{ status: 'due' }])
  })

  test('mails what the command said when it fails', async () => {
    const database = await freshDatabase()
    const failed = await runJob(database)
    expect(mailed(failed)).toContain('relation "accounts" does not exist')
  })

  test('mails that the database cannot be used, without the password', async () => {
    const failed = await runJob({ url: 'postgres://app:s3cret@127.0.0.1:1/app' })
    expect(mailed(failed)).toMatch(/^fencepost: .*127\.0\.0\.1/)
    expect(mailed(failed)).not.toContain('s3cret')
  })

  test('needs the PATH of the crontab: without it there is no Node to start with', async () => {
    const database = await freshDatabase()
    const failed = await runJob(database, { PATH: app.folder })
    expect(mailed(failed)).toMatch(/env: .*node.*: No such file or directory/)
  })
})

describe("under Debian's cron, as it is installed", () => {
  /** The whole crontab, but for the time: its job starts as soon as cron does. */
  const atOnce = crontab.replace(schedule!, '@reboot ')
  beforeEach((context) => context.skip(reason !== undefined, reason))

  test('the job runs, with a percent sign in its password, and mails nothing', async () => {
    const database = await freshDatabase()
    await accounts(database)
    await database.query(`create role cron_tester login superuser password '100%'`)
    try {
      await app.nameDatabase(database.urlAs('cron_tester', '100%25'))
      const cron = await Cron.start(app.folder, atOnce)
      await eventually(async () => (await stateOf(database, lease)) === 'withheld')
      await cron.isIdle()
      expect(await database.query(`select from accounts where status = 'settled'`)).toHaveLength(2)
      expect(await cron.mails()).toEqual([])
    } finally {
      await database.query('drop role cron_tester')
    }
  })

  test('the job is skipped while another host runs it, and mails nothing', async () => {
    const database = await freshDatabase()
    await accounts(database)
    const fencepost = await database.open()
    await fencepost.acquire(lease)
    await app.nameDatabase(database.url)
    const cron = await Cron.start(app.folder, atOnce)
    await eventually(async () => (await database.query('select from fencepost.holder')).length === 2)
    await cron.isIdle()
    expect(await database.query(`select from accounts where status = 'settled'`)).toEqual([])
    expect(await cron.mails()).toEqual([])
  })

  test('a job that fails is mailed', async () => {
    const database = await freshDatabase()
    await app.nameDatabase(database.url)
    const cron = await Cron.start(app.folder, atOnce)
    await eventually(async () => (await cron.mails()).length > 0)
    const [mail] = await cron.mails()
    expect(mail).toContain(`To: ${variables.get('MAILTO')}`)
    expect(mail).toContain('relation "accounts" does not exist')
  })

  test('a percent sign in a line ends its command', async () => {
    await app.nameDatabase('')
    const cron = await Cron.start(app.folder, '@reboot echo postgres://shop:100%25@db.example/shop\n')
    await eventually(async () => (await cron.mails()).length > 0)
    expect((await cron.mails())[0]).toMatch(/\n\npostgres:\/\/shop:100\n$/)
  })
})
