import { type Command, Option } from 'commander'
import { runHelp } from './run-help.ts'
import { type Invocation, withDatabase } from './invocation.ts'

/** Not the negation of `--wait`, as which the parser would take it, so that giving both is an error. */
const noWait = new Option('--no-wait', 'one attempt, as with --wait 0s').conflicts('wait')
noWait.negate = false

export function defineRun(program: Command, invocation: Invocation): void {
  withDatabase(program.command('run').optionsGroup('Database:'))
    .description('Run a command while holding a lease.')
    .usage('<lease> [options] -- <command> [args...]')
    .argument('<lease>', 'the name of the lease')
    .allowExcessArguments()
    .optionsGroup('Waiting for the lease:')
    .option('--wait <duration>', 'how long to wait for it in line, or "forever"; 0s for one attempt', '0s')
    .addOption(noWait)
    .addOption(
      new Option('--on-conflict <action>', 'when it was not acquired: fail, or skip (end with 0)')
        .choices(['fail', 'skip'])
        .conflicts('conflictExitCode'),
    )
    .option('--conflict-exit-code <code>', 'exit code when the lease was not acquired (default: 75)')
    .optionsGroup('Holding it:')
    .option('--ttl <duration>', 'how long the lease outlives this process when it dies, at least 1s', '30s')
    .option(
      '--max-hold <duration>',
      'the longest it is held: then the command is ended, with exit code 70 (default: no limit)',
    )
    .option(
      '--min-hold <duration>',
      'nobody else gets it for so long after the grant, even when the command is done: so that starts that are skewed run it once',
    )
    .option(
      '--grace <duration>',
      'time between TERM and KILL for the command when the lease is lost, at most a third of the TTL (default: a sixth of the TTL, at most 5s)',
    )
    .option('--label <text>', 'what others see as the holder (default: host:pid)')
    .option(
      '--meta <key=value>',
      'more about the holder for others to see; may be repeated',
      (pair: string, pairs: string[] | undefined) => [...(pairs ?? []), pair],
    )
    .optionsGroup('The command:')
    .option('--fence', 'fence its writes through PGOPTIONS, without a change to it; not by way of a pooler')
    .option(
      '--foreground',
      'let it share the terminal and the process group, for a command that needs the terminal',
    )
    .optionsGroup('What fencepost says:')
    .option('--quiet', "nothing but what explains an exit code of fencepost's own")
    .option('--json', 'one JSON object a line on stderr, instead of text')
    .addHelpText('after', runHelp)
    .action(
      invocation.report(async (lease: string, options: never, parsed: Command) => {
        if (invocation.command.length === 0 || parsed.args.length > 1) {
          parsed.error('error: put "--" and the command after the options: fencepost run LEASE -- COMMAND')
        }
        return (await import('../run.ts')).runCommand(lease, invocation.command, options)
      }),
    )
}
