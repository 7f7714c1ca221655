import { Client } from 'pg'
import { EmbeddedServer, type EmbeddedServerOptions } from '../../src/database/embedded-server.ts'
import type { TortureServer } from '../faults/fault.ts'

/** As durable as a server comes by default; the rest is for the judge, who reads the write-ahead log, and to be quick on a small machine. */
const settings = {
  wal_level: 'logical',
  max_replication_slots: '4',
  max_wal_senders: '4',
  track_commit_timestamp: 'on',
  max_connections: '200',
}

/** In a process group of its own, so that a Ctrl-C in the terminal is not for it; it ends with this process all the same. */
async function launch(options: EmbeddedServerOptions): Promise<EmbeddedServer> {
  const server = await EmbeddedServer.start({ ...options, detached: true })
  running = server.pid
  return server
}

let running: number | undefined
process.on('exit', () => {
  try {
    if (running !== undefined) process.kill(running, 'SIGQUIT')
  } catch {
    // It has ended before.
  }
})

/** The PostgreSQL of a run, which is stopped and started under everybody's hands. */
export class OwnServer implements TortureServer {
  readonly #directory: string
  readonly #settings: Readonly<Record<string, string>>
  #embedded: EmbeddedServer

  private constructor(directory: string, own: Readonly<Record<string, string>>, embedded: EmbeddedServer) {
    this.#directory = directory
    this.#settings = own
    this.#embedded = embedded
  }

  static async start(directory: string, more: Readonly<Record<string, string>> = {}): Promise<OwnServer> {
    const own = { ...settings, ...more }
    return new OwnServer(directory, own, await launch({ directory, settings: own }))
  }

  get url(): string {
    return this.#embedded.url
  }

  get embedded(): EmbeddedServer {
    return this.#embedded
  }

  async stop(mode: 'fast' | 'immediate'): Promise<void> {
    await this.#embedded.stop(mode)
    running = undefined
  }

  async startAgain(): Promise<void> {
    const { port } = this.#embedded
    this.#embedded = await launch({ directory: this.#directory, port, settings: this.#settings })
  }

  async session(): Promise<Client> {
    const client = new Client({ connectionString: this.url, connectionTimeoutMillis: 5000 })
    client.on('error', () => {})
    await client.connect()
    return client
  }
}
