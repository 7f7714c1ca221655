import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
const run = (...args: string[]) => runCli(['sequence', ...args], { url: database.url })
const role = `app_${randomBytes(4).toString('hex')}`

beforeAll(async () => {
  await database.query(`create role ${role} login password 'geheim'`)
  await Fencepost.migrate({ connectionString: database.url, grantTo: [role] })
})
afterAll(() => database.query(`drop owned by ${role}; drop role ${role}`))

test('sequence lists them, and sets the kind of one, which show tells', async () => {
  const fencepost = await database.open()
  await fencepost.acquire('counted')
  expect(JSON.parse((await run('--json')).stdout)).toEqual([
    { sequence: 'default', kind: 'counter', lastToken: '1', aheadMs: null },
  ])
  const turned = await run('default', '--kind', 'clock')
  expect(turned).toMatchObject({ code: 0, stderr: '' })
  expect(turned.stdout).toMatch(/^SEQUENCE +KIND +LAST TOKEN +AHEAD\ndefault +clock +1 +0\.0s\n$/)
  const { token } = await fencepost.acquire('by the clock')
  expect(token).toBeGreaterThan(1_000_000_000_000_000n)
  expect(JSON.parse((await run('default', '--json')).stdout)).toEqual({
    sequence: 'default',
    kind: 'clock',
    lastToken: token.toString(),
    aheadMs: 0,
  })
  const shown = await runCli(['show', 'by the clock'], { url: database.url })
  expect(shown.stdout).toMatch(/^sequence +default \(by the clock\)$/m)
  expect(shown.stdout).toMatch(new RegExp(`^token +${token}$`, 'm'))
})

test('sequence makes one that is not there, and one that nobody knows is 3', async () => {
  expect(await run('fresh')).toMatchObject({
    code: 3,
    stdout: '',
    stderr: 'fencepost: sequence "fresh" is unknown: nothing was drawn from it\n',
  })
  const made = await run('fresh', '--kind', 'clock', '--json')
  expect(JSON.parse(made.stdout)).toEqual({ sequence: 'fresh', kind: 'clock', lastToken: '0', aheadMs: 0 })
  expect(await run('fresh', '--kind', 'counter')).toMatchObject({ code: 0, stderr: '' })
})

test('an unknown kind, or a kind for no sequence, is wrong usage and changes nothing', async () => {
  const before = (await run('--json')).stdout
  for (const args of [
    ['default', '--kind', 'clocks'],
    ['--kind', 'counter'],
    ['default', '--kind'],
  ]) {
    expect(await run(...args)).toMatchObject({ code: 64, stdout: '' })
  }
  expect((await run('--json')).stdout).toBe(before)
})

test('an application’s role may look, and is told which right it lacks to change a kind', async () => {
  const url = database.urlAs(role, 'geheim')
  expect(await runCli(['sequence'], { url })).toMatchObject({ code: 0, stderr: '' })
  const refused = await runCli(['sequence', 'default', '--kind', 'counter'], { url })
  expect(refused).toMatchObject({ code: 69, stdout: '' })
  expect(refused.stderr).toContain('grant execute on function fencepost.set_sequence_kind(text, text)')
})
