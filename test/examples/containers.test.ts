import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { parse } from 'yaml'
import { eventually } from '../support/cli.ts'
import { ExampleImage, buildReason, docker } from '../support/container-image.ts'
import type { TestDatabase } from '../support/database.ts'
import { exampleText } from '../support/example-app.ts'
import { Program, type ProgramResult } from '../support/program.ts'
import { closeGate, endsWithinMs, freshDatabase, readRun, stateOf } from './bench.ts'
import { type Job, podCommand } from './manifest.ts'

const dockerfile = fileURLToPath(new URL('../../examples/Dockerfile', import.meta.url))
const reason = await buildReason()
const image = new ExampleImage()
const lease = 'deploy/shop'

beforeAll(async () => {
  if (reason === undefined) await image.build(dockerfile)
}, 240_000)
afterAll(async () => {
  if (reason === undefined) await image.remove()
})
beforeEach((context) => context.skip((reason ?? image.missing) !== undefined, reason ?? image.missing))

let count = 0

/** `docker run`, as the comment in the Dockerfile has it, in the network of the tests' server. */
class Container {
  readonly name: string
  readonly #client: Program

  constructor(database: TestDatabase, options: readonly string[] = [], command: readonly string[] = []) {
    count += 1
    this.name = `fencepost-example-${process.pid}-${count}`
    const asShown = ['--rm', '--stop-timeout', '30', '-e', 'DATABASE_URL']
    const own = ['--network', 'host', '--name', this.name]
    const env = { PATH: process.env['PATH']!, DATABASE_URL: database.url }
    this.#client = new Program(['docker', 'run', ...asShown, ...own, ...options, image.tag, ...command], {
      env,
    })
    onTestFinished(() => {
      try {
        execFileSync('docker', ['rm', '--force', this.name], { stdio: 'ignore' })
      } catch {
        // It is gone.
      }
    })
  }

  get closed(): Promise<ProgramResult> {
    return this.#client.closed
  }

  says(text: string, from: 'stdout' | 'stderr'): Promise<void> {
    return this.#client.says(text, from)
  }

  get stderr(): string {
    return this.#client.stderr
  }

  /** The image's signal, and KILL when the container's time is over, or after so many seconds. Says how long it took. */
  async stop(seconds?: number): Promise<ProgramResult & { readonly tookMs: number }> {
    const began = performance.now()
    await docker('stop', ...(seconds === undefined ? [] : ['--time', String(seconds)]), this.name)
    return { ...(await this.closed), tookMs: performance.now() - began }
  }
}

describe('the image', () => {
  test('is one that no shell stands in front of, and that names its signal itself', async () => {
    const config = JSON.parse(await docker('inspect', '--format', '{{json .Config}}', image.tag)) as {
      readonly Entrypoint: string[]
      readonly Cmd: string[]
      readonly StopSignal: string
    }
    // What it is built on here has another signal.
    expect(config.StopSignal).toBe('SIGTERM')
    expect(config.Entrypoint[0]).toBe('node_modules/.bin/fencepost')
    const { settings } = readRun([...config.Entrypoint.slice(1), ...config.Cmd])
    expect(2 * endsWithinMs(settings)).toBeLessThan(30_000)
    expect(settings.isSkippedOnConflict).toBe(false)
  })

  test('migrates with fencepost as the first process, and prints what the command prints', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const container = new Container(database)
    await gate.isReachedBy(1)
    const processes = await docker('exec', container.name, 'sh', '-c', 'tr "\\0" " " </proc/1/cmdline')
    expect(processes).toBe(`node node_modules/.bin/fencepost run ${lease} --wait 10m -- node migrate.js`)
    await gate.open()
    expect(await container.closed).toEqual({
      code: 0,
      signal: null,
      stdout: 'applied 0001_accounts.sql\n',
      stderr: '',
    })
    expect(await stateOf(database, lease)).toBe('free')
  })

  test('has no password in its layers, and a container none in its arguments', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const container = new Container(database)
    await gate.isReachedBy(1)
    const shown = [
      await docker('history', '--no-trunc', image.tag),
      await docker('inspect', '--format', '{{json .Config}}', image.tag),
      await docker('inspect', '--format', '{{json .Path}}{{json .Args}}', container.name),
    ]
    for (const text of shown) expect(text).not.toMatch(/postgres(ql)?:\/\/|DATABASE_URL/)
    expect(await docker('inspect', '--format', '{{.Config.User}}', image.tag)).toBe('node')
    await gate.open()
    expect(await container.closed).toMatchObject({ code: 0 })
  })

  test('ends with 75 when the lease is held', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const first = new Container(database)
    await gate.isReachedBy(1)
    const second = new Container(database, [], [lease, '--no-wait', '--', 'node', 'migrate.js'])
    expect(await second.closed).toMatchObject({ code: 75, stdout: '' })
    await gate.open()
    expect(await first.closed).toMatchObject({ code: 0 })
  })

  test.for([
    ['by itself', []],
    ['with --init', ['--init']],
  ] as const)('%s ends at docker stop, and has given the lease back', async ([, options]) => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const container = new Container(database, options)
    await gate.isReachedBy(1)
    const stopped = await container.stop()
    expect(stopped).toMatchObject({ code: 143, stdout: '' })
    expect(stopped.tookMs).toBeLessThan(20_000)
    expect(await stateOf(database, lease)).toBe('free')
    await gate.open()
  })
})

describe('orphans', () => {
  /** Leaves a process behind that ends when its parent has gone, and goes on until the container is stopped. */
  const script = `mkfifo /tmp/pipe; (cat /tmp/pipe & echo "$!" >/tmp/orphan); : >/tmp/pipe; echo ready; exec sleep 60`
  const leavesOrphan = [lease, '--', 'sh', '-c', script]
  /** The state of the orphan; nothing when it was reaped. */
  const stateOfOrphan = 'grep State "/proc/$(cat /tmp/orphan)/status" || true'

  test('stay as zombies, which it says once', async () => {
    const database = await freshDatabase()
    const container = new Container(database, [], leavesOrphan)
    await container.says('start the container with --init', 'stderr')
    expect(await docker('exec', container.name, 'sh', '-c', stateOfOrphan)).toContain('zombie')
    const { code, stderr } = await container.stop()
    expect(code).toBe(143)
    expect(stderr.match(/--init/g)).toHaveLength(1)
  })

  test('are reaped with --init', async () => {
    const database = await freshDatabase()
    const container = new Container(database, ['--init'], leavesOrphan)
    await container.says('ready', 'stdout')
    await eventually(async () => (await docker('exec', container.name, 'sh', '-c', stateOfOrphan)) === '')
    expect(await container.stop()).toMatchObject({ code: 143, stderr: '' })
  })
})

describe("the Job's container", () => {
  test('runs as its manifest says, and ends before the kubelet kills it', async () => {
    const { spec } = (parse(await exampleText('kubernetes-job.yaml')) as Job).spec.template
    const manifest = spec.containers[0]!
    expect(manifest.securityContext?.readOnlyRootFilesystem).toBe(true)
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const start = (name: string): Container => {
      const facts = { name, secrets: { 'shop-database/url': database.url } }
      const { command, env } = podCommand(manifest, facts)
      const [program, ...args] = command
      const user = ['--user', String(spec.securityContext.runAsUser)]
      const variable = ['-e', `POD_NAME=${env['POD_NAME']}`]
      const options = ['--read-only', '--entrypoint', program!, ...user, ...variable]
      return new Container(database, options, args)
    }
    const deleted = start('shop-migrate-a')
    await gate.isReachedBy(1)
    const next = start('shop-migrate-b')
    await next.says('held by shop-migrate-a', 'stderr')
    const stopped = await deleted.stop(spec.terminationGracePeriodSeconds)
    expect(stopped).toMatchObject({ code: 143 })
    await gate.open()
    expect(await next.closed).toMatchObject({ code: 0, stdout: 'applied 0001_accounts.sql\n' })
  })
})
