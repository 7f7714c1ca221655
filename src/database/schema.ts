import { DatabaseError } from '../errors.ts'
import type { Greeting } from './connection.ts'

/** The schema version this library is written for. Newer ones stay compatible with it. */
export const requiredSchemaVersion = 1

/** Asks every new session for the schema's version, so that a wrong one is noticed before the first request. */
export const schemaGreeting: Greeting = {
  columns: { schema_version: 'fencepost.schema_version()::text' },
  check(row) {
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
