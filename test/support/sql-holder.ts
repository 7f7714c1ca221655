import { randomUUID } from 'node:crypto'
import type { Client, Pool } from 'pg'

export interface AcquireRow {
  readonly name: string
  readonly token: string | null
  readonly reason: string | null
  readonly label: string | null
  readonly remaining_ms: string | null
}

/** A holder that speaks to the protocol functions directly, as a client in another language would. */
export class SqlHolder {
  readonly id: string = randomUUID()
  readonly #db: Pool | Client
  #attempt = 0

  private constructor(db: Pool | Client) {
    this.#db = db
  }

  static async join(db: Pool | Client, ttlMs = 30_000, label = 'sql'): Promise<SqlHolder> {
    const holder = new SqlHolder(db)
    await db.query('select fencepost.join_holder($1, $2, null, null, null, $3)', [holder.id, label, ttlMs])
    return holder
  }

  async acquire(...names: string[]): Promise<AcquireRow[]> {
    this.#attempt += 1
    const { rows } = await this.#db.query<AcquireRow>('select * from fencepost.acquire($1, $2, $3)', [
      names,
      this.id,
      this.#attempt,
    ])
    return rows
  }

  /** The token, for a test in which nothing else is expected. */
  async take(name: string): Promise<bigint> {
    const [row] = await this.acquire(name)
    if (row?.token == null) throw new Error(`"${name}" was not granted: ${row?.reason}`)
    return BigInt(row.token)
  }

  async release(name: string, token: bigint): Promise<string> {
    const { rows } = await this.#db.query<{ outcome: string }>(
      'select * from fencepost.release($1, $2, $3)',
      [[name], [token.toString()], this.id],
    )
    return rows[0]!.outcome
  }

  async beat(): Promise<boolean> {
    const { rows } = await this.#db.query<{ alive: boolean }>('select fencepost.beat($1) as alive', [this.id])
    return rows[0]!.alive
  }

  async end(): Promise<void> {
    await this.#db.query('select fencepost.end_holder($1)', [this.id])
  }

  /** Its TTL passes, without anybody waiting for it. */
  async expire(): Promise<void> {
    await this.#db.query(
      `update fencepost.holder set expires_at = clock_timestamp() - interval '1 ms' where id = $1`,
      [this.id],
    )
  }

  async fence(db: Pool | Client, name: string, token: bigint): Promise<void> {
    await db.query('select fencepost.fence($1, $2, $3)', [name, token.toString(), this.id])
  }
}
