import type { Client } from 'pg'
import { exchange } from './control.ts'
import { controlNamed } from './controls.ts'

/**
 * Weakens the functions of a database that is there for nothing else, and has the tables that are written to. Nothing to do where the control weakens the client alone.
 *
 * @throws when a function is not what the control was written for, and then none of them is changed.
 */
export async function applyControl(client: Client, name: string): Promise<void> {
  const { functions = {}, sql } = controlNamed(name)
  await client.query('begin')
  try {
    // A server that is made to lose what it has not written must not lose this.
    await client.query('set local synchronous_commit = on')
    for (const [signature, pieces] of Object.entries(functions)) {
      // oxlint-disable-next-line no-await-in-loop -- A session does one after the other anyway.
      const { rows } = await client.query<{ definition: string }>(
        'select pg_catalog.pg_get_functiondef($1::regprocedure) as definition',
        [signature],
      )
      // oxlint-disable-next-line no-await-in-loop
      await client.query(exchange(rows[0]!.definition, pieces, signature))
    }
    if (sql !== undefined) await client.query(sql)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  }
}
