import { beforeAll } from 'vitest'
import { migrate } from '../../src/database/migrate.ts'
import { type TestDatabase, useDatabase } from './database.ts'

/** A database for this file that only guards data. */
export function fenceOnlyDatabase(): TestDatabase {
  const database = useDatabase({ migrated: false })
  beforeAll(async () => {
    await migrate({ connectionString: database.url }, { fenceOnly: true })
  })
  return database
}

/** The definition of an installed function, to be put back later. */
export async function installed(database: TestDatabase, functionName: string): Promise<string> {
  const [row] = await database.query<{ source: string }>(
    `select pg_get_functiondef(oid) as source from pg_proc
      where proname = $1 and pronamespace = 'fencepost'::regnamespace`,
    [functionName],
  )
  return row!.source
}

/** Rewrites an installed function, and insists that there was something to take out. */
export async function takeOut(
  database: TestDatabase,
  functionName: string,
  text: RegExp,
  instead: string,
): Promise<void> {
  const source = await installed(database, functionName)
  const without = source.replace(text, instead)
  if (without === source) throw new Error(`${functionName} has no ${String(text)}`)
  await database.query(without)
}

/** Until the query has been answered, or as many sessions wait for a lock: an event, not a length of time. */
export async function waitsOrAnswers(
  database: TestDatabase,
  query: Promise<unknown>,
  sessions = 1,
): Promise<void> {
  let isAnswered = false
  query.then(
    () => (isAnswered = true),
    () => (isAnswered = true),
  )
  for (;;) {
    const [row] = await database.query<{ waiting: number }>(
      `select count(*)::integer as waiting from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`,
    )
    if (isAnswered || row!.waiting >= sessions) return
  }
}
