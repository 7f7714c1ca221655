import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { onTestFinished, vi } from 'vitest'
import { program } from './main-program.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface CliResult {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

export interface CliOptions {
  /** What the environment names as the database. */
  readonly url?: string
  readonly env?: Readonly<Record<string, string>>
}

/** The command line as a process of its own. */
export class Cli {
  readonly #child: ChildProcess
  readonly #closed: Promise<CliResult>
  #stdout = ''
  #stderr = ''

  constructor(args: readonly string[], options: CliOptions = {}) {
    const inherited = Object.entries(process.env).filter(
      ([name]) => !/^(FENCEPOST_|PG|DATABASE_URL$|NODE_OPTIONS$|FORCE_COLOR$)/.test(name),
    )
    this.#child = spawn(program[0], [program[1], ...args], {
      cwd: root,
      env: {
        ...Object.fromEntries(inherited),
        ...(options.url === undefined ? {} : { FENCEPOST_DATABASE_URL: options.url }),
        ...options.env,
      },
      stdio: 'pipe',
    })
    this.#child.stdout!.setEncoding('utf8').on('data', (text: string) => (this.#stdout += text))
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => (this.#stderr += text))
    // The command may be gone before it has read what it was told.
    this.#child.stdin!.on('error', () => {})
    const { promise, resolve, reject } = Promise.withResolvers<CliResult>()
    this.#closed = promise
    this.#child.once('close', (code, signal) => {
      const result = { code, signal, stdout: this.#stdout, stderr: this.#stderr }
      // Whatever a command has to say, a password is no part of it.
      const password = options.url === undefined ? '' : /:([^:@/]+)@/.exec(options.url)?.[1]
      const isTold = password !== undefined && password !== '' && JSON.stringify(result).includes(password)
      if (isTold) reject(new Error(`the password was shown by: fencepost ${args.join(' ')}`))
      else resolve(result)
    })
    // The commands of these tests end with their standard input, so that nothing outlives a failed test.
    onTestFinished(() => {
      this.#child.stdin!.end()
      this.#child.kill('SIGKILL')
    })
  }

  get pid(): number {
    return this.#child.pid!
  }

  get stdout(): string {
    return this.#stdout
  }

  get stderr(): string {
    return this.#stderr
  }

  /** The outcome, when the process is gone and all of its output is read. */
  get closed(): Promise<CliResult> {
    return this.#closed
  }

  /** Waits until the output has the text. Throws when the process ends without it. */
  async says(text: string, from: 'stdout' | 'stderr' = 'stdout'): Promise<void> {
    const stream = this.#child[from]!
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const look = (): void => {
      if (this[from].includes(text)) resolve()
    }
    const end = (): void => {
      reject(new Error(`never said "${text}":\n${this.#stdout}\n${this.#stderr}`))
    }
    stream.on('data', look)
    stream.once('end', end)
    look()
    if (stream.readableEnded) end()
    try {
      await promise
    } finally {
      stream.off('data', look)
      stream.off('end', end)
    }
  }

  /** A line for the command's standard input. */
  tell(line: string): void {
    this.#child.stdin!.write(`${line}\n`)
  }

  endInput(): void {
    this.#child.stdin!.end()
  }

  /** Nobody reads this output any more. */
  hangUp(stream: 'stdout' | 'stderr'): void {
    this.#child[stream]!.destroy()
  }

  /** Signals the process alone, not its process group. */
  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }
}

/** Runs the command line to its end. */
export function runCli(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const cli = new Cli(args, options)
  cli.endInput()
  return cli.closed
}

/** Whether nothing of the process can act any more. A zombie is gone: it only waits to be counted. */
export function isGone(pid: number): boolean {
  try {
    process.kill(pid, 0)
  } catch {
    return true
  }
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return stat[stat.lastIndexOf(')') + 2] === 'Z'
  } catch {
    // Gone meanwhile; where there is no /proc the signal's answer stands.
    return process.platform === 'linux'
  }
}

/** Waits for what no event tells of, because it happens in another process or in the database. */
export async function eventually(claim: () => unknown): Promise<void> {
  await vi.waitUntil(claim, { timeout: 20_000, interval: 10 })
}
