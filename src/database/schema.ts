import { DatabaseError } from '../errors.ts'
import type { Greeting } from './connection.ts'

/** The schema version this library is written for. Newer ones stay compatible with it. */
export const requiredSchemaVersion = 11

/** What a database is for: it holds leases (and may hold data), or it only guards data under leases of another database. */
export type SchemaKind = 'leases' | 'fence-only'

/**
 * SQL for the kind of the schema that is installed, for whoever may use it. By the name of a table, which takes a session that has just begun
 * half the time of a look into the list of functions.
 */
const kindOfSchema = `case when pg_catalog.to_regclass('fencepost.lease') is not null then 'leases' else 'fence-only' end`

/** Asks every new session for the schema's version, so that a wrong one is noticed before the first request. */
export const schemaGreeting: Greeting = {
  columns: { schema_version: 'fencepost.schema_version()::text', schema_kind: kindOfSchema },
  check(row) {
    if (row['schema_kind'] === 'fence-only') {
      throw new DatabaseError(
        'SCHEMA_FENCE_ONLY',
        'this database only guards data ("fencepost migrate --fence-only"): the leases live in another one. Open fencepost ' +
          'on that, and use this one for fenced transactions, repositories and announce().',
        { cause: undefined },
      )
    }
    const found = Number(row['schema_version'])
    if (found >= requiredSchemaVersion) return
    throw new DatabaseError(
      'SCHEMA_OUTDATED',
      `the schema "fencepost" in this database has version ${found}, and this library needs ${requiredSchemaVersion}. ` +
        'Run "fencepost migrate".',
      { cause: undefined },
    )
  },
}
