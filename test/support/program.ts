import { type ChildProcess, spawn } from 'node:child_process'
import { onTestFinished } from 'vitest'

export interface ProgramResult {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

export interface ProgramOptions {
  readonly cwd?: string
  /** The whole of its environment. */
  readonly env?: Readonly<Record<string, string | undefined>>
  /** Whether the test writes to its standard input. Default false: there is none. */
  readonly hasInput?: boolean
}

/** A program as a process of its own, started and stopped as a service manager does it. */
export class Program {
  protected readonly child: ChildProcess
  readonly #closed: Promise<ProgramResult>
  #stdout = ''
  #stderr = ''

  constructor([file, ...args]: readonly string[], options: ProgramOptions = {}) {
    const { cwd, env, hasInput = false } = options
    const { promise, resolve, reject } = Promise.withResolvers<ProgramResult>()
    this.#closed = promise
    this.child = spawn(file!, args, {
      ...(cwd === undefined ? {} : { cwd }),
      ...(env === undefined ? {} : { env }),
      stdio: [hasInput ? 'pipe' : 'ignore', 'pipe', 'pipe'],
    })
    this.child.stdout!.setEncoding('utf8').on('data', (text: string) => (this.#stdout += text))
    this.child.stderr!.setEncoding('utf8').on('data', (text: string) => (this.#stderr += text))
    this.child.once('error', reject)
    this.child.once('close', (code, signal) =>
      resolve({ code, signal, stdout: this.#stdout, stderr: this.#stderr }),
    )
    // It may be gone before it has read what it was told.
    this.child.stdin?.on('error', () => {})
    // What ends with its standard input does not outlive a failed test either.
    onTestFinished(() => {
      this.child.stdin?.end()
      this.child.kill('SIGKILL')
    })
  }

  /** The outcome, when the process is gone and all of its output is read. */
  get closed(): Promise<ProgramResult> {
    return this.#closed
  }

  get pid(): number {
    return this.child.pid!
  }

  get stdout(): string {
    return this.#stdout
  }

  get stderr(): string {
    return this.#stderr
  }

  /** Waits until the output has the text. Throws when the process ends without it. */
  async says(text: string, from: 'stdout' | 'stderr' = 'stdout'): Promise<void> {
    const stream = this.child[from]!
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const look = (): void => {
      if (this[from].includes(text)) resolve()
    }
    const end = (): void => reject(new Error(`never said "${text}":\n${this.#stdout}\n${this.#stderr}`))
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

  /** Signals the process alone, not its process group. */
  signal(signal: NodeJS.Signals): void {
    this.child.kill(signal)
  }

  /** The signal now, and KILL after `killAfterMs`. Says whether that was needed as well. */
  async stop(
    signal: NodeJS.Signals,
    killAfterMs: number,
  ): Promise<ProgramResult & { readonly isKilled: boolean }> {
    let isKilled = false
    const timer = setTimeout(() => {
      isKilled = true
      this.child.kill('SIGKILL')
    }, killAfterMs)
    this.child.kill(signal)
    try {
      return { ...(await this.#closed), isKilled }
    } finally {
      clearTimeout(timer)
    }
  }
}

/** Runs a program to its end. */
export function runProgram(command: readonly string[], options: ProgramOptions = {}): Promise<ProgramResult> {
  return new Program(command, options).closed
}
