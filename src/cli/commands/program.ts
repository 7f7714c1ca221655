import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command, CommanderError } from 'commander'
import { packageDirectory } from '../../package-directory.ts'
import type { Invocation } from './invocation.ts'

type Define = (program: Command, invocation: Invocation) => void

interface Chapter {
  readonly commands: readonly string[]
  readonly load: () => Promise<Define>
}

/**
 * Who describes which commands, in the order of the help. A call loads the description of its own command alone, and what does the
 * work only when it is called: the start is what every run in a pipeline pays for.
 */
const chapters: readonly Chapter[] = [
  { commands: ['run'], load: async () => (await import('./run.ts')).defineRun },
  { commands: ['migrate'], load: async () => (await import('./schema.ts')).defineMigrate },
  {
    commands: ['ls', 'watch', 'show', 'release', 'holders', 'raise-tokens', 'purge'],
    load: async () => (await import('./leases.ts')).defineLeaseCommands,
  },
  {
    commands: ['env', 'protect', 'unprotect', 'protected', 'doctor'],
    load: async () => (await import('./wall.ts')).defineWallCommands,
  },
  { commands: ['demo', 'local'], load: async () => (await import('./local.ts')).defineLocalCommands },
]

/** The parser, with the command that this call is about, or with all of them where it is not plain which. */
export async function buildProgram(invocation: Invocation): Promise<Command> {
  const program = new Command('fencepost')
    .description('Leases and fencing tokens on PostgreSQL, enforced by the database.')
    .exitOverride()
    .showHelpAfterError('(--help tells more)')
    .addHelpText('after', help)
  program.option('-V, --version', 'print the version').on('option:version', () => {
    process.stdout.write(`${version()}\n`)
    throw new CommanderError(0, 'commander.version', 'the version was asked for')
  })
  const named = chapters.filter(({ commands }) => commands.includes(invocation.subcommand ?? ''))
  const defines = await Promise.all((named.length > 0 ? named : chapters).map((chapter) => chapter.load()))
  for (const define of defines) define(program, invocation)
  return program
}

function version(): string {
  const file = readFileSync(join(packageDirectory(), 'package.json'), 'utf8')
  return (JSON.parse(file) as { version: string }).version
}

const help = `
Examples:
  fencepost migrate --database-url postgres://app@db.example/app
  fencepost run nightly-import --wait 10m -- node import.js
  fencepost demo

The database: --database-url, else FENCEPOST_DATABASE_URL, else DATABASE_URL; or --local.
Exit codes: 0 done, 1 failed, 3 not there, 64 wrong usage, 69 the database cannot be used; "run" has more.`
