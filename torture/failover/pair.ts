import { Client, type QueryResultRow } from 'pg'
import { DebianFolder, type DebianNode, type Settings } from '../../test/support/debian-server.ts'
import { Relay } from './relay.ts'

/** How a commit waits for the standby: not at all, until it has the log on its disk, or until it shows what was written. */
export type Replication = 'asynchronous' | 'synchronous' | 'synchronous, remote_apply'

const settings: Record<Replication, Settings> = {
  asynchronous: {},
  synchronous: { synchronous_standby_names: 'standby' },
  'synchronous, remote_apply': { synchronous_standby_names: 'standby', synchronous_commit: 'remote_apply' },
}

/** Processes are killed here; no machine loses its power. */
const common: Settings = { fsync: 'off', max_connections: 60, wal_keep_size: '64MB' }

/** Makes one pair after the other of the same data. */
export class Pairs implements AsyncDisposable {
  readonly #folder: DebianFolder
  #made = 0

  private constructor(folder: DebianFolder) {
    this.#folder = folder
  }

  /** `prepare` writes what every pair begins with. */
  static async make(binaries: string, prepare: (server: DebianNode) => Promise<void>): Promise<Pairs> {
    const folder = await DebianFolder.make(binaries)
    try {
      await folder.initialize('first')
      const server = await folder.serve('first', common)
      await prepare(server)
      await server.stop()
      return new Pairs(folder)
    } catch (error) {
      await folder[Symbol.asyncDispose]()
      throw error
    }
  }

  async start(replication: Replication): Promise<Pair> {
    this.#made += 1
    const [primary, standby] = [`primary-${this.#made}`, `standby-${this.#made}`]
    await this.#folder.duplicate(primary, 'first')
    return Pair.start(this.#folder, primary, standby, settings[replication])
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#folder[Symbol.asyncDispose]()
  }
}

/** A primary and a standby that streams from it, on loopback, with a line between them that can be held. */
export class Pair implements AsyncDisposable {
  readonly primary: DebianNode
  readonly standby: DebianNode
  /** Carries the write-ahead log from the primary to the standby. */
  readonly line: Relay
  readonly #forget: () => Promise<void>

  private constructor(primary: DebianNode, standby: DebianNode, line: Relay, forget: () => Promise<void>) {
    this.primary = primary
    this.standby = standby
    this.line = line
    this.#forget = forget
  }

  static async start(folder: DebianFolder, first: string, second: string, wanted: Settings): Promise<Pair> {
    const primary = await folder.serve(first, common)
    const line = await Relay.to(primary.port)
    try {
      const source = `host=127.0.0.1 port=${line.port} user=postgres application_name=standby`
      await folder.copy(second, source)
      const standby = await folder.serve(second, { ...common, primary_conninfo: source })
      const pair = new Pair(primary, standby, line, async () => {
        await Promise.all([folder.remove(first), folder.remove(second)])
      })
      await pair.#replicate(wanted)
      return pair
    } catch (error) {
      await line[Symbol.asyncDispose]()
      throw error
    }
  }

  /** Until the standby has replayed everything that the primary has written by now. */
  async caughtUp(): Promise<void> {
    await untilTrue(this.standby, `pg_last_wal_replay_lsn() >= '${await this.#written()}'`)
  }

  /** Until it has received it. */
  async received(): Promise<void> {
    await untilTrue(this.standby, `pg_last_wal_receive_lsn() >= '${await this.#written()}'`)
  }

  /**
   * Makes the standby a primary, whatever the other one does, and returns when it takes writes. What is held on the line is lost, and
   * from now on nothing passes between the two.
   */
  async promote(): Promise<void> {
    await ask(this.standby, 'select pg_promote(wait => false)')
    await untilTrue(this.standby, 'not pg_is_in_recovery()')
    this.line.close()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A primary that stops in order would wait for its standby.
    await Promise.all([this.primary.crash(), this.standby.crash(), this.line[Symbol.asyncDispose]()])
    await this.#forget()
  }

  async #written(): Promise<string> {
    const [at] = await ask<{ lsn: string }>(this.primary, 'select pg_current_wal_insert_lsn()::text as lsn')
    return at!.lsn
  }

  async #replicate(wanted: Settings): Promise<void> {
    for (const [setting, value] of Object.entries(wanted)) {
      // oxlint-disable-next-line no-await-in-loop -- Two settings, of one file.
      await ask(this.primary, `alter system set ${setting} = '${value}'`)
    }
    await ask(this.primary, 'select pg_reload_conf()')
    const state = 'synchronous_standby_names' in wanted ? 'sync' : 'async'
    await untilTrue(
      this.primary,
      `exists (select from pg_stat_replication where state = 'streaming' and sync_state = '${state}')`,
    )
  }
}

/** In a session of its own: the server may have become another one since the last. */
export async function ask<Row extends QueryResultRow>(
  server: { readonly url: string },
  text: string,
  values: unknown[] = [],
): Promise<Row[]> {
  const client = new Client({ connectionString: server.url })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query<Row>(text, values)).rows
  } finally {
    await client.end()
  }
}

/** Asks in one session until the condition holds. */
async function untilTrue(server: { readonly url: string }, condition: string): Promise<void> {
  const client = new Client({ connectionString: server.url })
  client.on('error', () => {})
  await client.connect()
  try {
    for (;;) {
      // oxlint-disable-next-line no-await-in-loop -- Until it does.
      const { rows } = await client.query<{ holds: boolean }>(
        `select (${condition}) as holds, pg_sleep(0.005)`,
      )
      if (rows[0]!.holds) return
    }
  } finally {
    await client.end()
  }
}
