import { readFile, readdir } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { MigrationBuilder } from 'node-pg-migrate'
import { packageDirectory } from '../package-directory.ts'
import type { SchemaKind } from './schema.ts'

/** All migrations of a database that holds leases, and the folder `fence-only` with what others begin with. */
export const migrationsDirectory: string = join(packageDirectory(), 'migrations')

/**
 * The migrations that a database which only guards data gets as well. A later one belongs here when it uses nothing of the
 * leases' own: of 0001 and 0002 only what `fence-only/` also has.
 */
const shared = ['0003_protected_tables.sql', '0004_resources.sql']

/** The version of a fence-only schema is that of its last migration; numbers that are not for it are passed over. */
export const fenceOnlySchemaVersion: number = Math.max(...shared.map((name) => Number.parseInt(name, 10)))

/** A migration as node-pg-migrate's runner takes it from a loader. */
interface MigrationUnit {
  readonly id: string
  readonly filePaths: string[]
  readonly actions: {
    readonly up: (builder: MigrationBuilder) => void
    readonly down: ((builder: MigrationBuilder) => void) | false
  }
}

/** The migrations of one kind of database, in order. */
export async function readMigrations(kind: SchemaKind): Promise<MigrationUnit[]> {
  const numbered = (await sqlFiles(migrationsDirectory)).filter(
    (path) => kind === 'leases' || shared.includes(basename(path)),
  )
  const own = kind === 'leases' ? [] : await sqlFiles(join(migrationsDirectory, 'fence-only'))
  return Promise.all([...own, ...numbered].map(readMigration))
}

async function sqlFiles(directory: string): Promise<string[]> {
  const names = await readdir(directory)
  return names
    .filter((name) => /^\d{4}_\w+\.sql$/.test(name))
    .toSorted()
    .map((name) => join(directory, name))
}

async function readMigration(path: string): Promise<MigrationUnit> {
  const [up = '', down] = (await readFile(path, 'utf8')).split(/^-- Down Migration$/m)
  return {
    id: path,
    filePaths: [path],
    actions: {
      up: (builder) => builder.sql(up),
      down: down === undefined ? false : (builder) => builder.sql(down),
    },
  }
}
