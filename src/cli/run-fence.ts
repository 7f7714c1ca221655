import { Client } from 'pg'
import type { Lease } from '../fence/lease.ts'
import { pgOptionsWith } from './pg-options.ts'

/** A pooler that is used up lets a session wait. */
const patienceMs = 5000

/** What every libpq connection of the command takes its fence from. */
export function fencedEnvironment(lease: Lease): Record<string, string> {
  return { PGOPTIONS: pgOptionsWith(lease.term) }
}

/** Where the command is likely to write: most programs take DATABASE_URL, and FENCEPOST_DATABASE_URL may be another way. */
export function urlOfCommand(own: string): string {
  const url = process.env['DATABASE_URL']
  return url !== undefined && /^postgres(ql)?:/.test(url) ? url : own
}

/**
 * Why the fence does not get through to the server by way of this URL; undefined when it does, or when nothing can be said. It
 * is asked while the command runs, over a connection of its own: what the command is told when it connects nobody else hears.
 */
export async function whyUnfenced(url: string, lease: Lease): Promise<string | undefined> {
  const client = new Client({
    connectionString: url,
    options: pgOptionsWith(lease.term),
    application_name: 'fencepost',
    connectionTimeoutMillis: patienceMs,
    query_timeout: patienceMs,
  })
  client.on('error', () => {})
  const advice =
    'PostgreSQL itself takes PGOPTIONS, poolers such as PgBouncer do not: name the server in the URL of the command, or ' +
    'leave --fence away and have it send FENCEPOST_FENCE_SQL'
  try {
    await client.connect()
    const { rows } = await client.query<{ fence: string | null }>(
      `select current_setting('fencepost.fence', true) as fence`,
    )
    if ((rows[0]?.fence ?? '') !== '') return undefined
    return `what is between this machine and the server drops the fence: writes of the command carry none. ${advice}`
  } catch (error) {
    // PgBouncer: "unsupported startup parameter: options". Whatever else fails here says nothing about the fence.
    const { code } = error as { code?: unknown }
    if (code !== '08P01') return undefined
    return `what is between this machine and the server refuses connections with the fence. ${advice}`
  } finally {
    await client.end().catch(() => {})
  }
}
