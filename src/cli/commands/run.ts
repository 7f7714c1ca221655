import { type Command, Option } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'
import { databaseManual } from './manual.ts'

/** Not the negation of `--wait`, as which the parser would take it, so that giving both is an error. */
const noWait = new Option('--no-wait', 'one attempt, as with --wait 0s').conflicts('wait')
noWait.negate = false

export function defineRun(program: Command, invocation: Invocation): void {
  const run = program
    .command('run')
    .helpGroup('Running commands under a lease:')
    .summary('run a command while holding a lease')
    .description(
      "Run a command while holding a lease. fencepost takes the lease, starts the command, renews the lease while the command runs, and gives it back when nothing of the command is left. stdin and stdout are the command's alone; what fencepost has to say goes to stderr.",
    )
    .usage('<lease> [options] -- <command> [args...]')
    .argument('<lease>', 'the name of the lease: up to 512 bytes, no control characters')
    .allowExcessArguments()
    .optionsGroup('Waiting for the lease:')
    .option(
      '--wait <duration>',
      'how long to wait for it in line: 0s (one attempt) to 366d, or "forever"',
      '0s',
    )
    .addOption(noWait)
    .addOption(
      new Option(
        '--on-conflict <action>',
        'when it was not acquired: fail with 75, or skip, which ends with 0',
      )
        .choices(['fail', 'skip'])
        .conflicts('conflictExitCode'),
    )
    .option('--conflict-exit-code <code>', 'exit code when it was not acquired, from 0 to 255 (default: 75)')
    .optionsGroup('Holding it:')
    .option('--ttl <duration>', 'how long the lease outlives this process when it dies, 1s to 1d', '30s')
    .option(
      '--max-hold <duration>',
      'the longest it is held, 1s to 366d: then the command is ended, with exit code 70 (default: no limit)',
    )
    .option(
      '--min-hold <duration>',
      'nobody else gets it for so long after the grant, even when the command is done, so that starts at slightly different times run it once: up to 1d (default: 0s)',
    )
    .option(
      '--grace <duration>',
      'time between TERM and KILL for the command when the lease is lost, at most a third of the TTL and of --max-hold (default: a sixth of the TTL, at most 5s)',
    )
    .option('--label <text>', 'what others see as the holder (default: host:pid)')
    .option(
      '--meta <key=value>',
      'more about the holder for others to see; may be repeated, up to 8192 characters of JSON in all',
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
    .optionsGroup('The database:')
    .action(
      invocation.report(async (lease: string, options: never, parsed: Command) => {
        if (invocation.command.length === 0 || parsed.args.length > 1) {
          parsed.error('error: put "--" and the command after the options: fencepost run LEASE -- COMMAND')
        }
        return (await import('../run.ts')).runCommand(lease, invocation, options)
      }),
    )
  withDatabase(run).optionsGroup('Options:')
  databaseManual(run, {
    sections: {
      Durations: 'A number with a unit: 500ms, 30s, 10m, 1.5h, 1d.',
      'The end': `
When no heartbeat gets through, or --max-hold is nearly over, the command gets TERM while there is time for the grace, and KILL
before anybody else can be granted the lease. When the lease has been taken away, TERM comes at once. INT, TERM, HUP and QUIT
end the grace. When fencepost itself is killed, a shell that watches it ends the command in the same way. When it is stopped
(STOP), nobody does: then only the fence protects.

The lease is given back when the command is gone and nothing is left of what it started: what outlives the command gets TERM,
and KILL after the grace. What is meant to stay has to be started with setsid; it then runs without the lease.`,
      'The fence': `
With --fence the command's PGOPTIONS carry the fence, beside what was in there. psql, pg_restore, and all that is built on
libpq or on Node's pg read it: on protected tables (fencepost protect) and schemas (protect --ddl) the database then refuses
what a runner writes that has lost its lease. Not by default, because PgBouncer and other poolers refuse such connections
("unsupported startup parameter: options") or drop the fence. fencepost tries it by way of DATABASE_URL, else of its own, and warns; then name
the server itself in the command's URL, or have the command send FENCEPOST_FENCE_SQL.`,
      Signals: `
The command runs in a session of its own. INT, TERM, HUP, QUIT, USR1, USR2 and CONT are passed on to it and to what it started;
TSTP (Ctrl-Z) stops it with fencepost. With --foreground it shares the terminal and the process group instead, for editors,
shells, psql and prompts for passwords: then the terminal's Ctrl-C, Ctrl-\\ and Ctrl-Z reach it by themselves.

As the first process of a container fencepost handles signals as anywhere else, but processes that lose their parents stay as
zombies: start the container with --init, or fencepost under tini, when the command leaves such behind.`,
      'JSON lines': `
Each is {event, time, lease, …, message}, with tokens as strings. First

  waiting   {state, holder, host, pid, since, remainingMs, place, waiters}
  granted   {token, waitedMs, ttlMs}
  started   {token, pid}
  at-risk   {token, expiresInMs}
  ending    {token, reason}
  warning

and at the end one of

  released  {token, outcome, exitCode}
  lost      {token, reason, commandExitCode, exitCode}
  conflict  {holder, host, pid, since, waitedMs, exitCode}
  stopped   {signal, exitCode}
  error     {exitCode}`,
    },
    environment: `
The command inherits all of it, and gets FENCEPOST_LEASE, FENCEPOST_TOKEN, FENCEPOST_HOLDER, FENCEPOST_SEQUENCE,
FENCEPOST_PGOPTIONS, and FENCEPOST_FENCE_SQL: the SQL that, as the first statement of a transaction, fences its writes.`,
    exitCodes: [
      ["the command's own", 'when the lease was held to its end'],
      ['128+n', 'signal n ended the command, or fencepost before it was started'],
      ['126, 127', 'the command is not executable, was not found'],
      ['64', 'wrong usage; nothing was started, as with 69 and 75'],
      ['69', 'the database cannot be used: unreachable, wrong password, no schema, no right'],
      ['70', 'the lease was lost, or held for --max-hold (even if the command said 0)'],
      ['75', 'the lease was not acquired (see --on-conflict, --conflict-exit-code)'],
      ['1', 'fencepost failed otherwise'],
    ],
    examples: [
      'fencepost run deploy --wait 10m -- npx prisma migrate deploy',
      'fencepost run nightly --on-conflict skip --min-hold 1m -- ./nightly.sh',
      'fencepost run schema --wait forever --fence -- \\',
      '    psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f migrate.sql',
      'fencepost run console --foreground -- psql "$DATABASE_URL"',
    ],
  })
}
