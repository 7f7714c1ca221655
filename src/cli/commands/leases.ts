import { type Command, Option } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'
import { databaseManual } from './manual.ts'

const looking = 'Looking at leases:'
const operating = 'Operating:'

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
  defineLooking(program, invocation)
  defineOperating(program, invocation)
}

function defineLooking(program: Command, invocation: Invocation): void {
  const ls = withSelection(program.command('ls').helpGroup(looking))
    .summary('list the leases, and who waits for each')
    .description(
      'List the leases (name, token, state, holder, since, time left) and, below each, who waits for it in line. On a terminal the columns are cut to fit; in a pipe nothing is.',
    )
    .option(
      '--watch [interval]',
      'go on, as "fencepost watch" does, with a look every so often: 100ms to 1h (default: 1s)',
    )
    .option(
      '--json',
      'print JSON: an array of {name, token, state, holder, host, pid, since, remainingMs, sequence, waiters}',
    )
    .action(
      invocation.report(async (pattern: string | undefined, options: never) =>
        (await import('../ls.ts')).runLs(pattern, options),
      ),
    )
  databaseManual(ls, {
    exitCodes: [['0', 'listed, also when nothing matches']],
    examples: [
      "fencepost ls 'deploy/*' --state held,draining --sort since",
      `fencepost ls --json | jq -r '.[] | select(.state == "held") | .name'`,
    ],
  })

  const watch = withSelection(program.command('watch').helpGroup(looking))
    .summary('watch the leases live')
    .description('Watch the leases live: a table on a terminal, one line of JSON per change in a pipe.')
    .option('--interval <duration>', 'time between two looks, 100ms to 1h (default: 1s)')
    .option('--json', 'one line of JSON per change also on a terminal: {at, event, lease}')
    .action(
      invocation.report(async (pattern: string | undefined, options: never) =>
        (await import('../watch.ts')).runWatch(pattern, options),
      ),
    )
  databaseManual(watch, {
    sections: {
      'JSON lines': `
The event is present (at the first look), appeared, changed or gone; the lease is as in "ls --json". What begins and ends
between two looks is not seen. It goes on through an outage of the database, and says so.`,
    },
    exitCodes: [['0', 'ended by INT, TERM or HUP, or nobody reads it any more']],
    examples: [
      "fencepost watch 'deploy/*'",
      String.raw`fencepost watch --json | jq -r '"\(.at) \(.event) \(.lease.name)"'`,
    ],
  })

  const show = withDatabase(program.command('show').helpGroup(looking))
    .summary('show one lease, with what keeps it')
    .description(
      'Show one lease: term, holder, who waits, its open fenced transactions, and what was taken away by force. The state and the age of transactions of other roles take membership in pg_read_all_stats.',
    )
    .argument('<lease>', 'the name of the lease')
    .option(
      '--json',
      'print JSON: as in "ls --json", with sequenceKind, transactions: [{pid, state, role, application, since, ageMs}] and forcedReleases: [{token, holder, host, pid, reason, at, by, cancelled}]',
    )
    .action(
      invocation.report(async (lease: string, options: never) =>
        (await import('../show.ts')).runShow(lease, options),
      ),
    )
  databaseManual(show, {
    exitCodes: [
      ['0', 'shown'],
      ['3', 'the lease is unknown'],
    ],
    examples: ['fencepost show deploy'],
  })

  const holders = withDatabase(program.command('holders').helpGroup(looking))
    .summary('list the processes that take part')
    .description('List who takes part: the processes that hold leases or wait for some, alive or expired.')
    .option(
      '--json',
      'print JSON: an array of {holder, host, pid, meta, state, ttlMs, since, remainingMs, leases, waits}',
    )
    .action(invocation.report(async (options: never) => (await import('../holders.ts')).runHolders(options)))
  databaseManual(holders, {
    exitCodes: [['0', 'listed, also when there are none']],
    examples: ['fencepost holders'],
  })
}

function defineOperating(program: Command, invocation: Invocation): void {
  const release = withDatabase(program.command('release').helpGroup(operating))
    .summary('take a lease away from its holder')
    .description(
      'Take a lease away from its holder. The database refuses its writes from that moment on. The first in line is granted the lease with the same commit.',
    )
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
    .action(
      invocation.report(async (lease: string, options: never) =>
        (await import('../release.ts')).runRelease(lease, options),
      ),
    )
  databaseManual(release, {
    sections: {
      Notes: `
The old holder is not told, and its other leases stay: what it does outside the database goes on until it finds out. So stop it as
well, if you can. This is for the owner of the schema; see docs/operating.md for other roles.`,
    },
    exitCodes: [
      ['0', 'released'],
      ['3', 'nothing was changed: the lease has another token, or nobody holds it'],
      ['75', 'nothing was changed: a fenced transaction is still open'],
    ],
    examples: ["fencepost release deploy --token 34 --reason 'runner 7 hangs' --cancel"],
  })

  const raise = withDatabase(program.command('raise-tokens').helpGroup(operating))
    .summary('lift a token sequence after a partial restore')
    .description(
      'After a partial restore: have every token from now on be greater than those on rows. It never lowers them, and may be called again. This is for the owner of the schema.',
    )
    .requiredOption('--above <token>', 'the highest stamp; "fencepost doctor" finds it')
    .option('--sequence <name>', 'the token sequence', 'default')
    .option('--json', 'print JSON: {sequence, lastToken}')
    .action(
      invocation.report(async (options: never) =>
        (await import('../raise-tokens.ts')).runRaiseTokens(options),
      ),
    )
  databaseManual(raise, {
    exitCodes: [['0', 'done']],
    examples: ['fencepost raise-tokens --above 4711'],
  })

  const sequence = withDatabase(program.command('sequence').helpGroup(operating))
    .summary('list the token sequences, or set the kind of one')
    .description(
      'List the token sequences, or one of them; with --kind, make it, or have it go on as a counter or by the clock. Tokens rise in either case, whenever it is changed. A clock sequence hands no number out twice after a failover, a restore or a move that has lost the last grants. Setting the kind is for the owner of the schema.',
    )
    .argument('[name]', 'the token sequence; leases that name none draw from "default"')
    .addOption(
      new Option(
        '--kind <kind>',
        "counter: one more than the last token. clock: the same, but never less than the microseconds since 1970 of the database's clock",
      ).choices(['counter', 'clock']),
    )
    .option(
      '--json',
      'print JSON: an array of {sequence, kind, lastToken, aheadMs}, or one of them for a name',
    )
    .action(
      invocation.report(async (name: string | undefined, options: never) =>
        (await import('../sequence.ts')).runSequence(name, options),
      ),
    )
  databaseManual(sequence, {
    sections: {
      Notes: `
AHEAD is how far the last token of a clock sequence is ahead of the clock, as after the clock was set back: until the clock has caught up it only
counts. Tokens of a clock sequence have 16 digits, so columns for them must be bigint.`,
    },
    exitCodes: [
      ['0', 'listed, or set'],
      ['3', 'the sequence is unknown'],
    ],
    examples: ['fencepost sequence', 'fencepost sequence default --kind clock'],
  })

  const purge = withDatabase(program.command('purge').helpGroup(operating))
    .summary('forget what is long over')
    .description(
      'Forget leases that nobody has held for so long, and holders and records of forced releases that are older, in short transactions. Tokens go on rising. This is for the owner of the schema.',
    )
    .requiredOption('--older-than <duration>', 'how long, such as 30d')
    .option('--json', 'print JSON: {forgotten}')
    .action(invocation.report(async (options: never) => (await import('../purge.ts')).runPurge(options)))
  databaseManual(purge, {
    exitCodes: [['0', 'done, also when there was nothing to forget']],
    examples: ['fencepost purge --older-than 30d'],
  })
}
