import type { Command } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'

/** Which leases a command is about. */
function withSelection(subcommand: Command): Command {
  return withDatabase(subcommand)
    .argument('[pattern]', 'only leases whose name matches, with * and ? as in a shell')
    .option('--state <states>', 'only those in these states: held, expired, draining, withheld, free')
    .option('--holder <text>', 'only those whose holder has this in its label or host, or as its process id')
    .option('--prefix <text>', 'only those whose name begins so')
    .option('--sort <order>', 'by name, since (the oldest term first) or token', 'name')
}

export function defineLeaseCommands(program: Command, invocation: Invocation): void {
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
      invocation.report(async (pattern: string | undefined, options: never) =>
        (await import('../ls.ts')).runLs(pattern, options),
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
      invocation.report(async (pattern: string | undefined, options: never) =>
        (await import('../watch.ts')).runWatch(pattern, options),
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
      invocation.report(async (lease: string, options: never) =>
        (await import('../show.ts')).runShow(lease, options),
      ),
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
      invocation.report(async (lease: string, options: never) =>
        (await import('../release.ts')).runRelease(lease, options),
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
    .action(invocation.report(async (options: never) => (await import('../holders.ts')).runHolders(options)))

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
    .action(
      invocation.report(async (options: never) =>
        (await import('../raise-tokens.ts')).runRaiseTokens(options),
      ),
    )

  withDatabase(program.command('purge'))
    .description(
      'Forget leases that nobody has held for so long, in short transactions. Tokens go on rising.',
    )
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
    .action(invocation.report(async (options: never) => (await import('../purge.ts')).runPurge(options)))
}
