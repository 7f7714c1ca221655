import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command } from 'commander'
import { packageDirectory } from '../../package-directory.ts'
import { exitCode } from '../exit-code.ts'
import { withoutPasswords } from '../hidden-passwords.ts'
import { RunReport } from '../run-report.ts'
import type { Invocation } from './invocation.ts'
import { helpWidth } from './manual.ts'

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
    commands: ['ls', 'watch', 'show', 'release', 'holders', 'sequence', 'raise-tokens', 'purge'],
    load: async () => (await import('./leases.ts')).defineLeaseCommands,
  },
  {
    commands: ['env', 'protect', 'unprotect', 'protected', 'doctor'],
    load: async () => (await import('./wall.ts')).defineWallCommands,
  },
  { commands: ['demo', 'local'], load: async () => (await import('./local.ts')).defineLocalCommands },
  { commands: ['completion'], load: async () => (await import('./shell.ts')).defineShellCommands },
]

/** The parser, with the command that this call is about, or with all of them where it is not plain which. */
export async function buildProgram(invocation: Invocation): Promise<Command> {
  const program = new Command('fencepost')
    .description('Leases and fencing tokens on PostgreSQL, enforced by the database.')
    .exitOverride()
    // An error repeats what was wrong, which may be a URL in the wrong place.
    .configureOutput({ writeErr: (text) => void process.stderr.write(withoutPasswords(text)) })
    .configureHelp({ helpWidth: helpWidth() })
    .showHelpAfterError('(--help tells more)')
  if (invocation.isJsonRun) {
    const report = new RunReport({
      lease: null,
      isJson: true,
      write: (line) => void process.stderr.write(line),
    })
    program.showHelpAfterError(false).configureOutput({
      writeErr: (text) =>
        report.tell('error', text.replace(/^error: /, '').trim(), { exitCode: exitCode.usage }),
    })
  }
  const named = chapters.filter(({ commands }) => commands.includes(invocation.subcommand ?? ''))
  const defines = await Promise.all((named.length > 0 ? named : chapters).map((chapter) => chapter.load()))
  for (const define of defines) define(program, invocation)
  if (named.length > 0) return program
  const { overview } = await import('./overview.ts')
  return program
    .version(version())
    .commandsGroup('Help:')
    .helpCommand('help [command...]', 'the help of a command, as its --help')
    .addHelpText('after', overview)
}

function version(): string {
  const file = readFileSync(join(packageDirectory(), 'package.json'), 'utf8')
  return (JSON.parse(file) as { version: string }).version
}
