import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFile, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { nodeProgram } from './installed.ts'
import type { Pair } from './options.ts'

export interface Result extends Pair {
  readonly passed: number
  readonly failed: number
  readonly skipped: number
  readonly seconds: number
  /** Of each test that was skipped. */
  readonly reasons: readonly string[]
}

export const nameOf = ({ postgres, node }: Pair): string => `PostgreSQL ${postgres}, Node ${node}`

const checkout = fileURLToPath(new URL('../../', import.meta.url))
const vitest = join(checkout, 'node_modules/vitest/vitest.mjs')
const reporters = ['default', 'test/support/summary-reporter.ts', 'test/matrix/skip-reporter.ts'].flatMap(
  (reporter) => ['--reporter', reporter],
)

/** Runs the tests on this pair, as `npm test` would, and says what became of them. Those skipped are told with their reasons. */
export async function runPair(pair: Pair, tests: readonly string[]): Promise<Result> {
  const began = performance.now()
  const node = await nodeProgram(pair.node)
  const folder = await mkdtemp(join(tmpdir(), 'fencepost-matrix-'))
  try {
    const [summary, skips, failures] = [
      join(folder, 'summary'),
      join(folder, 'skipped'),
      join(folder, 'failures'),
    ]
    const child = spawn(node, [vitest, 'run', ...reporters, ...tests], {
      cwd: checkout,
      stdio: 'inherit',
      env: {
        ...process.env,
        // What the tests start by the name of node is this one, too.
        PATH: `${dirname(node)}:${join(checkout, 'node_modules/.bin')}:${process.env['PATH'] ?? ''}`,
        FENCEPOST_TEST_SERVER: 'embedded',
        FENCEPOST_TEST_DATABASE_URL: '',
        FENCEPOST_TEST_POSTGRES: pair.postgres,
        FENCEPOST_TEST_SUMMARY: summary,
        FENCEPOST_TEST_FAILURES: failures,
        FENCEPOST_MATRIX_SKIPPED: skips,
      },
    })
    const [code] = await once(child, 'exit')
    const [said, reasons, why] = await Promise.all([whatIsIn(summary), whatIsIn(skips), whatIsIn(failures)])
    await passOn('FENCEPOST_TEST_SUMMARY', said)
    await passOn('FENCEPOST_TEST_FAILURES', why === '' ? '' : `== ${nameOf(pair)}\n${why}`)
    const counts = said === '' ? { passed: 0, failed: 0, skipped: 0 } : JSON.parse(said)
    return {
      ...pair,
      ...counts,
      // One that dies without giving its counts has failed.
      failed: code !== 0 && counts.failed === 0 ? 1 : counts.failed,
      reasons: reasons.split('\n').slice(0, -1),
      seconds: (performance.now() - began) / 1_000,
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function whatIsIn(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch {
    // Nothing was written, so there is no file.
    return ''
  }
}

/** To whoever has asked for it by naming a file. */
async function passOn(variable: string, text: string): Promise<void> {
  const file = process.env[variable]
  if (file !== undefined && file !== '') await appendFile(file, text)
}
