import type { Client } from 'pg'
import { eventually } from './cli.ts'
import type { TestDatabase } from './database.ts'

/** Holds up whoever comes to a table, until it is opened: so that a test decides for how long another's program runs. */
export class Gate {
  readonly #database: TestDatabase
  readonly #session: Client
  readonly #table: string

  private constructor(database: TestDatabase, session: Client, table: string) {
    this.#database = database
    this.#session = session
    this.#table = table
  }

  static async close(database: TestDatabase, table: string): Promise<Gate> {
    const session = await database.session()
    await session.query('begin')
    await session.query(`lock table ${table} in access exclusive mode`)
    return new Gate(database, session, table)
  }

  /** Waits until so many stand before it. */
  async isReachedBy(count: number): Promise<void> {
    await eventually(async () => {
      const waiting = await this.#database.query(
        'select from pg_locks where relation = $1::regclass and not granted',
        [this.#table],
      )
      return waiting.length === count
    })
  }

  async open(): Promise<void> {
    await this.#session.query('commit')
  }
}
