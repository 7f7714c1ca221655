import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client, type QueryResultRow } from 'pg'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { Fencepost, type OpenOptions } from '../../src/index.ts'
import { startEmbedded } from './embedded.ts'

/** A PostgreSQL of a test's own, with the schema: to be restarted, frozen, filled up, and asked what it was asked. */
export class OwnServer implements AsyncDisposable {
  readonly #directory: string
  readonly #settings: Readonly<Record<string, string>>
  readonly #fenceposts: Fencepost[] = []
  #server: EmbeddedServer

  private constructor(directory: string, settings: Readonly<Record<string, string>>, server: EmbeddedServer) {
    this.#directory = directory
    this.#settings = settings
    this.#server = server
  }

  static async start(more: Readonly<Record<string, string>> = {}): Promise<OwnServer> {
    const settings = { fsync: 'off', shared_preload_libraries: 'pg_stat_statements', ...more }
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-own-'))
    const own = new OwnServer(directory, settings, await startEmbedded({ directory, settings }))
    await Fencepost.migrate({ connectionString: own.url })
    await own.query('create extension pg_stat_statements')
    return own
  }

  get url(): string {
    return this.#server.url
  }

  async open(options: OpenOptions = {}): Promise<Fencepost> {
    const fencepost = await Fencepost.open({ connectionString: this.url, minTtl: '100ms', ...options })
    this.#fenceposts.push(fencepost)
    return fencepost
  }

  /** In a session of its own, because the server may have been restarted since the last one. */
  async query<Row extends QueryResultRow>(text: string, values: unknown[] = []): Promise<Row[]> {
    const client = await this.session()
    try {
      return (await client.query<Row>(text, values)).rows
    } finally {
      await client.end()
    }
  }

  async session(): Promise<Client> {
    const client = new Client({ connectionString: this.url })
    client.on('error', () => {})
    await client.connect()
    return client
  }

  /** How often the functions whose names match have been called since the last reset. */
  async calls(pattern: string): Promise<number> {
    const [row] = await this.query<{ calls: string | null }>(
      'select sum(calls) as calls from pg_stat_statements where toplevel and query ~ $1',
      [`fencepost\\.(${pattern})\\(`],
    )
    return Number(row!.calls)
  }

  async resetCalls(): Promise<void> {
    await this.query('select pg_stat_statements_reset()')
  }

  async stop(mode: 'fast' | 'immediate'): Promise<void> {
    await this.#server.stop(mode)
  }

  /** On the port it had. */
  async startAgain(): Promise<void> {
    const { port } = this.#server
    this.#server = await startEmbedded({ directory: this.#directory, port, settings: this.#settings })
  }

  freeze(): Promise<void> {
    return this.#server.freeze()
  }

  thaw(): Promise<void> {
    return this.#server.thaw()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#fenceposts.map((fencepost) => fencepost.close()))
    await this.#server.stop('immediate')
    await rm(this.#directory, { recursive: true, force: true })
  }
}
