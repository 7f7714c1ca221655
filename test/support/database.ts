import { randomBytes } from 'node:crypto'
import { Kysely, PostgresDialect } from 'kysely'
import { Client, type ClientConfig, Pool, type PoolConfig, type QueryResultRow } from 'pg'
import { afterAll, beforeAll, inject } from 'vitest'
import { Fencepost, type OpenOptions } from '../../src/index.ts'

/** A database of one test file's own, and what is opened on it: all of it is closed when the file is done. */
export class TestDatabase {
  #name = ''
  #pool: Pool | undefined
  readonly #fenceposts: Fencepost[] = []
  readonly #pools: Pool[] = []
  readonly #clients: Client[] = []
  readonly #kyselys: Kysely<never>[] = []

  get url(): string {
    const url = new URL(inject('serverUrl'))
    url.pathname = `/${this.#name}`
    return url.href
  }

  /** The URL for another role of the same server. */
  urlAs(user: string, password: string): string {
    const url = new URL(this.url)
    url.username = user
    url.password = password
    return url.href
  }

  /** A pool for looking at the database from outside. */
  get pool(): Pool {
    this.#pool ??= this.newPool({ max: 60 })
    return this.#pool
  }

  newPool(config: PoolConfig = {}): Pool {
    const pool = new Pool({ connectionString: this.url, max: 10, ...config })
    pool.on('error', () => {})
    pool.on('connect', (client) => client.on('error', () => {}))
    this.#pools.push(pool)
    return pool
  }

  async query<Row extends QueryResultRow>(text: string, values: unknown[] = []): Promise<Row[]> {
    return (await this.pool.query<Row>(text, values)).rows
  }

  /** A session of its own, for interleaving transactions by hand. */
  async session(config: ClientConfig = {}): Promise<Client> {
    const client = new Client({ connectionString: this.url, ...config })
    client.on('error', () => {})
    await client.connect()
    this.#clients.push(client)
    return client
  }

  kysely<DB>(config: PoolConfig = {}): Kysely<DB> {
    const pool = new Pool({ connectionString: this.url, max: 10, ...config })
    pool.on('error', () => {})
    pool.on('connect', (client) => client.on('error', () => {}))
    const db = new Kysely<DB>({ dialect: new PostgresDialect({ pool }) })
    this.#kyselys.push(db as unknown as Kysely<never>)
    return db
  }

  async open(options: OpenOptions = {}): Promise<Fencepost> {
    const fencepost = await Fencepost.open({ connectionString: this.url, minTtl: '100ms', ...options })
    this.#fenceposts.push(fencepost)
    return fencepost
  }

  async create(template: string | undefined): Promise<void> {
    this.#name = `t_${randomBytes(6).toString('hex')}`
    await this.#onServer(
      `create database ${this.#name}${template === undefined ? '' : ` template ${template}`}`,
    )
  }

  async drop(): Promise<void> {
    await Promise.all(this.#fenceposts.map((fencepost) => fencepost.close()))
    await Promise.all(this.#kyselys.map((db) => db.destroy()))
    await Promise.all(this.#pools.filter((pool) => !pool.ended).map((pool) => pool.end()))
    await Promise.all(this.#clients.map((client) => client.end().catch(() => {})))
    await this.#onServer(`drop database ${this.#name} with (force)`)
  }

  async #onServer(statement: string): Promise<void> {
    const client = new Client({ connectionString: inject('serverUrl') })
    client.on('error', () => {})
    await client.connect()
    try {
      await client.query(statement)
    } finally {
      await client.end()
    }
  }
}

/** A migrated database for this file; an empty one with `{ migrated: false }`. */
export function useDatabase(options: { readonly migrated?: boolean } = {}): TestDatabase {
  const database = new TestDatabase()
  beforeAll(() => database.create(options.migrated === false ? undefined : inject('template')))
  afterAll(() => database.drop())
  return database
}
