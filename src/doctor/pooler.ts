import { randomBytes } from 'node:crypto'
import { Client, type ClientConfig } from 'pg'
import type { TextRow } from '../database/connection.ts'
import { processIdOf } from '../database/process-id.ts'
import { type Examination, advice, sql } from './examination.ts'

/** How many new sessions are looked at while the one that sets is there. */
const looks = 2
/** A pool that is used up lets a session wait. */
export const patienceMs = 5000
/** How many transactions may go by until the one that was set in is met again. */
const cleaningLooks = 40

interface Look {
  readonly pid: string
  readonly user: string
  readonly probe: string
  readonly fence: string
}

/**
 * Whether a pooler stands in between, whether what one client sets with SET reaches others, and whether a fence has got about
 * that way. A harmless setting of our own, `fencepost.probe`, is set in one session, looked for in others, and taken back.
 */
export async function checkPooler(
  exam: Examination,
  connect: () => Client,
  config: ClientConfig,
): Promise<void> {
  const probe = randomBytes(8).toString('hex')
  const setter = connect()
  const fences: Look[] = []
  const sees = (look: Look): boolean => {
    if (look.fence !== '' && !fences.some(({ pid }) => pid === look.pid)) fences.push(look)
    return look.probe === probe
  }
  try {
    await setter.connect()
    const at = await lookAround(setter, `set fencepost.probe = '${probe}'`)
    sees(at)
    const isPooled = at.pid !== String(processIdOf(setter))
    if (isPooled) {
      exam.found(
        'pooler',
        'note',
        'the pooler',
        'A pooler stands between this machine and the server: leases and fences work through it, and PGOPTIONS (see "fencepost env") does not.',
        advice(
          'None is needed. For programs that are fenced by PGOPTIONS, name the server itself in their database URL.',
        ),
      )
    }
    // While the first client is there, as in transaction mode (in session mode there may be no room for a second one)…
    let isLeaking = await looksFor(connect, sees, looks).catch(() => false)
    await setter.end()
    // … and when it is gone, as in session mode. A pooler leads to the session that was set in sooner or later.
    const isMet = (look: Look): boolean => look.pid === at.pid
    if (isPooled) {
      isLeaking = (await looksFor(connect, sees, cleaningLooks, isMet)) || isLeaking
      if (isLeaking) reportLeak(exam)
    }
  } catch (error) {
    exam.found(
      'not-checked',
      'note',
      'the pooler',
      `The doctor could not look at what a pooler hands on: ${(error as Error).message}.`,
      advice(
        'Run it again when a few more sessions are free, or with a database URL that names the server itself.',
      ),
    )
  } finally {
    await setter.end().catch(() => {})
  }
  reportFences(exam, fences, config)
}

/** One transaction, which stays in one session whatever the pooler does. The statement comes after the look. */
async function lookAround(client: Client, statement: string): Promise<Look> {
  await client.query('begin')
  const { rows } = await client.query<TextRow>(
    `select pg_catalog.pg_backend_pid()::text as pid, session_user::text as "user",
            coalesce(pg_catalog.current_setting('fencepost.probe', true), '') as probe,
            coalesce(pg_catalog.current_setting('fencepost.fence', true), '') as fence`,
  )
  await client.query(statement)
  await client.query('commit')
  const { pid = '', user = '', probe = '', fence = '' } = rows[0] ?? {}
  return { pid: pid!, user: user!, probe: probe!, fence: fence! }
}

/**
 * Looks at so many new sessions, or until one is the last, and takes the probe out of the last ones. One after the other, so
 * that a pooler leads them to the same session, and a small pool has room for them.
 */
async function looksFor(
  connect: () => Client,
  sees: (look: Look) => boolean,
  turns: number,
  isLast?: (look: Look) => boolean,
): Promise<boolean> {
  const statement = isLast === undefined ? 'select' : `set fencepost.probe = ''`
  let isSeen = false
  for (let turn = 0; turn < turns; turn += 1) {
    const client = connect()
    try {
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await client.connect()
      // oxlint-disable-next-line no-await-in-loop -- As above.
      const look = await lookAround(client, statement)
      isSeen = sees(look) || isSeen
      if (isLast?.(look) === true) break
    } finally {
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await client.end().catch(() => {})
    }
  }
  return isSeen
}

function reportLeak(exam: Examination): void {
  exam.found(
    'pooler-leaks-set',
    'warning',
    'the pooler',
    'The pooler hands a SET of one client to others: a program that sets fencepost.fence for its session, or session_replication_role, sets it for strangers.',
    advice(
      'In pgbouncer.ini: server_reset_query = DISCARD ALL and server_reset_query_always = 1, then RELOAD and RECONNECT on its console. Or let no client use a plain SET: fences are set for one transaction (lease.transaction, fencepost.fence()).',
    ),
  )
}

function reportFences(exam: Examination, fences: readonly Look[], config: ClientConfig): void {
  // A shell under "fencepost env" gives its fence to every session that it opens, this one too.
  const options = connectionOptions(config)
  if (options.includes('fencepost.fence')) return
  const { database } = exam.facts
  for (const { pid, user, fence } of fences) {
    // What is stored for these sessions has been found already.
    const places = [
      'all roles',
      `database ${database}`,
      `role ${user}`,
      `role ${user} in database ${database}`,
    ]
    if (exam.findings.some((one) => one.code === 'fence-stored' && places.includes(one.object))) continue
    const lease = fence.split('\n')[0]!.split(':').slice(2).join(':')
    exam.found(
      'fence-leaked',
      'error',
      `session ${pid}`,
      `A new session (${pid}) carries a fence of lease "${lease}" already, so whoever uses it writes protected tables under another's term.`,
      sql(`select pg_terminate_backend(${pid});`),
    )
  }
}

function connectionOptions(config: ClientConfig): string {
  const client = new Client(config) as unknown as { connectionParameters?: { options?: string } }
  return client.connectionParameters?.options ?? ''
}
