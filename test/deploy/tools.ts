import { execFileSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

/** A migration tool, and what it writes down about the two migrations of its recipe. */
export interface Tool {
  /** Also the folder of its recipe. */
  readonly name: string
  readonly history: { readonly table: string; readonly column: string; readonly order: string }
  readonly migrations: readonly [orders: string, customersEmail: string]
  /** It does not print why it has failed. */
  readonly isSilent?: boolean
  /** What its recipe runs once, for a database that has tables already. */
  readonly baseline?: string | undefined
  /** What has to be run by hand after a deploy that has failed in either migration, and what the next one says until it was. */
  readonly recovery?: { readonly orders: string; readonly index: string; readonly needed: string }
  /** What is special in its environment here. */
  readonly env?: NodeJS.ProcessEnv
}

/** The tools that are built on `pg`. */
export const tools: readonly Tool[] = [
  {
    name: 'node-pg-migrate',
    history: { table: 'pgmigrations', column: 'name', order: 'id' },
    migrations: ['001_orders', '002_customers_email'],
  },
  {
    name: 'knex',
    history: { table: 'knex_migrations', column: 'name', order: 'id' },
    migrations: ['001_orders.js', '002_customers_email.js'],
  },
  {
    name: 'typeorm',
    history: { table: 'migrations', column: 'name', order: 'id' },
    migrations: ['Orders1764460800001', 'CustomersEmail1764460800002'],
  },
  {
    name: 'drizzle',
    history: { table: 'drizzle.__drizzle_migrations', column: 'created_at', order: 'id' },
    migrations: ['1764460800001', '1764460800002'],
    isSilent: true,
  },
  {
    name: 'kysely',
    history: { table: 'kysely_migration', column: 'name', order: 'timestamp' },
    migrations: ['001_orders', '002_customers_email.concurrently'],
  },
  {
    name: 'umzug',
    history: { table: 'umzug_migrations', column: 'name', order: 'name' },
    migrations: ['001_orders.js', '002_customers_email.js'],
  },
]

const require = createRequire(import.meta.url)

/**
 * The program that Prisma takes for its schema engine, as PRISMA_SCHEMA_ENGINE_BINARY names it: undefined where Prisma has
 * downloaded its own.
 */
function engine(): { readonly path?: string; readonly reason?: string } {
  const given = process.env['PRISMA_SCHEMA_ENGINE_BINARY']
  if (given !== undefined && isEngine(given)) return { path: given }
  const engines = dirname(
    createRequire(require.resolve('prisma/package.json')).resolve('@prisma/engines/package.json'),
  )
  if (readdirSync(engines).some((name) => name.startsWith('schema-engine-'))) return {}
  try {
    require.resolve('@prisma/schema-engine-wasm/schema_engine_bg')
    return { path: fileURLToPath(new URL('prisma-engine.ts', import.meta.url)) }
  } catch {
    return {
      reason: 'Prisma has not downloaded its schema engine, and @prisma/schema-engine-wasm is not installed',
    }
  }
}

/** The variable may also name any program, to keep Prisma from downloading one. */
function isEngine(program: string): boolean {
  try {
    return execFileSync(program, ['--version'], { encoding: 'utf8' }).includes('schema-engine')
  } catch {
    return false
  }
}

const { path, reason } = engine()

const prisma: Tool = {
  name: 'prisma',
  history: {
    table: '_prisma_migrations',
    column: 'case when finished_at is not null and rolled_back_at is null then migration_name end',
    order: 'started_at',
  },
  migrations: ['1_orders', '2_customers_email'],
  baseline: 'baseline.sh',
  recovery: { orders: 'resolve-orders.sh', index: 'resolve-index.sh', needed: 'P3009' },
  env: path === undefined ? {} : { PRISMA_SCHEMA_ENGINE_BINARY: path },
}

/** All of them, for `describe.each`, and why one cannot be run here. */
export const cases: readonly {
  readonly tool: Tool
  readonly name: string
  readonly reason?: string | undefined
}[] = [
  ...tools.map((tool) => ({ tool, name: tool.name })),
  { tool: prisma, name: reason === undefined ? 'prisma' : `prisma (skipped: ${reason})`, reason },
]
