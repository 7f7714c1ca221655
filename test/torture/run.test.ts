import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, readFile, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, test } from 'vitest'

const program = fileURLToPath(new URL('../../torture/main.ts', import.meta.url))

let directory: string
let child: ChildProcess | undefined

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'fencepost-run-test-'))
  // The server may run as somebody else.
  await chmod(directory, 0o711)
})

afterEach(async () => {
  child?.kill('SIGTERM')
  await rm(directory, { recursive: true, force: true })
})

interface Run {
  readonly code: number | null
  readonly output: string
}

function start(args: readonly string[]): { said: () => string; ended: Promise<Run> } {
  let output = ''
  child = spawn(process.execPath, [program, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    // Whatever it leaves behind is found there.
    env: { ...process.env, TMPDIR: directory },
  })
  child.stdout!.on('data', (data: Buffer) => (output += data.toString()))
  child.stderr!.on('data', (data: Buffer) => (output += data.toString()))
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, output }))
  return { said: () => output, ended }
}

const left = async (): Promise<string[]> =>
  (await readdir(directory)).filter((name) => name.startsWith('fencepost-'))

test(
  'a short run with all faults finds nothing, and leaves nothing behind',
  { timeout: 120_000 },
  async () => {
    const report = join(directory, 'report.json')
    const { code, output } = await start(['--seconds', '12', '--seed', 'ci', '--report', report]).ended
    expect({ code, output }).toEqual({ code: 0, output: expect.stringContaining('no violation') })
    expect(JSON.parse(await readFile(report, 'utf8'))).toMatchObject({
      seed: 'ci',
      violations: [],
      casualties: [],
      rerun: 'npm run torture -- --seconds 12 --seed ci --faults all --clients 5 --leases 5',
    })
    const { grants, steps, faults } = JSON.parse(await readFile(report, 'utf8')) as {
      grants: number
      steps: number
      faults: Record<string, number>
    }
    expect(grants).toBeGreaterThan(5)
    expect(steps).toBeGreaterThan(grants)
    expect(Object.keys(faults).length).toBeGreaterThan(5)
    expect(await left()).toEqual([])
  },
)

test(
  'a safeguard that is taken out is found out, with the piece of history that shows it',
  { timeout: 120_000 },
  async () => {
    const { code, output } = await start(['--control', 'acquire-without-lock', '--seed', 'ci']).ended
    expect({ code, output }).toEqual({
      code: 0,
      output: expect.stringMatching(
        /terms-overlap: .*asks \(\d+\): acquire .*acquire-without-lock was caught after/s,
      ),
    })
  },
)

test('an interrupted run clears everything away', { timeout: 120_000 }, async () => {
  const { said, ended } = start(['--seconds', '600', '--seed', 'ci', '--faults', 'pause,crash'])
  await expect.poll(said).toContain('seed ci')
  await expect.poll(left).not.toEqual([])
  child!.kill('SIGINT')
  expect(await ended).toMatchObject({ code: 130 })
  expect(await left()).toEqual([])
})

test.each([
  [['--faults', 'nonsense'], 'knows no "nonsense"'],
  [['--seconds', '1h'], 'takes a whole number from 1 to 86400, not "1h"'],
])('wrong arguments, %j, are refused with code 2, and nothing is started', async (args, message) => {
  const { code, output } = await start(args).ended
  expect({ code, output }).toEqual({ code: 2, output: expect.stringContaining(message) })
  expect(await left()).toEqual([])
})

test('help goes to the standard output and fits into 100 columns', async () => {
  const { code, output } = await start(['--help']).ended
  expect(code).toBe(0)
  expect(Math.max(...output.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100)
})
