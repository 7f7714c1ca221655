import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { describe, expect, onTestFinished, test } from 'vitest'
import { eventually, isGone } from '../support/cli.ts'
import { program } from '../support/main-program.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { RunBench } from './run-bench.ts'

const bench = new RunBench()
const { database } = bench

/** Fields of /proc/PID/stat: the state, then the numbers of parent, group and session. */
function statOf(pid: number): string[] {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
}

const isStopped = (pid: number): boolean => statOf(pid)[0] === 'T'

/** Ignores TERM, and says its number. Without its output it could not keep the wrapper's pipes open either. */
const stubborn = `sh -c 'trap "" TERM; echo "$$ ready"; exec sleep 100 >/dev/null 2>&1'`

function pidsOf(stdout: string): number[] {
  return stdout.match(/\d+/g)!.map(Number)
}

describe('a wrapper that is killed', () => {
  test('leaves a command that gets TERM, and time to clean up', async () => {
    const marker = bench.newFile()
    const script = `trap "touch ${marker}; exit" TERM; echo "$$ ready"; while test -d ${dirname(marker)}; do sleep 0.01; done`
    const cli = await bench.startReady([bench.newName(), '--ttl', '1h'], ['sh', '-c', script])
    cli.signal('SIGKILL')
    await eventually(() => isGone(pidsOf(cli.stdout)[0]!))
    expect(existsSync(marker)).toBe(true)
  })

  test.for([
    ['of its group', stubborn],
    ['of another group of its session', `timeout 100 ${stubborn}`],
  ] as const)(
    'leaves nothing of it by the time the lease is granted to another: a process %s that ignores TERM',
    async ([, background]) => {
      const name = bench.newName()
      const cli = await bench.startReady(
        [name, '--ttl', '2s', '--grace', '400ms'],
        ['sh', '-c', `${background} & trap "" TERM; wait`],
      )
      cli.signal('SIGKILL')
      const successor = await database.open()
      await successor.acquire(name, { wait: '20s' })
      expect(pidsOf(cli.stdout).map(isGone)).toEqual([true])
    },
  )

  test('leaves what was started with setsid, which is meant to stay', async () => {
    const cli = await bench.startReady(
      [bench.newName(), '--grace', '0s'],
      ['sh', '-c', 'setsid sh -c \'echo "$$"; exec sleep 100 >/dev/null\' & echo "$$ ready"; wait'],
    )
    await eventually(() => pidsOf(cli.stdout).length === 2)
    const command = Number(/(\d+) ready/.exec(cli.stdout)![1])
    const stays = pidsOf(cli.stdout).find((pid) => pid !== command)!
    onTestFinished(() => void process.kill(stays, 'SIGKILL'))
    cli.signal('SIGKILL')
    await eventually(() => isGone(command))
    expect(isGone(stays)).toBe(false)
  })

  test('leaves nothing of a command in the foreground either', async () => {
    const cli = await bench.startReady(
      [bench.newName(), '--foreground'],
      ['sh', '-c', 'sleep 100 & echo "$$ $! ready"; wait'],
    )
    expect(pidsOf(cli.stdout).map(isGone)).toEqual([false, false])
    cli.signal('SIGKILL')
    await eventually(() => pidsOf(cli.stdout).every(isGone))
  })
})

describe('a wrapper that is stopped at the terminal (TSTP)', () => {
  test('stops the command with it, says so, and goes on with it', async () => {
    const cli = await bench.startReady(
      [bench.newName(), '--ttl', '1d'],
      ['sh', '-c', 'echo "$$ ready"; read line; echo "read $line"'],
    )
    const [command] = pidsOf(cli.stdout)
    cli.signal('SIGTSTP')
    await cli.says('stopped, and the command with it', 'stderr')
    await eventually(() => isStopped(cli.pid) && isStopped(command!))
    cli.tell('on')
    cli.signal('SIGCONT')
    expect(await cli.closed).toMatchObject({ code: 0, stdout: `${command} ready\nread on\n` })
  })

  test('for longer than the lease lasts never lets the command run again', async () => {
    const name = bench.newName()
    const marker = bench.newFile()
    const cli = await bench.startReady(
      [name, '--ttl', '1s', '--grace', '300ms'],
      ['sh', '-c', `trap "touch ${marker}" TERM EXIT; echo ready; read line`],
    )
    cli.signal('SIGTSTP')
    await cli.says('stopped, and the command with it', 'stderr')
    const successor = await database.open()
    await successor.acquire(name, { wait: '20s' })
    cli.tell('too late')
    cli.signal('SIGCONT')
    expect(await cli.closed).toMatchObject({ code: 70 })
    expect(existsSync(marker)).toBe(false)
  })
})

test('a command that is stopped itself is continued, so that TERM reaches it when the lease is lost', async () => {
  const name = bench.newName()
  const marker = bench.newFile()
  const script = `trap "touch ${marker}; exit" TERM; echo "$$ ready"; while test -d ${dirname(marker)}; do sleep 0.01; done`
  const cli = await bench.startReady([name, '--ttl', '3s', '--grace', '1s'], ['sh', '-c', script])
  const [command] = pidsOf(cli.stdout)
  process.kill(command!, 'SIGSTOP')
  await eventually(() => isStopped(command!))
  await bench.steal(name)
  expect(await cli.closed).toMatchObject({ code: 70 })
  expect(existsSync(marker)).toBe(true)
})

test('a command whose output nobody reads any more ends as it would alone, and the lease is given back', async () => {
  const name = bench.newName()
  const cli = await bench.startReady([name], ['sh', '-c', 'echo ready; read line; echo more; exit 3'])
  cli.hangUp('stdout')
  cli.tell('')
  // SIGPIPE has its usual meaning for the command, whatever Node does with its own.
  expect(await cli.closed).toMatchObject({ code: 141, signal: null, stderr: '' })
  expect(await bench.stateOf(name)).toBe('free')
})

describe('a command in the foreground', () => {
  test('shares the process group, and one that is not has a session of its own', async () => {
    for (const options of [[], ['--foreground']]) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other is what is compared.
      const cli = await bench.startReady(
        [bench.newName(), ...options],
        ['sh', '-c', 'echo "$$ ready"; read line'],
      )
      const [command] = pidsOf(cli.stdout)
      const [, , group, session] = statOf(cli.pid)
      const shared = statOf(command!).slice(2, 4)
      const own = [String(command), String(command)]
      expect(shared).toEqual(options.length === 0 ? own : [group, session])
      cli.tell('')
      // oxlint-disable-next-line no-await-in-loop -- As above.
      expect(await cli.closed).toMatchObject({ code: 0, stderr: '' })
    }
  })

  test.for([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('gets what is sent to the wrapper alone: %s', async ([signal, code]) => {
    const name = bench.newName()
    const cli = await bench.startReady(
      [name, '--foreground'],
      ['sh', '-c', 'sh -c \'echo "$$ ready"; exec sleep 100\'; exit 3'],
    )
    cli.signal(signal)
    expect(await cli.closed).toMatchObject({ code, stderr: '' })
    expect(pidsOf(cli.stdout).map(isGone)).toEqual([true])
    expect(await bench.stateOf(name)).toBe('free')
  })

  test('is ended when the lease is lost, with what has lost its parent, and the wrapper is not', async () => {
    const name = bench.newName()
    const cli = await bench.startReady(
      [name, '--foreground', '--ttl', '1s', '--grace', '200ms'],
      [
        'sh',
        '-c',
        `sh -c '${stubborn.replaceAll("'", `'\\''`)} & exit'; trap "" TERM; echo "$$ is there"; wait; exec sleep 100`,
      ],
    )
    await cli.says('is there')
    await bench.steal(name)
    expect(await cli.closed).toMatchObject({ code: 70, signal: null })
    expect(pidsOf(cli.stdout).map(isGone)).toEqual([true, true])
  })

  const hasTerminals = ((): boolean => {
    try {
      return execFileSync('script', ['-qec', 'tty', '/dev/null'], { stdio: ['ignore', 'pipe', 'ignore'] })
        .toString()
        .includes('/dev/')
    } catch {
      return false
    }
  })()

  test.skipIf(!hasTerminals).for([
    ['in the foreground', '--foreground', 'has a terminal'],
    ['in a session of its own', '--quiet', 'has none'],
  ] as const)('gets Ctrl-C from the terminal once: %s', async ([, option, terminalOrNone]) => {
    const file = bench.newFile()
    await writeFile(
      file,
      `
      let count = 0
      process.on('SIGINT', () => console.log(\`interrupted \${++count} times\`))
      process.on('SIGTERM', () => (console.log(\`ends after \${count}\`), process.exit(5)))
      setInterval(() => {}, 1000)
      let said = 'has none'
      try { require('fs').openSync('/dev/tty'); said = 'has a terminal' } catch {}
      console.log(\`\${process.pid} \${said}, ready\`)`,
    )
    // Without exec, some shells stay between and are ended by the key themselves.
    const run = `exec '${program.join("' '")}' run ${bench.newName()} ${option} -- '${process.execPath}' '${file}'`
    const terminal = new Outside('script', ['-qefc', run, '/dev/null'])
    await terminal.says(`${terminalOrNone}, ready`)
    terminal.type('\x03')
    await terminal.says('interrupted 1 times')
    // By way of the wrapper, which would pass the key on before.
    process.kill(Number(statOf(pidsOf(terminal.output)[0]!)[1]), 'SIGTERM')
    expect(await terminal.closed).toBe(5)
    expect(terminal.output).toContain('ends after 1')
  })
})

/** A program that is not the command line itself, but has it within. */
class Outside {
  readonly #child: ChildProcess
  readonly closed: Promise<number | null>
  output = ''

  constructor(file: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    this.#child = spawn(file, args, {
      env: { ...process.env, FENCEPOST_DATABASE_URL: database.url, ...env },
      stdio: 'pipe',
    })
    for (const stream of [this.#child.stdout!, this.#child.stderr!])
      stream.setEncoding('utf8').on('data', (text: string) => (this.output += text))
    this.closed = new Promise((resolve) => this.#child.once('close', resolve))
    onTestFinished(() => void this.#child.kill('SIGKILL'))
  }

  get pid(): number {
    return this.#child.pid!
  }

  type(text: string): void {
    this.#child.stdin!.write(text)
  }

  async says(text: string): Promise<void> {
    await eventually(() => {
      if (this.#child.exitCode !== null) throw new Error(`ended without "${text}":\n${this.output}`)
      return this.output.includes(text)
    })
  }
}

const namespace = ['--pid', '--fork', '--mount-proc', '--kill-child']
const hasNamespaces = ((): boolean => {
  try {
    execFileSync('unshare', [...namespace, 'true'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
})()

describe.skipIf(!hasNamespaces)('as the first process of a container', () => {
  const start = (command: string, env: NodeJS.ProcessEnv = {}): Outside => {
    const args = [...program, 'run', bench.newName(), '--', 'sh', '-c', command]
    return new Outside('unshare', [...namespace, ...args], env)
  }

  /** The number that the first process of the namespace has out here. */
  const firstOf = (unshare: Outside): number =>
    Number(readFileSync(`/proc/${unshare.pid}/task/${unshare.pid}/children`, 'latin1').trim())

  test('a run is ended by TERM, and passes the code on', async () => {
    const container = start('trap "exit 4" TERM; echo ready; while read line; do :; done; exec sleep 100')
    await container.says('ready')
    process.kill(firstOf(container), 'SIGTERM')
    // A shell runs its trap when the line it reads has come.
    container.type('\n'.repeat(10))
    expect(await container.closed).toBe(4)
  })

  test('a run hears TERM while it still connects, and starts nothing', async () => {
    const proxy = await TcpProxy.start(database.url)
    onTestFinished(() => proxy.stop())
    proxy.drop()
    const container = start('echo started', { FENCEPOST_DATABASE_URL: proxy.url })
    await eventually(() => proxy.connections > 0)
    process.kill(firstOf(container), 'SIGTERM')
    expect(await container.closed).toBe(143)
    expect(container.output).toBe('')
  })

  test('a run says once that zombies stay without --init', async () => {
    const container = start("sh -c 'sleep 0 & exec true'; sh -c 'sleep 0 & exec true'; echo ready; read line")
    await container.says('--init')
    container.type('on\n')
    expect(await container.closed).toBe(0)
    expect(container.output.match(/zombies/g)).toHaveLength(1)
  })
})
