/** The clients that the demo can write with. A file of its own, because the help must be quick. */
export const demoClientNames = [
  'pg',
  'kysely',
  'drizzle',
  'prisma',
  'knex',
  'typeorm',
  'postgres.js',
  'psql',
  'psycopg',
  'dbd-pg',
] as const

/** The name of a client, as `--client` takes it. */
export type DemoClientName = (typeof demoClientNames)[number]
