import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client, type QueryResultRow } from 'pg'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { Fencepost, type OpenOptions } from '../../src/index.ts'
import type { Affliction, TortureServer, World } from '../../torture/faults/fault.ts'
import { type ServerFault } from '../../torture/faults/server-fault.ts'
import { startEmbedded } from '../support/embedded.ts'

/** A server that faults are tried on, with an application's table. */
export class AfflictedServer implements TortureServer, AsyncDisposable {
  readonly #directory: string
  readonly #fenceposts: Fencepost[] = []
  readonly #sessions: Client[] = []
  #server: EmbeddedServer

  private constructor(directory: string, server: EmbeddedServer) {
    this.#directory = directory
    this.#server = server
  }

  static async start(): Promise<AfflictedServer> {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-afflicted-'))
    const own = new AfflictedServer(directory, await startEmbedded({ directory, settings: { fsync: 'off' } }))
    await Fencepost.migrate({ connectionString: own.url })
    await own.query('create table job (id integer generated always as identity, note text)')
    return own
  }

  get url(): string {
    return this.#server.url
  }

  get embedded(): EmbeddedServer {
    return this.#server
  }

  stop(mode: 'fast' | 'immediate'): Promise<void> {
    return this.#server.stop(mode)
  }

  async startAgain(): Promise<void> {
    const { port } = this.#server
    this.#server = await startEmbedded({
      directory: this.#directory,
      port,
      settings: { fsync: 'off' },
    })
  }

  async session(name = 'application'): Promise<Client> {
    const client = new Client({
      connectionString: this.url,
      application_name: name,
      connectionTimeoutMillis: 5_000,
    })
    client.on('error', () => {})
    await client.connect()
    this.#sessions.push(client)
    return client
  }

  async query<Row extends QueryResultRow>(text: string, values: unknown[] = []): Promise<Row[]> {
    const client = await this.session('torture test')
    try {
      return (await client.query<Row>(text, values)).rows
    } finally {
      await client.end()
    }
  }

  async open(options: OpenOptions = {}): Promise<Fencepost> {
    const fencepost = await Fencepost.open({ connectionString: this.url, minTtl: '100ms', ...options })
    this.#fenceposts.push(fencepost)
    return fencepost
  }

  /** The same chance every time. */
  inflict(fault: ServerFault, chance = 0.25): Promise<Affliction> {
    const world: World = { clients: [], server: this, random: () => chance }
    return fault.inflict(world)
  }

  /** Closes what has been opened. */
  async quieten(): Promise<void> {
    await Promise.all(this.#fenceposts.splice(0).map((fencepost) => fencepost.close()))
    await Promise.all(this.#sessions.splice(0).map((client) => client.end().catch(() => {})))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.quieten()
    await this.#server.stop('immediate')
    await rm(this.#directory, { recursive: true, force: true })
  }
}
