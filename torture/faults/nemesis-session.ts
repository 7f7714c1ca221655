import { Client } from 'pg'
import type { TortureServer } from './fault.ts'

/** The sessions of the suite itself go by names that begin with this: no fault is meant for them. */
export const ownSessions = 'torture'

const patienceMs = 2_000
const healWithinMs = 60_000

/** Sessions that a fault may be about. */
export const sessionsOfClients = `backend_type = 'client backend' and datname = current_database()
  and pid <> pg_backend_pid() and application_name not like '${ownSessions}%'`

/**
 * Works in a session of its own and bounds each step: another fault may have stopped the server, or be about to.
 *
 * @throws what the server answered, or that it did not.
 */
export async function inSession<T>(
  server: TortureServer,
  work: (client: Client) => Promise<T>,
  withinMs = patienceMs,
): Promise<T> {
  const client = new Client({
    connectionString: server.url,
    application_name: `${ownSessions} nemesis`,
    connectionTimeoutMillis: withinMs,
    query_timeout: withinMs,
    statement_timeout: withinMs,
  })
  client.on('error', () => {})
  try {
    await client.connect()
    return await work(client)
  } finally {
    hangUp(client)
  }
}

/** For what has to be done: tries until the server has answered. What is wrong for good is thrown after a minute. */
export async function insist<T>(server: TortureServer, work: (client: Client) => Promise<T>): Promise<T> {
  const giveUpAt = Date.now() + healWithinMs
  for (let patience = patienceMs; ; patience = Math.min(patience * 2, 30_000)) {
    try {
      // oxlint-disable-next-line no-await-in-loop -- Each try follows upon the failure of the last.
      return await inSession(server, work, patience)
    } catch (error) {
      if (Date.now() > giveUpAt) throw error
      // oxlint-disable-next-line no-await-in-loop
      await pause(50)
    }
  }
}

/** Not `end()`, which waits for the server: it may be frozen. */
function hangUp(client: Client): void {
  const { stream } = (client as unknown as { connection: { stream: { end(): void; destroy(): void } } })
    .connection
  // X, of length 4: the end of a session, so that the server need not write about a lost one in its log.
  client.end().catch(() => {})
  const timer = setTimeout(() => stream.destroy(), 200)
  timer.unref()
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
