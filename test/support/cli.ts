import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { vi } from 'vitest'
import { program } from './main-program.ts'
import { Program, type ProgramResult } from './program.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

export type CliResult = ProgramResult

export interface CliOptions {
  /** What the environment names as the database. */
  readonly url?: string
  readonly env?: Readonly<Record<string, string>>
}

/** The command line as a process of its own. */
export class Cli extends Program {
  readonly #password: string
  readonly #args: readonly string[]

  constructor(args: readonly string[], options: CliOptions = {}) {
    const inherited = Object.entries(process.env).filter(
      ([name]) => !/^(FENCEPOST_|PG|DATABASE_URL$|NODE_OPTIONS$|FORCE_COLOR$)/.test(name),
    )
    super([...program, ...args], {
      cwd: root,
      env: {
        ...Object.fromEntries(inherited),
        ...(options.url === undefined ? {} : { FENCEPOST_DATABASE_URL: options.url }),
        ...options.env,
      },
      hasInput: true,
    })
    this.#args = args
    this.#password = options.url === undefined ? '' : (/:([^:@/]+)@/.exec(options.url)?.[1] ?? '')
  }

  /** Whatever a command has to say, a password is no part of it. */
  override get closed(): Promise<CliResult> {
    return super.closed.then((result) => {
      const isTold = this.#password !== '' && JSON.stringify(result).includes(this.#password)
      if (isTold) throw new Error(`the password was shown by: fencepost ${this.#args.join(' ')}`)
      return result
    })
  }

  /** A line for the command's standard input. */
  tell(line: string): void {
    this.child.stdin!.write(`${line}\n`)
  }

  endInput(): void {
    this.child.stdin!.end()
  }

  /** Nobody reads this output any more. */
  hangUp(stream: 'stdout' | 'stderr'): void {
    this.child[stream]!.destroy()
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
