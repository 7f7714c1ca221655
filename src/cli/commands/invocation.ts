import type { Command } from 'commander'
import { exitCode } from '../exit-code.ts'
import { SignalGuard } from '../signal-guard.ts'

/** One call of the program: what was asked of it besides options, and how it ends. */
export class Invocation {
  /** What the parser gets: all of the arguments, or those before the first `--` of `run`. */
  readonly own: readonly string[]
  /** What is behind that: a command, and none of the parser's business. */
  readonly command: readonly string[]
  /** For `run`, from here on: what comes while the rest is loaded is not to be lost, nor to end it in another way than later. */
  readonly guard: SignalGuard | undefined
  code: number = exitCode.done
  /** What a run had to say, nobody has read. */
  isHeldUp = false

  constructor(given: readonly string[]) {
    // "help local start" is "local start --help". For one word the parser has its own way, with a hint when it is wrong.
    const argv =
      given[2] === 'help' && given.length > 4 ? [...given.slice(0, 2), ...given.slice(3), '--help'] : given
    const dashes = argv[2] === 'run' ? argv.indexOf('--') : -1
    this.own = dashes < 0 ? argv : argv.slice(0, dashes)
    this.command = dashes < 0 ? [] : argv.slice(dashes + 1)
    this.guard = this.subcommand === 'run' ? new SignalGuard() : undefined
  }

  /** The name of the subcommand, when it comes first, as it nearly always does. */
  get subcommand(): string | undefined {
    return this.own[2]
  }

  /** A program reads what it says, also when it is used wrongly. */
  get isJsonRun(): boolean {
    return this.subcommand === 'run' && this.own.includes('--json')
  }

  /** An action for the parser: it answers with the exit code. */
  report(action: (...args: never[]) => Promise<number>): (...args: unknown[]) => Promise<void> {
    return async (...args) => {
      this.code = await action(...(args as never[]))
    }
  }
}

/** For a command that talks to the database. */
export function withDatabase(subcommand: Command): Command {
  return subcommand
    .option(
      '--database-url <url>',
      'the PostgreSQL that has the leases: postgres://user@host:port/database. Rather name it in the environment, above all with a password',
    )
    .option('--local', "use this machine's own server, started when needed (see: fencepost local)")
}
