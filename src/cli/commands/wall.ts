import type { Command } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'
import { databaseManual } from './manual.ts'

const guarding = 'Guarding tables:'

export function defineWallCommands(program: Command, invocation: Invocation): void {
  defineEnv(program, invocation)
  defineProtection(program, invocation)
  defineDoctor(program, invocation)
}

function defineEnv(program: Command, invocation: Invocation): void {
  const env = withDatabase(program.command('env').helpGroup('Running commands under a lease:'))
    .summary('fence this shell\'s programs: eval "$(fencepost env LEASE)"')
    .description(
      "Print what a shell needs so that its programs' writes are fenced, for eval. Under \"fencepost run <lease>\" the term is the runner's, and no database is asked; otherwise the lease is taken for the TTL, and after that the database refuses the shell's writes.",
    )
    .argument('<lease>', 'the name of the lease')
    .option('--ttl <duration>', 'how long the term lasts, 1s to 1d; nobody renews it', '10m')
    .option('--label <text>', "what others see as the holder (default: USER's shell)")
    .option('--end', 'give the term back that this shell took, and print what unsets its variables')
    .action(
      invocation.report(async (lease: string, options: never) =>
        (await import('../env.ts')).runEnv(lease, options),
      ),
    )
  databaseManual(env, {
    sections: {
      Notes: `
PgBouncer and other poolers refuse PGOPTIONS or drop it: connect to the server itself, or send FENCEPOST_FENCE_SQL first in
each transaction. When no term is to be had, what is printed makes eval fail.

A shell that is gone keeps its lease for the TTL. To take it away at once, with the token that "fencepost show" tells:

    fencepost release deploy --token 34 --reason 'the shell is gone'`,
    },
    environment: `
It prints exports of FENCEPOST_LEASE, FENCEPOST_TOKEN, FENCEPOST_HOLDER, FENCEPOST_SEQUENCE, FENCEPOST_FENCE_SQL and
FENCEPOST_PGOPTIONS; of PGOPTIONS, which psql, pg_restore and everything else that is built on libpq or on Node's pg reads, so
that their transactions on protected tables are fenced without a change; and of FENCEPOST_FIXED_TERM, which marks a term that
the shell took itself. The default label is made of USER.`,
    exitCodes: [
      ['0', 'printed'],
      ['75', 'somebody holds the lease'],
    ],
    examples: [
      'eval "$(fencepost env deploy --ttl 30m)"',
      `psql "$DATABASE_URL" -c 'update accounts set status = 1'`,
      'eval "$(fencepost env deploy --end)"',
    ],
  })
}

function defineProtection(program: Command, invocation: Invocation): void {
  const protect = withDatabase(program.command('protect').helpGroup(guarding))
    .summary('refuse every write to a table without a valid fence')
    .description(
      'Let the database refuse every write to a table that carries no valid fence, whoever sends it. May be run again: that changes only what is missing.',
    )
    .argument('[table]', 'the table, with its schema where needed')
    .requiredOption(
      '--lease <lease>',
      'what guards it: a lease; a prefix (orders/*); or a template over columns of the row (account/{id})',
    )
    .option('--fence-column <column>', 'where rows are stamped; added when missing (default: fence_token)')
    .option('--stamp', 'stamp rows also in an UPDATE that does not name the column (see below for the price)')
    .option('--ddl <schema>', 'protect a schema instead: DDL in it needs a fence; takes a superuser')
    .option(
      '--wait <duration>',
      'how long to keep trying for the brief locks it needs, at most 1d (default: 1m)',
    )
    .option('--sql', 'print the SQL instead, for migrations of your own; no database is asked')
    .action(
      invocation.report(async (table: string | undefined, options: never) =>
        (await import('../protect.ts')).runProtect(table, options),
      ),
    )
  databaseManual(protect, {
    sections: {
      Templates: `
The columns are integers, text, varchar, uuid, boolean or enums. With a template TRUNCATE is refused, and each row needs a fence
of its own lease. A lease whose own name has braces or ends with a star: write {{, }} and **.`,
      'What it costs': `
A check per statement, whatever the number of rows. INSERT is stamped by a column default (a bulk insert of 100,000 small rows
takes about 1.2 times as long). --stamp is a row trigger: a 100,000-row UPDATE takes about 3 times as long. A template compares
all changed rows after the statement: 1.4 to 2 times for 100,000 rows.

Writers are held up for moments only: it leaves the queue for its lock after at most 1.5 s, and tries again.`,
      Partitions: 'They are guarded with their table. After a new one was added, run it again.',
    },
    exitCodes: [
      ['0', 'protected'],
      ['1', 'no such table or column, not protectable, or its lock was not to be had'],
    ],
    examples: [
      'fencepost protect accounts --lease settlement',
      "fencepost protect orders --lease 'customer/{customer_id}' --sql",
      'fencepost protect --ddl public --lease deploy',
    ],
  })

  const unprotect = withDatabase(program.command('unprotect').helpGroup(guarding))
    .summary('take the protection of a table away')
    .description('Take the protection of a table or schema away. The fence column stays.')
    .argument('[table]', 'the table, with its schema where needed')
    .option('--ddl <schema>', 'unprotect a schema instead')
    .option(
      '--wait <duration>',
      'how long to keep trying for the brief locks it needs, at most 1d (default: 1m)',
    )
    .option('--sql', 'print the SQL instead, for migrations of your own; no database is asked')
    .action(
      invocation.report(async (table: string | undefined, options: never) =>
        (await import('../protect.ts')).runUnprotect(table, options),
      ),
    )
  databaseManual(unprotect, {
    exitCodes: [
      ['0', 'done, also when it was not protected'],
      ['1', 'no such table, or its lock was not to be had'],
    ],
    examples: ['fencepost unprotect accounts'],
  })

  const listing = withDatabase(program.command('protected').helpGroup(guarding))
    .summary('list what is protected')
    .description('List what is protected, by which lease, and which partitions lack the protection.')
    .option(
      '--json',
      'print JSON: {tables: [{table, isDropped, guard, fenceColumn, isStamped, since, tables, unguarded}], schemas: [{schema, guard, since}]}',
    )
    .action(
      invocation.report(async (options: never) => (await import('../protect.ts')).runProtected(options)),
    )
  databaseManual(listing, {
    exitCodes: [['0', 'listed, also when there is nothing']],
    examples: ['fencepost protected'],
  })
}

function defineDoctor(program: Command, invocation: Invocation): void {
  const doctor = withDatabase(program.command('doctor').helpGroup(guarding))
    .summary('find what breaks the wall, and how to mend it')
    .description('Find what breaks the wall or a promise, and say how to mend it. Changes nothing.')
    .option(
      '--json',
      'print JSON: {findings: [{code, severity, object, what, fix, fixKind}], checked: [text]}; fixKind is sql, command or advice',
    )
    .option('--strict', 'exit with 1 for warnings too')
    .action(invocation.report(async (options: never) => (await import('../doctor.ts')).runDoctor(options)))
  databaseManual(doctor, {
    sections: {
      'What it looks at': `
The schema, protected tables and partitions, protected schemas, roles, settings, subscriptions, standbys, leases, open
transactions, clocks, and the pooler in between. With few rights it sees less, and says so: run it as the owner of the schema or
a superuser for the whole picture. All findings and their meaning: docs/doctor.md.`,
    },
    exitCodes: [
      ['0', 'no error found (a warning or a note may be)'],
      ['1', 'an error was found, with --strict a warning, or it failed'],
    ],
    examples: [
      'fencepost doctor',
      'fencepost doctor --json | jq -r \\',
      `    '.findings[] | select(.severity == "error") | .fix'`,
    ],
  })
}
