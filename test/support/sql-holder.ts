import { randomUUID } from 'node:crypto'
import type { Client, Pool } from 'pg'

export interface AcquireRow {
  readonly name: string
  readonly token: string | null
  readonly reason: string | null
  readonly label: string | null
  readonly remaining_ms: string | null
  readonly ticket: string | null
  readonly again_ms: string | null
  readonly deadline_ms: string | null
}

export interface ReleaseRow {
  readonly name: string | null
  readonly outcome: string | null
  readonly wake: string | null
}

export interface Asking {
  readonly stand?: boolean
  readonly barge?: boolean
  readonly minHoldMs?: number
  readonly maxHoldMs?: number
  readonly graceMs?: number
  readonly sequence?: string
  readonly attempt?: number
}

/** The functions that holders call: those with an answer for each name, or those that have one for all where that will do. */
const functions = { acquire: 'fencepost.acquire', release: 'fencepost.release' }

/** From now on holders in this test file ask as the library does. */
export function useBatches(): void {
  functions.acquire = 'fencepost.acquire_batch'
  functions.release = 'fencepost.release_batch'
}

/** A holder that speaks to the protocol functions directly, as a client in another language would. */
export class SqlHolder {
  readonly id: string
  readonly #db: Pool | Client
  readonly #attempts: { last: number }

  /** One that has still to join. */
  constructor(db: Pool | Client, id: string = randomUUID(), attempts = { last: 0 }) {
    this.#db = db
    this.id = id
    this.#attempts = attempts
  }

  static async join(db: Pool | Client, ttlMs = 30_000, label = 'sql'): Promise<SqlHolder> {
    const holder = new SqlHolder(db)
    await db.query('select fencepost.join_holder($1, $2, null, null, null, $3)', [holder.id, label, ttlMs])
    return holder
  }

  /** The same holder, which speaks through another connection. */
  on(db: Pool | Client): SqlHolder {
    return new SqlHolder(db, this.id, this.#attempts)
  }

  async acquire(...names: string[]): Promise<AcquireRow[]> {
    this.#attempts.last += 1
    const { rows } = await this.#db.query<AcquireRow>(`select * from ${functions.acquire}($1, $2, $3)`, [
      names,
      this.id,
      this.#attempts.last,
    ])
    return granted(names, rows)
  }

  /** One call of acquire, with all that can be said in it. */
  async ask(names: readonly string[], asking: Asking = {}): Promise<AcquireRow[]> {
    const { rows } = await this.#db.query<AcquireRow>(
      `select * from ${functions.acquire}($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
      [
        names,
        this.id,
        this.#attempt(asking),
        asking.sequence ?? 'default',
        asking.stand ?? false,
        ...bounds(asking),
      ],
    )
    return granted(names, rows)
  }

  async askAll(names: readonly string[], asking: Asking = {}): Promise<AcquireRow[]> {
    const { rows } = await this.#db.query<AcquireRow>(
      'select * from fencepost.acquire_all($1, $2, $3, $4, $5, $6, $7, $8)',
      [names, this.id, this.#attempt(asking), asking.sequence ?? 'default', ...bounds(asking)],
    )
    return rows
  }

  /** The token, for a test in which nothing else is expected. */
  async take(name: string, asking: Asking = {}): Promise<bigint> {
    const [row] = await this.ask([name], asking)
    if (row?.token == null) throw new Error(`"${name}" was not granted: ${row?.reason}`)
    return BigInt(row.token)
  }

  /** The ticket, for a test in which the lease is not to be had. */
  async stand(name: string, asking: Asking = {}): Promise<string> {
    const [row] = await this.ask([name], { ...asking, stand: true })
    if (row?.ticket == null) throw new Error(`no place in line for "${name}": ${row?.reason ?? 'granted'}`)
    return row.ticket
  }

  async askWithTickets(
    names: readonly string[],
    tickets: readonly string[],
    sequence = 'default',
  ): Promise<AcquireRow[]> {
    const { rows } = await this.#db.query<AcquireRow>(
      'select * from fencepost.acquire($1, $2, p_sequence => $3, p_tickets => $4)',
      [names, this.id, sequence, tickets],
    )
    return rows
  }

  async askWithTicket(name: string, ticket: string): Promise<AcquireRow> {
    const rows = await this.askWithTickets([name], [ticket])
    if (rows.length !== 1) throw new Error(`${rows.length} rows for the ticket of "${name}"`)
    return rows[0]!
  }

  async release(name: string, token: bigint): Promise<string> {
    return (await this.letGo(name, token)).outcome!
  }

  /** A release, with whom to wake. */
  async letGo(name: string, token: bigint): Promise<ReleaseRow> {
    const rows = await this.letGoAll([name], [token.toString()])
    return rows.find((row) => row.name === name)!
  }

  async letGoAll(names: readonly string[], tokens: readonly string[]): Promise<ReleaseRow[]> {
    const { rows } = await this.#db.query<ReleaseRow>(`select * from ${functions.release}($1, $2, $3)`, [
      names,
      tokens,
      this.id,
    ])
    const [all] = rows
    return rows.length === 1 && all!.name === null ? names.map((name) => ({ ...all!, name })) : rows
  }

  async leave(names: readonly string[], tickets: readonly string[]): Promise<ReleaseRow[]> {
    const { rows } = await this.#db.query<ReleaseRow>('select * from fencepost.leave($1, $2, $3)', [
      this.id,
      names,
      tickets,
    ])
    return rows
  }

  async voidAttempts(attempt: number): Promise<void> {
    await this.#db.query('select fencepost.void_attempts($1, $2)', [this.id, attempt])
  }

  async giveBack(names: readonly string[], attempts: readonly number[]): Promise<string[]> {
    const { rows } = await this.#db.query<{ wake: string }>(
      'select fencepost.give_back($1, $2, $3) as wake',
      [this.id, names, attempts],
    )
    return rows.map((row) => row.wake)
  }

  async beat(): Promise<boolean> {
    const { rows } = await this.#db.query<{ alive: boolean }>('select fencepost.beat($1) as alive', [this.id])
    return rows[0]!.alive
  }

  async end(): Promise<void> {
    await this.#db.query('select fencepost.end_holder($1)', [this.id])
  }

  /** The second half of an end: what others wait for goes on. */
  async handOn(): Promise<string[]> {
    const { rows } = await this.#db.query<{ wake: string }>('select fencepost.hand_on($1) as wake', [this.id])
    return rows.map((row) => row.wake)
  }

  /** Its TTL passed so long ago, without anybody waiting for it. */
  async expire(msAgo = 1): Promise<void> {
    await this.#db.query(
      `update fencepost.holder set expires_at = clock_timestamp() - $2 * interval '1 ms' where id = $1`,
      [this.id, msAgo],
    )
  }

  async fence(db: Pool | Client, name: string, token: bigint): Promise<void> {
    await db.query('select fencepost.fence($1, $2, $3)', [name, token.toString(), this.id])
  }

  #attempt(asking: Asking): number {
    this.#attempts.last = Math.max(this.#attempts.last, asking.attempt ?? this.#attempts.last + 1)
    return asking.attempt ?? this.#attempts.last
  }
}

function bounds(asking: Asking): unknown[] {
  return [asking.barge ?? false, asking.minHoldMs ?? 0, asking.maxHoldMs ?? null, asking.graceMs ?? 0]
}

/** Until the query has been answered, or so many backends wait for a lock: an event, not a length of time. */
export async function waitsOrAnswers(
  db: Pool,
  query: Promise<unknown>,
  waiting = 1,
): Promise<'waits' | 'answers'> {
  let isAnswered = false
  query.then(
    () => (isAnswered = true),
    () => (isAnswered = true),
  )
  for (;;) {
    // oxlint-disable-next-line no-await-in-loop -- Until it is known.
    const { rows } = await db.query<{ waiting: number }>(
      `select count(*)::integer as waiting from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`,
    )
    if (isAnswered) return 'answers'
    if (rows[0]!.waiting >= waiting) return 'waits'
  }
}

/** An answer for each name. */
function granted(names: readonly string[], rows: AcquireRow[]): AcquireRow[] {
  const [all] = rows
  if (rows.length !== 1 || all!.name !== null) return rows
  return names.map((name, place) => ({ ...all!, name, token: String(BigInt(all!.token!) + BigInt(place)) }))
}
