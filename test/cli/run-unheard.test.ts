import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { closeSync, constants, openSync, readFileSync } from 'node:fs'
import { describe, expect, onTestFinished, test } from 'vitest'
import { eventually, isGone } from '../support/cli.ts'
import { program } from '../support/main-program.ts'
import { Terminal, hasTerminal } from '../support/terminal.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()
const { database } = bench

/** Says its number, and goes on until it is ended. */
const patient = 'echo "$$ ready"; while read line; do :; done; exec sleep 100'
/** The same, with more on stderr than anything keeps for a reader. */
const wordy = `head -c 1000000 /dev/zero >&2 & ${patient}`

/** The wrapper, with a stderr that nobody reads. */
class Unheard {
  readonly child: ChildProcess
  readonly closed: Promise<number | null>
  #stdout = ''

  constructor(args: readonly string[], stderr: number | 'pipe', stdout: number | 'pipe' = 'pipe') {
    const env = { ...process.env, FENCEPOST_DATABASE_URL: database.url }
    this.child = spawn(program[0], [program[1], ...args], { env, stdio: ['pipe', stdout, stderr] })
    this.child.stdout?.setEncoding('utf8').on('data', (text: string) => (this.#stdout += text))
    this.child.stdin!.on('error', () => {})
    this.closed = new Promise((resolve) => this.child.once('exit', resolve))
    onTestFinished(() => {
      this.child.stdin!.end()
      this.child.kill('SIGKILL')
    })
  }

  /** The command's number. */
  async ready(): Promise<number> {
    await eventually(() => this.#stdout.includes('ready'))
    return Number.parseInt(this.#stdout, 10)
  }
}

function newPipe(): number {
  const path = bench.newFile()
  execFileSync('mkfifo', [path])
  const pipe = openSync(path, 'r+')
  onTestFinished(() => closeSync(pipe))
  return pipe
}

describe('a run whose stderr nobody reads', () => {
  test.for([
    ['a pipe', []],
    ['a pipe, with JSON', ['--json']],
  ] as const)('ends its command when the lease is lost, and itself: %s', async ([, options]) => {
    const name = bench.newName()
    const run = new Unheard(['run', name, '--ttl', '1s', ...options, '--', 'sh', '-c', wordy], newPipe())
    const command = await run.ready()
    await bench.steal(name)
    expect(await run.closed).toBe(70)
    expect(isGone(command)).toBe(true)
  })

  test('ends its command when the lease is lost, and itself: a socket', async () => {
    const name = bench.newName()
    const run = new Unheard(['run', name, '--ttl', '1s', '--', 'sh', '-c', wordy], 'pipe')
    const command = await run.ready()
    await bench.steal(name)
    expect(await run.closed).toBe(70)
    expect(isGone(command)).toBe(true)
  })

  test('renews the lease, passes signals on, and gives the lease back', async () => {
    const name = bench.newName()
    const run = new Unheard(['run', name, '--json', '--', 'sh', '-c', wordy], newPipe())
    const command = await run.ready()
    run.child.kill('SIGTERM')
    expect(await run.closed).toBe(143)
    expect(isGone(command)).toBe(true)
    expect(await bench.stateOf(name)).toBe('free')
  })

  test.skipIf(!hasTerminal)(
    'ends its command when the lease is lost: a terminal that is paused',
    async () => {
      const name = bench.newName()
      const args = ['run', name, '--ttl', '1s', '--', 'sh', '-c', patient]
      const terminal = new Terminal(args, { columns: 80, rows: 24 }, database.url)
      await eventually(() => terminal.shown.includes('ready'))
      const command = Number(/(\d+) ready/.exec(terminal.shown)![1])
      // Ctrl-S; what comes after it is echoed only when the terminal goes on.
      terminal.type('\u0013')
      terminal.type('paused')
      await bench.steal(name)
      await eventually(() => isGone(command))
      expect(terminal.shown).not.toContain('is lost')
      terminal.type('\u0011')
      expect(await terminal.closed).toBe(70)
    },
  )
})

test.skipIf(process.platform !== 'linux')(
  'a run that waits leaves the pipes of others as they are',
  async () => {
    const name = bench.newName()
    const holder = await database.open()
    await holder.acquire(name)
    const run = new Unheard(['run', name, '--wait', '1h', '--', 'true'], newPipe(), newPipe())
    await eventually(async () => {
      const rows = await database.query('select from fencepost.holder where pid = $1', [run.child.pid])
      return rows.length > 0
    })
    // Standard input is a pipe of the test's own.
    for (const fd of [1, 2]) {
      const [, flags] = /flags:\s*(\d+)/.exec(readFileSync(`/proc/${run.child.pid}/fdinfo/${fd}`, 'utf8'))!
      expect(Number.parseInt(flags!, 8) & constants.O_NONBLOCK, `descriptor ${fd}`).toBe(0)
    }
  },
)
