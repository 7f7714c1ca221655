import { execFile } from 'node:child_process'
import { globSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { beforeAll, describe, expect, test } from 'vitest'
import { runCli } from '../support/cli.ts'
import { Terminal, hasTerminal } from '../support/terminal.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const commands = [
  'run',
  'env',
  'migrate',
  'ls',
  'watch',
  'show',
  'holders',
  'release',
  'sequence',
  'raise-tokens',
  'purge',
  'protect',
  'unprotect',
  'protected',
  'doctor',
  'demo',
  'local',
  'local start',
  'local stop',
  'local status',
  'local url',
  'completion',
]
const askTheDatabase = commands.filter((command) => !/^(demo|local|completion)/.test(command))
const pages = new Map<string, string>()

beforeAll(async () => {
  for (const command of ['', ...commands]) {
    const args = [`${root}/src/cli/main.ts`, ...command.split(' ').filter(Boolean), '--help']
    pages.set(command, (await promisify(execFile)(process.execPath, args)).stdout)
  }
})

const page = (command: string): string => pages.get(command)!

describe('the help', () => {
  test('of the program names every command, in groups, and no other', () => {
    const named = [...page('').matchAll(/^ {2}([a-z-]+) (?:\[|<| ).* {2}\S/gm)].map(([, name]) => name)
    const top = commands.filter((command) => !command.includes(' '))
    expect(new Set(named)).toEqual(new Set([...top, 'help']))
    expect(page('')).not.toContain('\nCommands:')
  })

  test.for(commands)('of "%s" has a synopsis, its exit codes and an example', (command) => {
    expect(page(command)).toMatch(new RegExp(`^Usage: fencepost ${command} .*[<[]`))
    expect(page(command)).toMatch(/^Exit codes:\n(?: {2}.*\n)* {2}64 {2,}wrong usage/m)
    expect(page(command)).toMatch(new RegExp(`^Examples?:\\n.*fencepost ${command}`, 'm'))
    expect(page(command).includes('stdin')).toBe(command === 'run')
  })

  test.for(askTheDatabase)('of "%s" names what an unusable database is, and what names one', (command) => {
    const text = page(command).replaceAll(/\s+/g, ' ')
    expect(text).toMatch(/ 1 .* 69 the database cannot be used/)
    expect(text).toContain('Environment: FENCEPOST_DATABASE_URL, else DATABASE_URL, else PGHOST')
  })

  test.for(['', ...commands])('of "%s" fits 80 columns', (command) => {
    expect(
      page(command)
        .split('\n')
        .filter((line) => line.length > 80),
    ).toEqual([])
  })

  test('"fencepost help COMMAND" is the same', async () => {
    for (const command of ['', ...commands]) {
      const words = command.split(' ').filter(Boolean)
      expect(await runCli(['help', ...words]), command).toEqual({
        code: 0,
        signal: null,
        stdout: page(command),
        stderr: '',
      })
    }
  })

  test('of an unknown command is wrong usage', async () => {
    expect(await runCli(['help', 'rum'])).toMatchObject({ code: 64, stdout: '' })
  })

  test.skipIf(!hasTerminal)('fits narrow terminals too, but for what is to be copied', async () => {
    const terminal = new Terminal(['release', '--help'], { columns: 70, rows: 24 }, '')
    expect(await terminal.closed).toBe(0)
    const long = terminal.shown.split(/\r?\n/).filter((line) => line.length > 70)
    expect(long.filter((line) => !line.startsWith('  fencepost '))).toEqual([])
  })

  test('of the program, with that of env, lists every variable that the source reads', () => {
    // TZ and PATH reach the server of its own; the others are told where they matter.
    const told = new Set(['TZ', 'PATH', 'USER', 'PGSERVICE', 'NODE_ENV', 'FENCEPOST_DEMO_UNFENCED'])
    const read = globSync('src/**/*.ts', { cwd: root }).flatMap((file) =>
      [...readFileSync(`${root}/${file}`, 'utf8').matchAll(/\benv\['([A-Z_]+)'\]/g)].map(([, name]) => name!),
    )
    expect(read).toContain('PGDATABASE')
    for (const name of new Set(read)) if (!told.has(name)) expect(page('') + page('env')).toContain(name)
  })
})

test('every option that README and docs give to a command is one of its own', () => {
  const calls = ['README.md', ...globSync('docs/*.md', { cwd: root })].flatMap((file) => callsIn(file))
  expect(calls.length).toBeGreaterThan(30)
  for (const { where, command, options } of calls)
    for (const option of options)
      expect(page(command), where).toMatch(new RegExp(`^ +(-., )?${option}\\b`, 'm'))
})

/** The calls of fencepost in the code of a page, with their options up to a "--". */
function callsIn(file: string): { where: string; command: string; options: string[] }[] {
  const names = commands.toSorted((a, b) => b.length - a.length).join('|')
  const call = new RegExp(`\\bfencepost (${names})(?![\\w-])([^\`\\n|)]*)`, 'g')
  return [...readFileSync(`${root}/${file}`, 'utf8').matchAll(call)].map(([where, command, rest]) => ({
    where: `${file}: ${where}`,
    command: command!,
    options: (rest!.split(/ -- | {3,}/)[0]!.match(/(?<=[\s[])--[a-z][a-z-]*/g) ?? []) as string[],
  }))
}
