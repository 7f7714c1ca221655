import type { Command } from 'commander'
import { type Invocation, withDatabase } from './invocation.ts'

export function defineMigrate(program: Command, invocation: Invocation): void {
  withDatabase(program.command('migrate'))
    .description('Install or upgrade the schema "fencepost". Safe to run from many processes at once.')
    .option('--down', 'remove the newest migration instead; tokens go on rising after a later installation')
    .option('--grant-to <role...>', 'database roles that may use leases afterwards, separated by blanks')
    .option('--fence-only', 'for a database that only guards data: its leases live in another one')
    .addHelpText(
      'after',
      '\nExamples:\n  fencepost migrate --grant-to app\n  fencepost migrate --fence-only --database-url postgres://app@db.example/data',
    )
    .action(invocation.report(async (options: never) => (await import('../migrate.ts')).runMigrate(options)))
}
