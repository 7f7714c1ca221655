import { Fencepost } from '../fencepost.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'

export interface MigrateCommandOptions extends DatabaseOptions {
  readonly down?: boolean
  readonly fenceOnly?: boolean
  readonly grantTo?: readonly string[]
}

export async function runMigrate(options: MigrateCommandOptions): Promise<number> {
  const { migrations, schemaVersion } = await Fencepost.migrate({
    connectionString: await databaseUrl(options),
    direction: options.down === true ? 'down' : 'up',
    grantTo: options.grantTo,
    fenceOnly: options.fenceOnly === true,
  })
  const verb = options.down === true ? 'removed' : 'applied'
  for (const name of migrations) console.log(`${verb} ${name}`)
  const granted = options.grantTo ?? []
  if (granted.length > 0 && options.down !== true) console.log(`granted to ${granted.join(', ')}`)
  else if (migrations.length === 0) console.log(`nothing to do: the schema has version ${schemaVersion}`)
  return exitCode.done
}
