#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { exitCode, exitCodeOf } from './exit-code.ts'

// The commands themselves are loaded when they are called: the help must be quick, and `run` must not wait for what
// only `ls` needs.

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}

/** After `run`, everything behind the first `--` is a command, and none of the parser's business. */
const dashes = process.argv[2] === 'run' ? process.argv.indexOf('--') : -1
const own = dashes < 0 ? process.argv : process.argv.slice(0, dashes)
const command = dashes < 0 ? [] : process.argv.slice(dashes + 1)

let code: number = exitCode.done
const report = (action: (...args: never[]) => Promise<number>) => {
  return async (...args: unknown[]): Promise<void> => {
    code = await action(...(args as never[]))
  }
}

const program = new Command('fencepost')
  .description('Leases and fencing tokens on PostgreSQL, enforced by the database.')
  .version(version)
  .exitOverride()
  .showHelpAfterError('(--help tells more)')
  .addHelpText(
    'after',
    `
Examples:
  fencepost migrate --database-url postgres://app@db.example/app
  fencepost run nightly-import --wait 10m -- node import.js
  fencepost demo

The database: --database-url, else FENCEPOST_DATABASE_URL, else DATABASE_URL; or --local.
Exit codes: 0 done, 1 failed, 64 wrong usage, 69 the database cannot be used; "run" has more.`,
  )

function withDatabase(subcommand: Command): Command {
  return subcommand
    .option('--database-url <url>', 'the PostgreSQL database that holds the leases')
    .option('--local', "use this machine's own server, started when needed (see: fencepost local)")
}

withDatabase(program.command('migrate'))
  .description('Install or upgrade the schema "fencepost". Safe to run from many processes at once.')
  .option('--down', 'remove the newest migration instead; tokens go on rising after a later installation')
  .option('--grant-to <role...>', 'database roles that may use leases afterwards, separated by blanks')
  .addHelpText('after', '\nExample:\n  fencepost migrate --grant-to app')
  .action(report(async (options: never) => (await import('./migrate.ts')).runMigrate(options)))

withDatabase(program.command('ls'))
  .description('List the leases: name, token, state, holder, since, time left.')
  .option(
    '--json',
    'print JSON: an array of {name, token, state, holder, host, pid, since, remainingMs, sequence}',
  )
  .addHelpText(
    'after',
    '\nExample:\n  fencepost ls --json | jq -r ".[] | select(.state == \\"held\\") | .name"',
  )
  .action(report(async (options: never) => (await import('./ls.ts')).runLs(options)))

withDatabase(program.command('run'))
  .description('Run a command while holding a lease.')
  .usage('<lease> [options] -- <command> [args...]')
  .argument('<lease>', 'the name of the lease')
  .allowExcessArguments()
  .option('--ttl <duration>', 'how long the lease outlives this process when it dies, at least 1s', '30s')
  .option('--wait <duration>', 'how long to wait for the lease; 0s for one attempt', '0s')
  .option(
    '--grace <duration>',
    'time between TERM and KILL for the command when the lease is lost, at most a third of the TTL (default: a sixth of the TTL, at most 5s)',
  )
  .option('--label <text>', 'what others see as the holder (default: host:pid)')
  .option('--conflict-exit-code <code>', 'exit code when the lease was not acquired (default: 75)')
  .addHelpText(
    'after',
    `
The command gets FENCEPOST_LEASE, FENCEPOST_TOKEN, FENCEPOST_HOLDER, FENCEPOST_SEQUENCE and FENCEPOST_FENCE_SQL: the SQL that, as the first
statement of a transaction, fences its writes. It runs in a session of its own; INT, TERM, HUP, QUIT,
USR1 and USR2 are passed on to it and to what it started.

When no heartbeat gets through, the command gets TERM while there is time for the grace, and KILL before anybody else
can be granted the lease. When the lease has been taken away, TERM comes at once. INT, TERM, HUP and QUIT end the grace.

The lease is given back when the command is gone and nothing is left of what it started: what outlives the command gets
TERM, and KILL after the grace. What is meant to stay has to be started with setsid; it then runs without the lease.

Exit codes: the command's own; 128+n when signal n ended it; 126 not executable, 127 not found; 64 wrong usage;
69 the database cannot be used (unreachable, wrong password, no schema, no rights); 70 the lease was lost (even if the command said 0); 75 not acquired.

Example:
  fencepost run deploy --wait 10m -- npx prisma migrate deploy`,
  )
  .action(
    report(async (lease: string, options: never, parsed: Command) => {
      if (command.length === 0 || parsed.args.length > 1) {
        parsed.error('error: put "--" and the command after the options: fencepost run LEASE -- COMMAND')
      }
      return (await import('./run.ts')).runCommand(lease, command, options)
    }),
  )

program
  .command('demo')
  .description('Watch a paused process being fenced off, on a real PostgreSQL.')
  .option('--database-url <url>', 'the database to play on (default: the local server)')
  .option('--unfenced', 'the same without the fence: watch the data being corrupted')
  .addHelpText('after', '\nExample:\n  fencepost demo --unfenced')
  .action(report(async (options: never) => (await import('./demo.ts')).runDemo(options)))

const local = program
  .command('local')
  .description('One embedded PostgreSQL per user, shared by all processes on this machine.')
  .addHelpText(
    'after',
    '\nExample:\n  export FENCEPOST_DATABASE_URL=$(fencepost local start >/dev/null && fencepost local url)',
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
      report(async (options: { json?: boolean }) =>
        (await import('./local.ts')).runLocal(action, options, process),
      ),
    )
}

// Whoever reads the output may go away (`| head`). That must not end a wrapper whose command still runs.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

try {
  await program.parseAsync(own)
} catch (error) {
  if (error instanceof CommanderError) {
    code = error.exitCode === 0 ? exitCode.done : exitCode.usage
  } else {
    process.stderr.write(`fencepost: ${error instanceof Error ? error.message : String(error)}\n`)
    code = exitCodeOf(error)
  }
}
// A database that does not answer may still keep sockets and timers open. Nothing that matters waits for them.
process.stdout.write('', () => process.exit(code))
