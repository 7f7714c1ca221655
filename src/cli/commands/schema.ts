import type { Command } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'
import { databaseManual } from './manual.ts'

export function defineMigrate(program: Command, invocation: Invocation): void {
  const migrate = withDatabase(program.command('migrate').helpGroup('Setting up:'))
    .summary('install or upgrade the schema "fencepost"')
    .description(
      'Install or upgrade the schema "fencepost", as the role that is to own it. Safe to run again, and from many processes at once.',
    )
    .option('--down', 'remove the newest migration instead; tokens go on rising after a later installation')
    .option(
      '--grant-to <role...>',
      'database roles that may use leases afterwards, separated by blanks (default: none but the owner)',
    )
    .option('--fence-only', 'for a database that only guards data: its leases live in another one')
    .action(invocation.report(async (options: never) => (await import('../migrate.ts')).runMigrate(options)))
  databaseManual(migrate, {
    exitCodes: [['0', 'done, also when there was nothing to do']],
    examples: [
      'fencepost migrate --grant-to app',
      'fencepost migrate --fence-only --database-url postgres://app@db.example/data',
    ],
  })
}
