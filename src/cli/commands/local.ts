import { type Command, Option } from 'commander'
import { demoClientNames } from '../demo-clients/names.ts'
import type { Invocation } from './invocation.ts'

export function defineLocalCommands(program: Command, invocation: Invocation): void {
  program
    .command('demo')
    .description('Watch a paused process being fenced off, on a real PostgreSQL.')
    .option('--database-url <url>', 'the database to play on (default: the local server)')
    .option('--unfenced', 'the same without the fence: watch the data being corrupted')
    .addOption(
      new Option('--client <name>', 'what the two processes write with, on protected tables').choices(
        demoClientNames,
      ),
    )
    .addHelpText('after', '\nExamples:\n  fencepost demo --unfenced\n  fencepost demo --client prisma')
    .action(invocation.report(async (options: never) => (await import('../demo.ts')).runDemo(options)))

  const local = program
    .command('local')
    .description('One embedded PostgreSQL per user, shared by all processes on this machine.')
    .addHelpText(
      'after',
      `
The data: in FENCEPOST_LOCAL_DIR; else /var/lib/fencepost for root, and fencepost in XDG_DATA_HOME or ~/.local/share for others.
To be rid of them, stop the server and remove the folder.

Example:
  export FENCEPOST_DATABASE_URL=$(fencepost local start >/dev/null && fencepost local url)`,
    )
  for (const [action, description] of [
    ['start', 'start it, or join the one that runs'],
    ['stop', 'stop it; the data stay'],
    ['status', 'tell whether it runs (exit code 3 when it does not)'],
    ['url', 'print its URL, with the password'],
  ] as const) {
    local
      .command(action)
      .description(description)
      .option('--json', 'print JSON')
      .addHelpText('after', `\nExample:\n  fencepost local ${action}`)
      .action(
        invocation.report(async (options: { json?: boolean }) =>
          (await import('../local.ts')).runLocal(action, options, process),
        ),
      )
  }
}
