import { PgBouncer, pgbouncerReason } from '../../test/support/pgbouncer.ts'
import { type ServerFault, nothing } from './server-fault.ts'

export interface Pooler {
  /** Of the same database, through the pooler; stays the same when it is restarted. */
  readonly url: string
  stop(): Promise<void>
}

class RunningPooler implements Pooler {
  readonly url: string
  readonly databaseUrl: string
  #bouncer: PgBouncer

  constructor(bouncer: PgBouncer, databaseUrl: string) {
    this.url = bouncer.url
    this.databaseUrl = databaseUrl
    this.#bouncer = bouncer
  }

  async end(): Promise<void> {
    await this.#bouncer.stop()
  }

  async startAgain(): Promise<void> {
    this.#bouncer = await start(this.databaseUrl, new URL(this.url).port)
  }

  async stop(): Promise<void> {
    poolers.delete(this)
    await this.end()
  }
}

/** Those that run, for the fault to find: the server knows nothing of them. */
const poolers = new Set<RunningPooler>()

function start(databaseUrl: string, port?: string): Promise<PgBouncer> {
  return PgBouncer.start(databaseUrl, {
    default_pool_size: '2',
    // The default is to wait 15 s before the server is asked again.
    server_login_retry: '1',
    ...(port !== undefined && { listen_port: port }),
  })
}

/** Why there can be none here; undefined when there can. */
export const poolerReason = pgbouncerReason

/** A way to the database through PgBouncer in transaction mode, with two server connections for all. */
export async function startPooler(databaseUrl: string): Promise<Pooler> {
  const pooler = new RunningPooler(await start(databaseUrl), databaseUrl)
  poolers.add(pooler)
  return pooler
}

/** The poolers are killed, and come back. */
export const poolerRestart: ServerFault = {
  name: 'pooler-restart',
  lastsMs: [0, 2_000],
  reason: async () => pgbouncerReason(),
  async inflict({ server }) {
    const all = [...poolers].filter(({ databaseUrl }) => databaseUrl === server.url)
    if (all.length === 0) return nothing('there is no pooler')
    await Promise.all(all.map((pooler) => pooler.end()))
    return {
      target: `${all.length} poolers`,
      async heal() {
        await Promise.all(all.map((pooler) => pooler.startAgain()))
      },
    }
  },
}
