import type { Command } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'

export function defineWallCommands(program: Command, invocation: Invocation): void {
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
    .action(
      invocation.report(async (lease: string, options: never) =>
        (await import('../env.ts')).runEnv(lease, options),
      ),
    )

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
      invocation.report(async (table: string | undefined, options: never) =>
        (await import('../protect.ts')).runProtect(table, options),
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
      invocation.report(async (table: string | undefined, options: never) =>
        (await import('../protect.ts')).runUnprotect(table, options),
      ),
    )

  withDatabase(program.command('protected'))
    .description('List what is protected, by which lease, and which partitions lack the protection.')
    .option(
      '--json',
      'print JSON: {tables: [{table, isDropped, guard, fenceColumn, isStamped, since, tables, unguarded}], schemas: [{schema, guard, since}]}',
    )
    .addHelpText('after', '\nExample:\n  fencepost protected')
    .action(
      invocation.report(async (options: never) => (await import('../protect.ts')).runProtected(options)),
    )

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
    .action(invocation.report(async (options: never) => (await import('../doctor.ts')).runDoctor(options)))
}
