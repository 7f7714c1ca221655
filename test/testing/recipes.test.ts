import { execFile } from 'node:child_process'
import { readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { Document, UserProject } from '../support/user-project.ts'

const execute = promisify(execFile)
const database = useDatabase()
const document = await Document.read('docs/testing.md')
let project: UserProject

const compilerOptions = {
  module: 'nodenext',
  target: 'es2024',
  lib: ['es2024', 'esnext.disposable'],
  types: ['node'],
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  allowImportingTsExtensions: true,
  noEmit: true,
  skipLibCheck: true,
}

beforeAll(async () => {
  project = await UserProject.make(document.files)
  await project.write('tsconfig.json', JSON.stringify({ compilerOptions, include: ['*.ts'] }))
}, 120_000)

afterAll(() => project?.[Symbol.asyncDispose]())

function environment(more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  return { ...project.environment(database.url), NODE_ENV: 'test', NO_COLOR: '1', ...more }
}

interface Report {
  readonly success: boolean
  readonly numPassedTests: number
  readonly testResults: readonly {
    readonly assertionResults: readonly { readonly title: string; readonly status: string }[]
  }[]
}

/** What a run of vitest says, whether or not all of it has passed. */
async function vitest(...files: string[]): Promise<Report> {
  const options = { cwd: project.folder, env: environment(), timeout: 120_000 }
  const program = join(project.folder, 'node_modules/vitest/vitest.mjs')
  const report = join(project.folder, 'report.json')
  await rm(report, { force: true })
  const args = [program, 'run', '--reporter=json', `--outputFile=${report}`, ...files]
  const { stderr } = await execute(process.execPath, args, options).catch(
    (error: { stderr: string }) => error,
  )
  const text = await readFile(report, 'utf8').catch(() => {
    throw new Error(`vitest has told nothing: ${stderr}`)
  })
  return JSON.parse(text) as Report
}

describe(
  'docs/testing.md, as a project of its own with fencepost as it is published',
  { timeout: 120_000 },
  () => {
    test('type-checks', async () => {
      expect(await project.run(environment(), 'tsc', '-p', '.')).toBe('')
    })

    test('its vitest suites pass', async () => {
      const report = await vitest('settle.test.ts', 'own.test.ts')
      const failed = report.testResults.flatMap(({ assertionResults }) =>
        assertionResults.filter(({ status }) => status !== 'passed'),
      )
      expect(failed).toEqual([])
      const shown = [...document.files].filter(([name]) => name.endsWith('.test.ts'))
      expect(report.numPassedTests).toBe(shown.join().match(/^test\(/gm)!.length)
    })

    test('its suites fail for an application that writes without a fence and looks at nothing', async () => {
      const careless = document.files
        .get('settle.ts')!
        .replace(
          'lease.transaction(pool, async (client) => {',
          'Promise.resolve(pool).then(async (client) => {',
        )
      expect(careless).not.toBe(document.files.get('settle.ts'))
      await project.write('careless/settle.ts', careless)
      await project.write('careless/settle.test.ts', document.files.get('settle.test.ts')!)
      const report = await vitest('careless/settle.test.ts')
      const failed = report.testResults.flatMap(({ assertionResults }) =>
        assertionResults.filter(({ status }) => status === 'failed').map(({ title }) => title),
      )
      expect(failed.toSorted()).toEqual([
        'does not even try to write after the machine has slept',
        'is refused when its time has run out although nobody has taken over',
        'looks at the account when the answer to COMMIT is lost',
        'writes nothing when it stood still for too long while it paid',
      ])
    })

    test('its node:test suite passes', async () => {
      const out = await project.run(
        environment(),
        process.execPath,
        '--test',
        '--test-reporter=tap',
        'settle.node-test.ts',
      )
      expect(out).toMatch(/^# pass 1$/m)
      expect(out).toMatch(/^# fail 0$/m)
    })

    test('names every code of an error and every call', async () => {
      const declared = await Document.read('src/testing/test-kit-error.ts')
      for (const [, code] of declared.text.matchAll(/\| '(\w+)'/g)) expect(document.text).toContain(code)
      const kit = await Document.read('src/testing/test-fencepost.ts')
      const calls = [...kit.text.matchAll(/^ {2}(?:async )?([a-z]\w+)\(/gm)].map(([, name]) => name!)
      expect(calls.length).toBeGreaterThan(8)
      for (const name of calls.filter((each) => each !== 'constructor')) expect(document.text).toContain(name)
    })
  },
)
