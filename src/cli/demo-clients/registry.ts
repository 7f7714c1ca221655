import type { DemoClient } from './demo-client.ts'
import type { DemoClientName } from './names.ts'

/** What each file of this folder offers. */
interface DemoClientModule {
  open(url: string): Promise<DemoClient>
  /** Why the client cannot be used on this machine, and what mends it; undefined when it can. */
  missing?(): Promise<string | undefined>
}

// fencepost depends on none of these, so each is loaded when it is asked for.
const sources: Readonly<Record<DemoClientName, () => Promise<DemoClientModule>>> = {
  pg: () => import('./pg.ts'),
  kysely: () => import('./kysely.ts'),
  drizzle: () => import('./drizzle.ts'),
  prisma: () => import('./prisma.ts'),
  knex: () => import('./knex.ts'),
  typeorm: () => import('./typeorm.ts'),
  'postgres.js': () => import('./postgres-js.ts'),
  psql: () => import('./psql.ts'),
  psycopg: () => import('./psycopg.ts'),
  'dbd-pg': () => import('./dbd-pg.ts'),
}

/** The packages of those that come from npm. */
const packages: Readonly<Partial<Record<DemoClientName, string>>> = {
  kysely: 'kysely',
  drizzle: 'drizzle-orm',
  prisma: 'prisma @prisma/client @prisma/adapter-pg',
  knex: 'knex',
  typeorm: 'typeorm',
  'postgres.js': 'postgres',
}

/** Why a client cannot be used on this machine, and what mends it; undefined when it can. */
export async function demoClientReason(name: DemoClientName): Promise<string | undefined> {
  const install = packages[name]
  try {
    const client = await sources[name]()
    return await client.missing?.()
  } catch (error) {
    const isMissing = (error as { code?: unknown }).code === 'ERR_MODULE_NOT_FOUND'
    if (!isMissing || install === undefined) throw error
    return `it is not installed: npm install ${install}`
  }
}

/** Opens a client on a database that has the demo's tables. */
export async function openDemoClient(name: DemoClientName, url: string): Promise<DemoClient> {
  const client = await sources[name]()
  return client.open(url)
}
