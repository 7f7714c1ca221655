import { Client, Pool, type PoolConfig } from 'pg'
import { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { Fencepost } from '../../src/index.ts'
import { type Meter, meterOf } from '../meter.ts'
import { scratch } from './scratch.ts'

/** The number of connections that is best for so many workers on two cores; more of them lose. */
const poolSize = (workers: number): number => Math.min(workers, 20)

/** A PostgreSQL of a measure's own with fencepost's schema, durable as PostgreSQL is by default: fsync and synchronous_commit are on. */
export class BenchServer implements Meter, AsyncDisposable {
  readonly url: string
  /** The superuser's, for what is set up and counted. */
  readonly db: Client
  readonly #server: EmbeddedServer
  readonly #closing: AsyncDisposableStack
  readonly #pools = new Map<string, Pool>()

  private constructor(server: EmbeddedServer, db: Client, closing: AsyncDisposableStack) {
    this.url = server.url
    this.#server = server
    this.db = db
    this.#closing = closing
  }

  /** With `counted`, pg_stat_statements counts what each statement costs, which costs a little itself. */
  static async start(
    options: { readonly counted?: boolean; readonly settings?: Readonly<Record<string, string>> } = {},
  ): Promise<BenchServer> {
    const { counted = false, settings = {} } = options
    await using closing = new AsyncDisposableStack()
    const directory = closing.use(await scratch()).path
    const server = await EmbeddedServer.start({
      directory,
      settings: {
        max_connections: '300',
        ...(counted ? { shared_preload_libraries: 'pg_stat_statements' } : {}),
        ...settings,
      },
    })
    // Where this process is told to end in the middle of it. The server's last word goes into its folder, which is removed next.
    const kill = (): void => {
      process.kill(server.pid, 'SIGQUIT')
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500)
    }
    process.prependListener('exit', kill)
    closing.defer(async () => {
      await server.stop('fast')
      process.off('exit', kill)
    })
    await Fencepost.migrate({ connectionString: server.url })
    const db = new Client({ connectionString: server.url })
    closing.defer(() => db.end())
    await db.connect()
    if (counted) await db.query('create extension pg_stat_statements')
    return new BenchServer(server, db, closing.move())
  }

  /** A fencepost that is closed with the server. */
  async open(options: Parameters<typeof Fencepost.open>[0] = {}): Promise<Fencepost> {
    const fencepost = await Fencepost.open({ connectionString: this.url, ...options })
    this.#closing.defer(() => fencepost.close())
    return fencepost
  }

  /** Connections for so many workers, opened once. */
  pool(workers: number, config: PoolConfig = {}): Pool {
    const size = poolSize(workers)
    const key = JSON.stringify([size, config])
    let pool = this.#pools.get(key)
    if (pool === undefined) {
      pool = new Pool({ connectionString: this.url, max: size, min: size, ...config })
      const opened = pool
      this.#closing.defer(() => opened.end())
      this.#pools.set(key, pool)
    }
    return pool
  }

  /** A table of 1,024 rows, one of which each worker changes, with room to change it in place. */
  async createFloor(name = 'floor'): Promise<void> {
    await this.db.query(
      `create table ${name} (id integer primary key, value integer not null, fence_token bigint not null default 0) with (fillfactor = 50)`,
    )
    await this.db.query(`insert into ${name} (id, value) select n, 0 from generate_series(0, 1023) n`)
  }

  /** The URL of another database on this server, with the schema as well. */
  async createDatabase(name: string): Promise<string> {
    await this.db.query(`create database ${name}`)
    const url = new URL(this.url)
    url.pathname = `/${name}`
    await Fencepost.migrate({ connectionString: url.href })
    return url.href
  }

  cpuMs(): number | undefined {
    return meterOf(this.#server.pid, { hasThreads: false }).cpuMs()
  }

  async walBytes(): Promise<number> {
    const { rows } = await this.db.query<{ bytes: string }>(
      `select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as bytes`,
    )
    return Number(rows[0]!.bytes)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#closing.disposeAsync()
  }
}
