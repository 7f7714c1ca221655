import { readFileSync } from 'node:fs'
import { beforeAll, expect, test } from 'vitest'
import { findingCodes } from '../../src/doctor/finding.ts'
import type { DoctorReport } from '../../src/index.ts'
import { Cli, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const healthy = useDatabase()
const sick = useDatabase()
const empty = useDatabase({ migrated: false })

beforeAll(async () => {
  await sick.query('create table accounts (id integer primary key)')
  await sick.query(`select fencepost.protect('accounts', 'settlement')`)
  await sick.query('alter table accounts alter fence_token set default 7')
  await sick.query('drop trigger fencepost_guard on accounts')
})

test('doctor of a healthy database ends with 0 and says what it looked at', async () => {
  const result = await runCli(['doctor'], { url: healthy.url })
  expect(result).toMatchObject({ code: 0, stderr: '' })
  expect(result.stdout).toMatch(/^Checked: the schema .*\n(.*\n)*.*clocks; what a pooler hands on\.\n/m)
  expect(result.stdout).not.toMatch(/^error/m)
  expect(result.stdout).toMatch(/\n\n(Nothing found|Found: .*)\.\n$/)
})

test('doctor prints errors first, each with its fix, and ends with 1', async () => {
  const result = await runCli(['doctor'], { url: sick.url })
  expect(result).toMatchObject({ code: 1, stderr: '' })
  expect(result.stdout).toContain(
    `error    trigger-missing  public.accounts
         public.accounts is protected, but lacks the trigger fencepost_guard.
         fix: fencepost protect public.accounts --lease settlement
`,
  )
  expect(result.stdout).toContain('warning  fence-default-missing  public.accounts\n')
  expect(result.stdout.indexOf('error ')).toBeLessThan(result.stdout.indexOf('warning '))
  expect(result.stdout).toMatch(/\nFound: 1 error, \d warnings?(, .*)?\.\n$/)
  expect(result.stdout).not.toMatch(/[ \t]+\n/)
  expect(result.stdout).not.toContain('\u001B')
})

test('doctor is coloured where colours are wanted', async () => {
  const result = await runCli(['doctor'], { url: sick.url, env: { FORCE_COLOR: '1' } })
  expect(result.stdout).toContain('\u001B[')
})

test('doctor --json is {findings, checked}, and --strict ends with 1 for a warning', async () => {
  await sick.query(`select fencepost.protect('accounts', 'settlement')`)
  const lenient = await runCli(['doctor', '--json'], { url: sick.url })
  expect(lenient).toMatchObject({ code: 0, stderr: '' })
  const report = JSON.parse(lenient.stdout) as DoctorReport
  expect(Object.keys(report)).toEqual(['findings', 'checked'])
  for (const finding of report.findings) {
    expect(Object.keys(finding)).toEqual(['code', 'severity', 'object', 'what', 'fix', 'fixKind'])
  }
  expect(report.findings[0]).toMatchObject({
    code: 'fence-default-missing',
    severity: 'warning',
    object: 'public.accounts',
    fixKind: 'sql',
  })
  expect(report.checked.length).toBeGreaterThan(10)
  expect(await runCli(['doctor', '--strict'], { url: sick.url })).toMatchObject({ code: 1, stderr: '' })
})

test('doctor of a database without the schema finds that, and one that cannot be reached is 69', async () => {
  const result = await runCli(['doctor'], { url: empty.url })
  expect(result).toMatchObject({ code: 1, stderr: '' })
  expect(result.stdout).toContain('fix: fencepost migrate\n')
  const gone = new URL(empty.url)
  gone.port = '1'
  const unreachable = await runCli(['doctor', '--json'], { url: gone.href })
  expect(unreachable).toMatchObject({ code: 69, stdout: '' })
  expect(unreachable.stderr).toMatch(/^fencepost: could not examine the database: .*\n$/)
  const refused = await runCli(['doctor'], { url: empty.urlAs('nobody_here', 'geheim') })
  expect(refused).toMatchObject({ code: 69, stdout: '' })
})

test('doctor without a database, and with an argument that it does not know, is wrong usage', async () => {
  expect(await runCli(['doctor'])).toMatchObject({ code: 64, stdout: '' })
  expect(await runCli(['doctor', '--fix'], { url: healthy.url })).toMatchObject({ code: 64, stdout: '' })
  expect(await runCli(['doctor', 'accounts'], { url: healthy.url })).toMatchObject({ code: 64, stdout: '' })
})

test('doctor in a shell that has a fence of its own does not take it for a leak', async () => {
  const result = await runCli(['doctor'], {
    url: healthy.url,
    env: { PGOPTIONS: '-c fencepost.fence=1:4b7e2d1c-0000-0000-0000-000000000000:settlement' },
  })
  expect(result).toMatchObject({ code: 0, stderr: '' })
})

test('doctor without a reader ends without a stack trace', async () => {
  const cli = new Cli(['doctor'], { url: healthy.url })
  cli.hangUp('stdout')
  expect(await cli.closed).toMatchObject({ signal: null, stderr: '' })
})

test('docs/doctor.md tells of every code there is, and of no other', () => {
  const page = readFileSync(new URL('../../docs/doctor.md', import.meta.url), 'utf8')
  const told = [...page.matchAll(/^\| `([a-z-]+)` \|/gm)].map(([, code]) => code!)
  expect(told.toSorted()).toEqual(Object.keys(findingCodes).toSorted())
})
