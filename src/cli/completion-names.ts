import { Client } from 'pg'
import { environmentUrl } from '../database/connect-options.ts'
import type { NamesQuery } from './completion-candidates.ts'

/** More than anybody reads. */
const most = 500

/** The names of leases that begin so. Rejects when there is no database, or it does not answer in time. */
export async function leaseNames(query: NamesQuery, withinMs: number): Promise<string[]> {
  const url = await urlOf(query)
  if (url === undefined) return []
  const client = new Client({
    connectionString: url,
    application_name: 'fencepost completion',
    connectionTimeoutMillis: withinMs,
    query_timeout: withinMs,
  })
  client.on('error', () => {})
  await client.connect()
  // So that the server does not go on with what nobody waits for; for this transaction only, because of poolers.
  await client.query(`begin read only; set local statement_timeout = ${withinMs}`)
  const { rows } = await client.query<{ name: string }>(
    'select name from fencepost.leases where starts_with(name, $1) order by name limit $2',
    [query.prefix, most],
  )
  await client.query('rollback')
  await client.end()
  return rows.map(({ name }) => name)
}

async function urlOf({ databaseUrl, isLocal }: NamesQuery): Promise<string | undefined> {
  if (databaseUrl !== undefined) return expanded(databaseUrl)
  if (!isLocal) return environmentUrl()
  // Looking for it does not start it.
  const { localServerStatus } = await import('../database/local-server.ts')
  return (await localServerStatus()).url
}

/** The line has not been expanded yet. A variable is looked up; nothing else that a shell would expand is. */
function expanded(text: string): string | undefined {
  const [, name] = /^\$\{?(\w+)\}?$/.exec(text) ?? []
  return name === undefined ? text : process.env[name]
}
