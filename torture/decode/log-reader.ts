import type { Client } from 'pg'
import type { Change, Committed } from '../history.ts'
import { KnownRows, watchedTables } from './known-rows.ts'
import { parseLine } from './test-decoding.ts'

export interface LogReaderOptions {
  /** The name of the slot, which the server has once. Default: `torture`. */
  readonly slot?: string
  /** So many changes are read at once, and the rest of the transaction that the last of them is of. Default: 20,000. */
  readonly portion?: number
}

interface Row {
  readonly lsn: string
  readonly data: string
}

/**
 * Reads what the server has committed from its write-ahead log, by a replication slot: in the order of the commits, nothing twice and
 * nothing left out, whatever the server goes through in between. It needs `wal_level = logical` and the plugin `test_decoding`.
 */
export class LogReader {
  readonly #slot: string
  readonly #portion: number
  readonly #rows = new KnownRows()
  /** Up to where it has been read. */
  #readTo: string | undefined

  private constructor({ slot = 'torture', portion = 20_000 }: LogReaderOptions) {
    this.#slot = slot
    this.#portion = portion
  }

  /** Makes the slot, in the client's database. Nothing that was committed before will be read, so it comes before the first lease. */
  static async create(client: Client, options: LogReaderOptions = {}): Promise<LogReader> {
    const reader = new LogReader(options)
    await client.query(`select pg_create_logical_replication_slot($1, 'test_decoding')`, [reader.#slot])
    return reader
  }

  /**
   * The next transactions, as far as they can be read at once; none when everything has been read. Asking for more says that those of the
   * call before have been written down. A call that has failed can be repeated, in another session too. One at a time.
   */
  async read(client: Client): Promise<Committed[]> {
    for (;;) {
      const readTo = this.#readTo
      // oxlint-disable-next-line no-await-in-loop -- What only other tables were changed by is nothing to wait for.
      const transactions = this.#take(await this.#peek(client))
      if (transactions.length > 0 || this.#readTo === readTo) return transactions
    }
  }

  /**
   * Everything up to now, after what was read before, which it says has been written down. It waits for the disk with all that was committed
   * without: such commits are not in the log yet, and a crash could still undo them. So it is for the end of a run.
   */
  async readRest(client: Client): Promise<Committed[]> {
    await client.query('begin')
    await client.query(`set local synchronous_commit = 'on'`)
    await client.query(`select pg_logical_emit_message(true, 'torture', 'the end')`)
    await client.query('commit')
    const rest: Committed[] = []
    for (;;) {
      // oxlint-disable-next-line no-await-in-loop -- Portion after portion.
      const transactions = await this.read(client)
      if (transactions.length === 0) return rest
      rest.push(...transactions)
    }
  }

  async #peek(client: Client): Promise<Row[]> {
    await client.query('begin')
    try {
      // The plugin writes values as this session would.
      await client.query(
        `set local timezone = 'UTC'; set local datestyle = 'ISO'; set local intervalstyle = 'iso_8601'`,
      )
      // Each time anew, because a crash takes the slot back to where it was at the last checkpoint.
      if (this.#readTo !== undefined) {
        await client.query('select pg_replication_slot_advance($1, $2)', [this.#slot, this.#readTo])
      }
      // Not pg_logical_slot_get_changes, which forgets what is lost on its way here.
      const { rows } = await client.query<Row>(
        `select lsn::text, data
           from pg_logical_slot_peek_changes($1, null, $2, 'include-xids', 'on', 'include-timestamp', 'on', 'skip-empty-xacts', 'on')
          where data ~ '^(BEGIN|COMMIT)' or replace(split_part(data, ': ', 1), '"', '') = any ($3)`,
        [this.#slot, this.#portion, watchedTables.map((table) => `table ${table}`)],
      )
      await client.query('commit')
      return rows
    } catch (error) {
      await client.query('rollback').catch(() => {})
      throw error
    }
  }

  #take(rows: readonly Row[]): Committed[] {
    const transactions: Committed[] = []
    let lines: string[] = []
    for (const { lsn, data } of rows) {
      if (data.startsWith('BEGIN')) lines = []
      else if (!data.startsWith('COMMIT')) lines.push(data)
      else {
        const changes = lines.map((line) => this.#change(line)).filter((change) => change !== undefined)
        const commit = parseLine(data)
        if (commit.kind === 'commit' && changes.length > 0) {
          transactions.push({ kind: 'committed', atUs: commit.atUs, lsn, xid: commit.xid, changes })
        }
        this.#readTo = lsn
      }
    }
    return transactions
  }

  #change(data: string): Change | undefined {
    const line = parseLine(data)
    return line.kind === 'change' ? this.#rows.apply(line) : undefined
  }
}
