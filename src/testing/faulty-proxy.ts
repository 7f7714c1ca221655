import { type AddressInfo, type Server, type Socket, createServer } from 'node:net'
import { RelayedConnection } from './relayed-connection.ts'
import { ArmedDrop } from './reply-drop.ts'
import type { ServerAddress } from './server-address.ts'

/** A proxy in front of PostgreSQL, on this machine alone, that fails when it is told to. */
export class FaultyProxy {
  readonly #server: Server
  readonly #target: ServerAddress
  readonly #connections = new Set<RelayedConnection>()
  readonly #drops = new Set<ArmedDrop>()
  readonly #holders = new Set<string>()
  readonly #replyListeners = new Set<(texts: readonly string[]) => void>()
  #state: 'open' | 'held' | 'cut' = 'open'

  private constructor(server: Server, target: ServerAddress) {
    this.#server = server
    this.#target = target
  }

  static async start(target: ServerAddress): Promise<FaultyProxy> {
    const server = createServer()
    const proxy = new FaultyProxy(server, target)
    server.on('connection', (client) => proxy.#accept(client))
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(0, '127.0.0.1', resolve)
    })
    return proxy
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port
  }

  /** Those who have joined through it, by their ids. */
  get holders(): ReadonlySet<string> {
    return this.#holders
  }

  /** From now on nothing gets through, in either direction, and nothing is lost. */
  hold(): void {
    if (this.#state !== 'open') return
    this.#state = 'held'
    for (const connection of this.#connections) connection.hold()
  }

  /** Resets every connection, and from now on each new one. Settles when clients in this process have heard of it. */
  async cut(): Promise<void> {
    this.#state = 'cut'
    await Promise.all([...this.#connections].map((connection) => connection.reset()))
    // A turn of the event loop reads all sockets; another one runs what that has set off.
    for (let turn = 0; turn < 2; turn += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      await new Promise<void>((settle) => setImmediate(settle))
    }
  }

  restore(): void {
    this.#state = 'open'
    for (const connection of this.#connections) connection.letGo()
  }

  /** Drops the reply to the next request in which the pattern is found, and resets its connection, as nothing can follow a gap. */
  dropNext(pattern: RegExp): ArmedDrop {
    const drop = new ArmedDrop(pattern, (cancelled) => this.#drops.delete(cancelled))
    this.#drops.add(drop)
    return drop
  }

  /** Settles when a request has been answered in which the pattern is found, or after that time. */
  nextReply(pattern: RegExp, withinMs: number): Promise<void> {
    return new Promise((settle) => {
      const listener = (texts: readonly string[]): void => {
        if (texts.some((text) => text.search(pattern) >= 0)) done()
      }
      const done = (): void => {
        clearTimeout(timer)
        this.#replyListeners.delete(listener)
        settle()
      }
      const timer = setTimeout(done, withinMs)
      this.#replyListeners.add(listener)
    })
  }

  /** Those that have not found their request find none any more. */
  failDrops(error: Error): void {
    for (const drop of this.#drops) drop.fail(error)
    this.#drops.clear()
  }

  async stop(): Promise<void> {
    const stopped = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    await this.cut()
    await stopped
  }

  #accept(client: Socket): void {
    if (this.#state === 'cut') {
      client.on('error', () => {})
      client.resetAndDestroy()
      return
    }
    const connection: RelayedConnection = new RelayedConnection({
      client,
      server: this.#target,
      claim: (texts) => this.#claim(texts),
      joined: (holderId) => this.#holders.add(holderId),
      replied: (texts) => {
        for (const listener of [...this.#replyListeners]) listener(texts)
      },
      closed: () => this.#connections.delete(connection),
    })
    this.#connections.add(connection)
    if (this.#state === 'held') connection.hold()
  }

  /** The oldest that waits for such a request. */
  #claim(texts: readonly string[]): ArmedDrop | undefined {
    for (const drop of this.#drops) {
      if (!drop.isFor(texts)) continue
      this.#drops.delete(drop)
      return drop
    }
    return undefined
  }
}
