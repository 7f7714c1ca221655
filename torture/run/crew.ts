import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { TcpProxy } from '../../test/support/tcp-proxy.ts'
import { ClientProcess } from './client-process.ts'
import type { HistoryFolder } from './history-folder.ts'

export interface CrewOptions {
  readonly count: number
  readonly seed: string
  readonly leases: readonly string[]
  readonly ttlMs: number | undefined
  readonly folder: HistoryFolder
  readonly logs: string
  /** Where the client in this place connects to. */
  urlOf(place: number): string
  readonly execArgv: readonly string[]
  readonly env: Readonly<Record<string, string>>
}

/** A client that ended without having been asked to, or did not when it was. */
export interface Casualty {
  readonly client: string
  readonly what: string
}

/** The clients. Each has its place and its proxy; who is killed is replaced by another one in the same place. */
export class Crew {
  readonly clients: ClientProcess[] = []
  readonly casualties: Casualty[] = []
  readonly #options: CrewOptions
  readonly #proxies: TcpProxy[] = []
  readonly #lives: number[] = []
  #isStopping = false

  private constructor(options: CrewOptions) {
    this.#options = options
  }

  static async start(options: CrewOptions): Promise<Crew> {
    const crew = new Crew(options)
    for (let place = 0; place < options.count; place += 1) {
      // oxlint-disable-next-line no-await-in-loop -- In their order.
      crew.#proxies.push(await TcpProxy.start(options.urlOf(place)))
      crew.#start(place)
    }
    await Promise.all(crew.clients.map((client) => client.ready))
    return crew
  }

  /** How many processes there have been. */
  get started(): number {
    return this.#lives.reduce((sum, lives) => sum + lives, 0)
  }

  /** Everybody ends, in good order and within this time; who does not is killed, and told of. */
  async stop(withinMs: number): Promise<void> {
    this.#isStopping = true
    await Promise.all(
      this.clients.map(async (client) => {
        client.tell({ order: 'stop' })
        const over = new AbortController()
        const late = sleep(withinMs, 'late' as const, { signal: over.signal }).catch(() => 'on time' as const)
        const ended = await Promise.race([client.ended, late])
        over.abort()
        if (ended !== 'late') return
        this.casualties.push({
          client: client.name,
          what: `hangs: it did not end within ${withinMs / 1000} s, without any fault`,
        })
        client.kill()
        await client.ended
      }),
    )
    await this.close()
  }

  /** Without asking. */
  async close(): Promise<void> {
    this.#isStopping = true
    for (const client of this.clients) client.kill()
    await Promise.all(this.clients.map((client) => client.ended))
    await Promise.all(this.#proxies.splice(0).map((proxy) => proxy.stop()))
  }

  #start(place: number): void {
    const { seed, leases, folder, logs, execArgv, env, ttlMs } = this.#options
    const life = (this.#lives[place] ?? 0) + 1
    this.#lives[place] = life
    const name = life === 1 ? `c${place + 1}` : `c${place + 1}.${life}`
    const proxy = this.#proxies[place]!
    const log = join(logs, `${name}.log`)
    const client = new ClientProcess({
      settings: {
        ...{ name, seed, url: proxy.url, history: folder.fileOf(name), leases },
        ...(ttlMs === undefined ? {} : { ttlMs }),
      },
      ...{ proxy, log, execArgv, env },
    })
    this.clients[place] = client
    void this.#replace(client, place, log)
  }

  async #replace(client: ClientProcess, place: number, log: string): Promise<void> {
    const how = await client.ended
    if (how !== 'SIGKILL' && how !== 0) {
      const said = (await readFile(log, 'utf8')).trim().slice(-1500)
      this.casualties.push({ client: client.name, what: `ended with ${how}:\n${said}` })
    }
    // A program that cannot even start would be started for ever.
    if (!this.#isStopping && this.casualties.length < 3) this.#start(place)
  }
}
