import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { runCli } from '../support/cli.ts'

const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}

test('the help of run names each of its exit codes', async () => {
  const { stdout } = await runCli(['run', '--help'])
  for (const code of ['128+n', '126', '127', '64', '69', '70', '75']) expect(stdout).toContain(code)
})

test('the help of run tells how long the grace is and how to leave something behind', async () => {
  const { stdout } = await runCli(['run', '--help'])
  expect(stdout.replaceAll(/\s+/g, ' ')).toContain('default: a sixth of the TTL, at most 5s')
  expect(stdout).toContain('setsid')
})

test('--version prints the version of the package', async () => {
  expect(await runCli(['--version'])).toEqual({
    code: 0,
    signal: null,
    stdout: `${manifest.version}\n`,
    stderr: '',
  })
})

test.for([
  ['an unknown command', ['rum'], 'Did you mean run?'],
  ['an unknown option', ['ls', '--jsn'], 'Did you mean --json?'],
  ['an unknown action of local', ['local', 'stat'], 'Did you mean start?'],
  ['an argument too many', ['ls', 'job', 'more'], 'too many arguments'],
  ['a command behind "--" that is not for run', ['holders', '--', 'true'], 'too many arguments'],
  ['an option without its value', ['ls', '--database-url'], 'argument missing'],
] as const)('%s is wrong usage: 64, with a hint', async ([, args, hint]) => {
  const result = await runCli(args)
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toContain(hint)
  expect(result.stderr).toContain('--help')
})

test('no command at all is wrong usage, and the help goes to stderr', async () => {
  const result = await runCli([])
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toContain('Usage: fencepost')
})
