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

export interface PairOptions {
  readonly replication: Replication
  /** Prepares the primary before the standby is made of it. */
  readonly prepare?: (primary: DebianNode) => Promise<void>
}

/** A primary and a standby that streams from it, both of Debian's packages, on loopback, with a line between them that can be held. */
export class Pair implements AsyncDisposable {
  readonly primary: DebianNode
  readonly standby: DebianNode
  /** Carries the write-ahead log from the primary to the standby. */
  readonly line: Relay
  readonly #folder: DebianFolder

  private constructor(folder: DebianFolder, primary: DebianNode, standby: DebianNode, line: Relay) {
    this.#folder = folder
    this.primary = primary
    this.standby = standby
    this.line = line
  }

  static async start(binaries: string, options: PairOptions): Promise<Pair> {
    const folder = await DebianFolder.make(binaries)
    let line: Relay | undefined
    try {
      await folder.initialize('primary')
      // Processes are killed here, no machine loses its power.
      const common: Settings = { fsync: 'off', max_connections: 60, wal_keep_size: '64MB' }
      const primary = await folder.serve('primary', common)
      await options.prepare?.(primary)
      line = await Relay.to(primary.port)
      const source = `host=127.0.0.1 port=${line.port} user=postgres application_name=standby`
      await folder.copy('standby', source)
      const standby = await folder.serve('standby', { ...common, primary_conninfo: source })
      const pair = new Pair(folder, primary, standby, line)
      await pair.#replicate(settings[options.replication])
      return pair
    } catch (error) {
      await line?.[Symbol.asyncDispose]()
      await folder[Symbol.asyncDispose]()
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
    this.line.cut()
    await ask(this.standby, 'select pg_promote(wait => false)')
    await untilTrue(this.standby, 'not pg_is_in_recovery()')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.line[Symbol.asyncDispose]()
    await this.#folder[Symbol.asyncDispose]()
  }

  async #written(): Promise<string> {
    const [at] = await ask<{ lsn: string }>(this.primary, 'select pg_current_wal_insert_lsn()::text as lsn')
    return at!.lsn
  }

  async #replicate(wanted: Settings): Promise<void> {
    for (const [setting, value] of Object.entries(wanted)) {
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

/** In a session of its own: the server may have been restarted, or become another one, since the last one. */
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
export async function untilTrue(server: { readonly url: string }, condition: string): Promise<void> {
  const client = new Client({ connectionString: server.url })
  client.on('error', () => {})
  await client.connect()
  try {
    for (;;) {
      const { rows } = await client.query<{ holds: boolean }>(
        `select (${condition}) as holds, pg_sleep(0.005)`,
      )
      if (rows[0]!.holds) return
    }
  } finally {
    await client.end()
  }
}
