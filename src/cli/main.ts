#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { Command, CommanderError, Option } from 'commander'
import { demoClientNames } from './demo-clients/names.ts'
import { exitCode, exitCodeOf } from './exit-code.ts'
import { runHelp } from './run-help.ts'

// The commands themselves are loaded when they are called: the help must be quick, and `run` must not wait for what
// only `ls` needs.

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}

if (Number.parseInt(process.versions.node, 10) < 22) {
  process.stderr.write(`fencepost: needs Node 22.12 or newer; this is ${process.version}\n`)
  process.exit(exitCode.failed)
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
Exit codes: 0 done, 1 failed, 3 not there, 64 wrong usage, 69 the database cannot be used; "run" has more.`,
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
  .option('--fence-only', 'for a database that only guards data: its leases live in another one')
  .addHelpText(
    'after',
    '\nExamples:\n  fencepost migrate --grant-to app\n  fencepost migrate --fence-only --database-url postgres://app@db.example/data',
  )
  .action(report(async (options: never) => (await import('./migrate.ts')).runMigrate(options)))

/** Which leases a command is about. */
function withSelection(subcommand: Command): Command {
  return withDatabase(subcommand)
    .argument('[pattern]', 'only leases whose name matches, with * and ? as in a shell')
    .option('--state <states>', 'only those in these states: held, expired, draining, withheld, free')
    .option('--holder <text>', 'only those whose holder has this in its label or host, or as its process id')
    .option('--prefix <text>', 'only those whose name begins so')
    .option('--sort <order>', 'by name, since (the oldest term first) or token', 'name')
}

withSelection(program.command('ls'))
  .description(
    'List the leases (name, token, state, holder, since, time left) and, below each, who waits for it in line.',
  )
  .option('--watch [interval]', 'go on, as "fencepost watch" does')
  .option(
    '--json',
    'print JSON: an array of {name, token, state, holder, host, pid, since, remainingMs, sequence, waiters}',
  )
  .addHelpText(
    'after',
    `
On a terminal the columns are cut to fit; in a pipe nothing is. Exit codes: 0 also when nothing matches, 64 wrong usage,
69 the database cannot be used.

Examples:
  fencepost ls 'deploy/*' --state held,draining --sort since
  fencepost ls --json | jq -r '.[] | select(.state == "held") | .name'`,
  )
  .action(
    report(async (pattern: string | undefined, options: never) =>
      (await import('./ls.ts')).runLs(pattern, options),
    ),
  )

withSelection(program.command('watch'))
  .description('Watch the leases live: a table on a terminal, one line of JSON per change in a pipe.')
  .option('--interval <duration>', 'time between two looks, at least 100ms (default: 1s)')
  .option('--json', 'one line of JSON per change also on a terminal: {at, event, lease}')
  .addHelpText(
    'after',
    `
The event is present (at the first look), appeared, changed or gone; the lease is as in "ls --json". What begins and ends
between two looks is not seen. It goes on through an outage of the database, and says so.

Exit codes: 0 ended by INT, TERM or HUP, or nobody reads it any more; 64 wrong usage; 69 the database cannot be used.

Examples:
  fencepost watch 'deploy/*'
  fencepost watch --json | jq -r '"\\(.at) \\(.event) \\(.lease.name) \\(.lease.state)"'`,
  )
  .action(
    report(async (pattern: string | undefined, options: never) =>
      (await import('./watch.ts')).runWatch(pattern, options),
    ),
  )

withDatabase(program.command('show'))
  .description(
    'Show one lease: term, holder, who waits, its open fenced transactions, and what was taken away by force.',
  )
  .argument('<lease>', 'the name of the lease')
  .option(
    '--json',
    'print JSON: as in "ls --json", with transactions: [{pid, state, role, application, since, ageMs}] and forcedReleases: [{token, holder, host, pid, reason, at, by, cancelled}]',
  )
  .addHelpText(
    'after',
    `
The state and the age of transactions of other roles take membership in pg_read_all_stats.

Exit codes: 0 shown, 3 the lease is unknown, 64 wrong usage, 69 the database cannot be used.

Example:
  fencepost show deploy`,
  )
  .action(
    report(async (lease: string, options: never) => (await import('./show.ts')).runShow(lease, options)),
  )

withDatabase(program.command('release'))
  .description('Take a lease away from its holder. The database refuses its writes from that moment on.')
  .argument('<lease>', 'the name of the lease')
  .requiredOption(
    '--token <token>',
    'the token of the term, from "fencepost show": another term is not touched',
  )
  .requiredOption('--reason <text>', 'why, for whoever looks later')
  .option(
    '--wait <duration>',
    'how long to wait for fenced transactions that are open, at most 5m (default: 5s; with --cancel, 0s)',
  )
  .option(
    '--cancel',
    'end the server sessions of fenced transactions that are still open then; they are rolled back',
  )
  .option(
    '--json',
    'print JSON: {outcome, lease, token, holder, host, pid, since, next: {token, holder}, cancelled}; outcome is released, wrong-token, not-held or draining',
  )
  .addHelpText(
    'after',
    `
The first in line is granted the lease with the same commit. The old holder is not told, and its other leases stay: what it does
outside the database goes on until it finds out. So stop it as well, if you can. This is for the owner of the schema; see
docs/operating.md for other roles.

Exit codes: 0 released; 3 nothing was changed, because the lease has another token or nobody holds it; 75 nothing was
changed, because a fenced transaction is still open; 64 wrong usage; 69 the database cannot be used, or no right.

Example:
  fencepost release deploy --token 34 --reason 'runner 7 hangs' --cancel`,
  )
  .action(
    report(async (lease: string, options: never) =>
      (await import('./release.ts')).runRelease(lease, options),
    ),
  )

withDatabase(program.command('holders'))
  .description('List who takes part: the processes that hold leases or wait for some, alive or expired.')
  .option(
    '--json',
    'print JSON: an array of {holder, host, pid, meta, state, ttlMs, since, remainingMs, leases, waits}',
  )
  .addHelpText(
    'after',
    '\nExit codes: 0 also when there are none, 64 wrong usage, 69 the database cannot be used.\n\nExample:\n  fencepost holders',
  )
  .action(report(async (options: never) => (await import('./holders.ts')).runHolders(options)))

withDatabase(program.command('raise-tokens'))
  .description('After a partial restore: have every token from now on be greater than those on rows.')
  .requiredOption('--above <token>', 'the highest stamp; "fencepost doctor" finds it')
  .option('--sequence <name>', 'the token sequence', 'default')
  .option('--json', 'print JSON: {sequence, lastToken}')
  .addHelpText(
    'after',
    `
It never lowers them, and may be called again. This is for the owner of the schema.

Exit codes: 0 done, 64 wrong usage, 69 the database cannot be used, or no right.

Example:
  fencepost raise-tokens --above 4711`,
  )
  .action(report(async (options: never) => (await import('./raise-tokens.ts')).runRaiseTokens(options)))

withDatabase(program.command('purge'))
  .description('Forget leases that nobody has held for so long, in short transactions. Tokens go on rising.')
  .requiredOption('--older-than <duration>', 'how long, such as 30d')
  .option('--json', 'print JSON: {forgotten}')
  .addHelpText(
    'after',
    `
Holders and records of forced releases that are older go as well. This is for the owner of the schema.

Exit codes: 0 also when there is nothing to forget, 64 wrong usage, 69 the database cannot be used, or no right.

Example:
  fencepost purge --older-than 30d`,
  )
  .action(report(async (options: never) => (await import('./purge.ts')).runPurge(options)))

/** Not the negation of `--wait`, as which the parser would take it, so that giving both is an error. */
const noWait = new Option('--no-wait', 'one attempt, as with --wait 0s').conflicts('wait')
noWait.negate = false

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
    report(async (lease: string, options: never, parsed: Command) => {
      if (command.length === 0 || parsed.args.length > 1) {
        parsed.error('error: put "--" and the command after the options: fencepost run LEASE -- COMMAND')
      }
      return (await import('./run.ts')).runCommand(lease, command, options)
    }),
  )

withDatabase(program.command('env'))
  .description("Print what a shell needs so that its programs' writes are fenced, for eval.")
  .argument('<lease>', 'the name of the lease')
  .option('--ttl <duration>', 'how long the term lasts; nobody renews it', '10m')
  .option('--label <text>', "what others see as the holder (default: USER's shell)")
  .option('--end', 'give the term back that this shell took, and print what unsets its variables')
  .addHelpText(
    'after',
    `
It prints exports of FENCEPOST_LEASE, FENCEPOST_TOKEN, FENCEPOST_HOLDER, FENCEPOST_SEQUENCE, FENCEPOST_FENCE_SQL and
FENCEPOST_PGOPTIONS, and of PGOPTIONS, which psql, pg_restore and everything else that is built on libpq or on Node's pg reads:
their transactions on protected tables are fenced without a change. Other programs send FENCEPOST_FENCE_SQL first in
each transaction. FENCEPOST_FIXED_TERM marks a term that the shell took itself. When no term is to be had, what is printed
makes eval fail. Under "fencepost run <lease>" the term is the runner's, and no database is asked; otherwise the lease is taken
for the TTL (exit code 75 when somebody holds it), and after that the database refuses the shell's writes.
PgBouncer and other poolers refuse PGOPTIONS or drop it: connect to the server itself, or send FENCEPOST_FENCE_SQL.

Example:
  eval "$(fencepost env deploy --ttl 30m)"
  psql "$DATABASE_URL" -c 'update accounts set status = 1'
  eval "$(fencepost env deploy --end)"

A shell that is gone keeps its lease for the TTL. To take it away at once, with the token that "fencepost show" tells:
  fencepost release deploy --token 34 --reason 'the shell is gone'`,
  )
  .action(report(async (lease: string, options: never) => (await import('./env.ts')).runEnv(lease, options)))

withDatabase(program.command('protect'))
  .description(
    'Let the database refuse every write to a table that carries no valid fence, whoever sends it.',
  )
  .argument('[table]', 'the table, with its schema where needed')
  .requiredOption(
    '--lease <lease>',
    'what guards it: a lease; a prefix (orders/*); or a template over columns of the row (account/{id})',
  )
  .option('--fence-column <column>', 'where rows are stamped; added when missing (default: fence_token)')
  .option('--stamp', 'stamp rows also in an UPDATE that does not name the column (see below for the price)')
  .option('--ddl <schema>', 'protect a schema instead: DDL in it needs a fence; takes a superuser')
  .option('--wait <duration>', 'how long to keep trying for the brief locks it needs (default: 1m)')
  .option('--sql', 'print the SQL instead, for migrations of your own; no database is asked')
  .addHelpText(
    'after',
    `
A lease whose own name has braces or ends with a star: write {{, }} and **. The columns of a template are integers, text,
varchar, uuid, boolean or enums. With a template TRUNCATE is refused, and each row needs a fence of its own lease.

What it costs: a check per statement, whatever the number of rows. INSERT is stamped by a column default (a bulk insert of
100,000 small rows takes about 1.2 times as long). --stamp is a row trigger: a 100,000-row UPDATE takes about 3 times as long.
A template compares all changed rows after the statement: 1.4 to 2 times for 100,000 rows.

Partitions are guarded with their table. After a new one was added, run it again: that changes only what is missing.
Writers are held up for moments only: it leaves the queue for its lock after at most 1.5 s, and tries again.

Examples:
  fencepost protect accounts --lease settlement
  fencepost protect orders --lease 'customer/{customer_id}' --sql
  fencepost protect --ddl public --lease deploy`,
  )
  .action(
    report(async (table: string | undefined, options: never) =>
      (await import('./protect.ts')).runProtect(table, options),
    ),
  )

withDatabase(program.command('unprotect'))
  .description('Take the protection of a table or schema away. The fence column stays.')
  .argument('[table]', 'the table, with its schema where needed')
  .option('--ddl <schema>', 'unprotect a schema instead')
  .option('--wait <duration>', 'how long to keep trying for the brief locks it needs (default: 1m)')
  .option('--sql', 'print the SQL instead, for migrations of your own; no database is asked')
  .addHelpText('after', '\nExample:\n  fencepost unprotect accounts')
  .action(
    report(async (table: string | undefined, options: never) =>
      (await import('./protect.ts')).runUnprotect(table, options),
    ),
  )

withDatabase(program.command('protected'))
  .description('List what is protected, by which lease, and which partitions lack the protection.')
  .option(
    '--json',
    'print JSON: {tables: [{table, isDropped, guard, fenceColumn, isStamped, since, tables, unguarded}], schemas: [{schema, guard, since}]}',
  )
  .addHelpText('after', '\nExample:\n  fencepost protected')
  .action(report(async (options: never) => (await import('./protect.ts')).runProtected(options)))

withDatabase(program.command('doctor'))
  .description('Find what breaks the wall or a promise, and say how to mend it. Changes nothing.')
  .option(
    '--json',
    'print JSON: {findings: [{code, severity, object, what, fix, fixKind}], checked: [text]}; fixKind is sql, command or advice',
  )
  .option('--strict', 'exit with 1 for warnings too')
  .addHelpText(
    'after',
    `
It looks at the schema, protected tables and partitions, protected schemas, roles, settings, subscriptions, standbys, leases,
open transactions, clocks, and the pooler in between. With few rights it sees less, and says so: run it as the owner of the schema or a
superuser for the whole picture. All findings and their meaning: docs/doctor.md.

Exit codes: 0 no error found (a warning or a note may be), 1 an error was found, 64 wrong usage, 69 the database cannot be used.

Examples:
  fencepost doctor
  fencepost doctor --json | jq -r '.findings[] | select(.severity == "error") | .fix'`,
  )
  .action(report(async (options: never) => (await import('./doctor.ts')).runDoctor(options)))

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
  .action(report(async (options: never) => (await import('./demo.ts')).runDemo(options)))

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
