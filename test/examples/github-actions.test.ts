import { execFile } from 'node:child_process'
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { parse } from 'yaml'
import { eventually, isGone } from '../support/cli.ts'
import { exampleText } from '../support/example-app.ts'
import { PackedApp } from '../support/packed-app.ts'
import { Program, type ProgramResult } from '../support/program.ts'
import { closeGate, endsWithinMs, freshDatabase, readRun, stateOf } from './bench.ts'

interface Step {
  readonly name?: string
  readonly uses?: string
  readonly run?: string
}

interface Workflow {
  readonly concurrency: { readonly group: string; readonly 'cancel-in-progress': boolean }
  readonly defaults: { readonly run: { readonly shell: string } }
  readonly jobs: {
    readonly migrate: {
      readonly 'timeout-minutes': number
      readonly env: Readonly<Record<string, string>>
      readonly steps: readonly Step[]
    }
  }
}

const workflow = parse(await exampleText('github-actions.yml')) as Workflow
const job = workflow.jobs.migrate
const migrateScript = job.steps.find(({ name }) => name === 'Migrate')!.run!
const app = new PackedApp()
beforeEach((context) => context.skip(app.missing !== undefined, app.missing))

/** The words of the step's one command, as the shell sees them. */
function migrateWords(): string[] {
  const line = migrateScript.replaceAll('\\\n', ' ').trim()
  return [...line.matchAll(/"[^"]*"|[^\s"]+(?:"[^"]*")?/g)].map(([word]) => word.replaceAll('"', ''))
}

/** A runner of a repository: a checkout, in which each step of a job gets a shell of its own. */
class Runner {
  readonly #repository: string
  #folder = ''
  #count = 0

  constructor(repository: string) {
    this.#repository = repository
  }

  async create(): Promise<void> {
    this.#folder = await mkdtemp(join(tmpdir(), 'fencepost-runner-'))
    await cp(app.folder, this.#checkout, { recursive: true })
  }

  get #checkout(): string {
    return join(this.#folder, 'checkout')
  }

  /** What the first steps do, for the tests that begin after them. */
  async install(): Promise<void> {
    const env = app.environment({ npm_config_offline: 'true' })
    await promisify(execFile)('npm', ['ci'], { cwd: this.#checkout, env })
  }

  async remove(): Promise<void> {
    if (this.#folder !== '') await rm(this.#folder, { recursive: true, force: true })
  }

  /** Starts a step as it is done for `shell: bash`. */
  async start(script: string, databaseUrl: string): Promise<Program> {
    this.#count += 1
    const file = join(this.#folder, `step-${this.#count}.sh`)
    await writeFile(file, script)
    const secrets: Readonly<Record<string, string>> = { DATABASE_URL: databaseUrl }
    const own = Object.entries(job.env).map(([name, value]) => [
      name,
      value.replaceAll(/\$\{\{ secrets\.(\w+) \}\}/g, (_, key: string) => secrets[key]!),
    ])
    const env = app.environment({
      ...(Object.fromEntries(own) as Record<string, string>),
      npm_config_offline: 'true',
      CI: 'true',
      GITHUB_REPOSITORY: this.#repository,
      GITHUB_RUN_ID: '4711',
      GITHUB_SERVER_URL: 'https://github.example',
    })
    const command = ['bash', '--noprofile', '--norc', '-eo', 'pipefail', file]
    return new Program(command, { cwd: this.#checkout, env })
  }

  async run(script: string, databaseUrl: string): Promise<void> {
    const result = await (await this.start(script, databaseUrl)).closed
    expect(result, `${script}: ${result.stderr}`).toMatchObject({ code: 0 })
  }
}

const shop = new Runner('acme/shop')
const backOffice = new Runner('acme/back-office')

beforeAll(async () => {
  await app.create()
  if (app.missing !== undefined) return
  for (const runner of [shop, backOffice]) await runner.create()
  await shop.install()
}, 180_000)
afterAll(async () => {
  for (const made of [shop, backOffice, app]) await made.remove()
})

test('the job runs in bash, holds the password in its environment alone, and leaves fencepost its time', () => {
  expect(workflow.defaults.run.shell).toBe('bash')
  expect(job.env).toEqual({ DATABASE_URL: '${{ secrets.DATABASE_URL }}' })
  const scripts = job.steps.map(({ run }) => run ?? '').join('\n')
  expect(scripts).not.toMatch(/npx|DATABASE_URL|secrets/)
  const [exec, program, ...words] = migrateWords()
  expect([exec, program]).toEqual(['exec', 'node_modules/.bin/fencepost'])
  const { settings, command } = readRun(words)
  expect(command).toEqual(['node', 'migrate.js'])
  expect(job['timeout-minutes'] * 60_000).toBeGreaterThan(settings.waitMs + settings.maxHoldMs!)
  // INT, TERM after 7.5 s and KILL 2.5 s later is what a cancelled job gets.
  expect(endsWithinMs(settings)).toBeLessThan(7500 + 2500)
})

test('of two repositories that deploy at once, one migrates and the other finds nothing to do', async () => {
  const database = await freshDatabase({ migrated: false })
  const before = job.steps.flatMap(({ run }) => (run === undefined || run === migrateScript ? [] : [run]))
  expect(before).toHaveLength(2)
  const prepare = async (runner: Runner): Promise<void> => {
    for (const script of before) await runner.run(script, database.url)
  }
  await Promise.all([shop, backOffice].map(prepare))
  const gate = await closeGate(database)
  const first = await shop.start(migrateScript, database.url)
  await gate.isReachedBy(1)
  const second = await backOffice.start(migrateScript, database.url)
  await second.says('held by acme/shop run 4711', 'stderr')
  const [holder] = await database.query('select meta from fencepost.holders where leases > 0')
  expect(holder).toEqual({ meta: { url: 'https://github.example/acme/shop/actions/runs/4711' } })
  await gate.open()
  expect(await first.closed).toMatchObject({ code: 0, stdout: 'applied 0001_accounts.sql\n', stderr: '' })
  expect(await second.closed).toMatchObject({ code: 0, stdout: 'nothing to do\n' })
})

test('a job that is cancelled gives the lease back before the runner kills it', async () => {
  const database = await freshDatabase()
  const gate = await closeGate(database)
  const step = await shop.start(migrateScript, database.url)
  await gate.isReachedBy(1)
  const result = await step.stop('SIGINT', 7500)
  expect(result).toMatchObject({ code: 130, isKilled: false })
  expect(await stateOf(database, 'deploy/shop')).toBe('free')
  await gate.open()
})

test('without exec the signals end with the shell', async () => {
  const database = await freshDatabase()
  const gate = await closeGate(database)
  const step = await shop.start(migrateScript.replace('exec ', ''), database.url)
  await gate.isReachedBy(1)
  step.signal('SIGTERM')
  await eventually(() => isGone(step.pid))
  expect(await stateOf(database, 'deploy/shop')).toBe('held')
  await gate.open()
  // What the shell has left behind still has its output.
  const { stdout }: ProgramResult = await step.closed
  expect(stdout).toBe('applied 0001_accounts.sql\n')
})

test('a job that finds the lease held for too long fails with 75', async () => {
  const database = await freshDatabase()
  const holder = await database.open()
  await holder.acquire('deploy/shop')
  const step = await shop.start(migrateScript.replace('--wait 10m', '--wait 0s'), database.url)
  expect(await step.closed).toMatchObject({ code: 75, stdout: '' })
})
