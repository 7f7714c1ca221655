import type { Client, ClientConfig, Pool } from 'pg'
import { onTestFinished } from 'vitest'
import type { TestDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

/** A granted term, and its fence in the form of the setting. */
export interface GrantedTerm {
  readonly lease: string
  readonly token: bigint
  readonly holder: SqlHolder
  readonly fence: string
}

const holders = new WeakMap<TestDatabase, Map<string, SqlHolder>>()

/** A new term of the lease, whoever had the last one. */
export async function grant(database: TestDatabase, lease: string, ttlMs = 600_000): Promise<GrantedTerm> {
  const known = holders.get(database) ?? new Map<string, SqlHolder>()
  holders.set(database, known)
  await known.get(lease)?.expire()
  const holder = await SqlHolder.join(database.pool, ttlMs)
  const token = await holder.take(lease)
  known.set(lease, holder)
  return { lease, token, holder, fence: `${token}:${holder.id}:${lease}` }
}

/** Fences the session by the setting, as PGOPTIONS does. */
export async function setFence(session: Client | Pool, ...fences: string[]): Promise<void> {
  await session.query(`select set_config('fencepost.fence', $1, false)`, [fences.join('\n')])
}

/** Fences the transaction with fence(). */
export async function callFence(
  session: Client,
  term: GrantedTerm,
  holderId = term.holder.id,
  idleMs: number | null = null,
): Promise<void> {
  await session.query('select fencepost.fence($1, $2, $3, $4)', [
    term.lease,
    term.token.toString(),
    holderId,
    idleMs,
  ])
}

/** The SQLSTATE that an attempt is refused with; undefined when it is not. */
export async function refusalOf(attempt: Promise<unknown>): Promise<string | undefined> {
  try {
    await attempt
    return undefined
  } catch (error) {
    return (error as { code?: string }).code ?? String(error)
  }
}

/** Until a statement waits for a lock, or has been answered against expectation. */
export async function waitsOrAnswers(database: TestDatabase, answer: Promise<unknown>): Promise<void> {
  let isAnswered = false
  answer.then(
    () => (isAnswered = true),
    () => (isAnswered = true),
  )
  for (;;) {
    const [row] = await database.query<{ waiting: number }>(
      `select count(*)::integer as waiting from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`,
    )
    if (isAnswered || row!.waiting > 0) return
  }
}

/** A session that ends with the test, whatever becomes of it. */
export async function sessionOfTest(database: TestDatabase, config: ClientConfig = {}): Promise<Client> {
  const session = await database.session(config)
  onTestFinished(() => session.end())
  return session
}
