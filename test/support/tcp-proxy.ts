import { type AddressInfo, type Server, type Socket, connect, createServer } from 'node:net'
import { Pipe } from './pipe.ts'

interface Pair {
  readonly client: Socket
  readonly upstream: Socket
  readonly toServer: Pipe
  readonly toClient: Pipe
  introduction: Buffer | undefined
}

/** A proxy in front of PostgreSQL that loses packets on purpose. */
export class TcpProxy {
  readonly #server: Server
  #target: URL
  readonly #pairs = new Set<Pair>()
  #isDropping = false
  #isHolding = false
  #delayMs: () => number = () => 0
  #oneWay: 'to server' | 'to client' | undefined
  readonly #doomed = new Set<{
    readonly to: string
    readonly how: 'swallow' | 'cut'
    readonly tell: () => void
  }>()
  #losing: string | undefined
  #onRequest: (data: Buffer) => void = () => {}
  #beforeReply: ((reply: Buffer, sent: Buffer) => 'pass' | 'swallow' | 'cut') | undefined

  private constructor(server: Server, target: URL) {
    this.#server = server
    this.#target = target
  }

  static async start(targetUrl: string): Promise<TcpProxy> {
    const target = new URL(targetUrl)
    const server = createServer()
    const proxy = new TcpProxy(server, target)
    server.on('connection', (client) => proxy.#relay(client))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return proxy
  }

  get url(): string {
    const url = new URL(this.#target)
    url.hostname = '127.0.0.1'
    url.port = String((this.#server.address() as AddressInfo).port)
    return url.href
  }

  get connections(): number {
    return this.#pairs.size
  }

  /** New connections lead there from now on. */
  leadTo(targetUrl: string): void {
    this.#target = new URL(targetUrl)
  }

  /** From now on everything vanishes, in both directions and on new connections, and no socket is closed. */
  drop(): void {
    this.#isDropping = true
  }

  /** What is sent from now on arrives. What was lost stays lost. */
  restore(): void {
    this.#isDropping = false
  }

  /** From now on everything vanishes on connections whose client introduces itself by this name; undefined: on none. */
  loseThoseOf(applicationName: string | undefined): void {
    this.#losing = applicationName
  }

  /** From now on nothing arrives, in either direction, and nothing is lost: as where packets are sent again until they get through. */
  hold(): void {
    this.#isHolding = true
    for (const { toServer, toClient } of this.#pairs) for (const pipe of [toServer, toClient]) pipe.hold()
  }

  /** What was held arrives now. */
  letGo(): void {
    this.#isHolding = false
    for (const { toServer, toClient } of this.#pairs) for (const pipe of [toServer, toClient]) pipe.letGo()
  }

  /** From now on everything takes so much longer, each time anew, and in each direction. */
  delay(delayMs: () => number): void {
    this.#delayMs = delayMs
  }

  /** From now on everything vanishes in one direction, and no socket is closed; undefined: in none. */
  loseOneWay(direction: 'to server' | 'to client' | undefined): void {
    this.#oneWay = direction
  }

  /**
   * Loses the next answer to what contains this text, once: silently with `swallow`, where everything after it is lost as well; with a
   * reset with `cut`. `isLost` settles when that has happened.
   */
  loseReplyTo(
    to: string,
    how: 'swallow' | 'cut',
  ): { readonly isLost: Promise<void>; readonly callOff: () => void } {
    const { promise: isLost, resolve: tell } = Promise.withResolvers<void>()
    const doom = { to, how, tell }
    this.#doomed.add(doom)
    return { isLost, callOff: () => void this.#doomed.delete(doom) }
  }

  /** Resets every connection. */
  cut(): void {
    for (const { client, upstream } of this.#pairs) {
      client.resetAndDestroy()
      upstream.resetAndDestroy()
    }
  }

  /** Resets the connections whose client introduces itself by this name. Settles when that has happened. */
  async cutThoseOf(applicationName: string): Promise<void> {
    const those = [...this.#pairs].filter(({ introduction }) => introduction?.includes(applicationName))
    await Promise.all(
      those.map(({ client, upstream }) => {
        const closed = new Promise<void>((resolve) => client.once('close', () => resolve()))
        client.resetAndDestroy()
        upstream.resetAndDestroy()
        return closed
      }),
    )
  }

  /**
   * Decides over each answer of the server; `sent` is what the client had sent last on that connection. With an answer that is swallowed
   * all that would come after it is lost too: a stream has no gaps.
   */
  onReply(decide: ((reply: Buffer, sent: Buffer) => 'pass' | 'swallow' | 'cut') | undefined): void {
    this.#beforeReply = decide
  }

  /** Hears what the clients send. */
  onRequest(listener: (data: Buffer) => void): void {
    this.#onRequest = listener
  }

  async stop(): Promise<void> {
    this.cut()
    await new Promise<void>((resolve) => this.#server.close(() => resolve()))
  }

  #relay(client: Socket): void {
    const upstream = connect(Number(this.#target.port || 5432), this.#target.hostname)
    const pair = {
      client,
      upstream,
      toServer: new Pipe(upstream),
      toClient: new Pipe(client),
      introduction: undefined as Buffer | undefined,
    }
    if (this.#isHolding) for (const pipe of [pair.toServer, pair.toClient]) pipe.hold()
    let sent: Buffer = Buffer.alloc(0)
    let introduction: Buffer | undefined
    let isMute = false
    const isLost = (): boolean =>
      this.#isDropping || (this.#losing !== undefined && introduction?.includes(this.#losing) === true)
    this.#pairs.add(pair)
    const close = (): void => {
      this.#pairs.delete(pair)
      for (const pipe of [pair.toServer, pair.toClient]) pipe.close()
      client.destroy()
      upstream.destroy()
    }
    client.on('data', (data: Buffer) => {
      introduction ??= data
      pair.introduction ??= data
      if (isLost()) return
      sent = data
      this.#onRequest(data)
      if (this.#oneWay !== 'to server') pair.toServer.send(data, this.#delayMs())
    })
    upstream.on('data', (data: Buffer) => {
      if (isMute || isLost() || this.#oneWay === 'to client') return
      switch (this.#beforeReply?.(data, sent) ?? this.#fate(sent)) {
        case 'pass':
          pair.toClient.send(data, this.#delayMs())
          break
        case 'cut':
          client.resetAndDestroy()
          upstream.destroy()
          break
        case 'swallow':
          isMute = true
          break
      }
    })
    for (const socket of [client, upstream]) {
      socket.on('error', close)
      socket.on('close', () => {
        // A silent cut looks the same from both ends: nobody is told while packets are dropped.
        if (!isLost() && this.#oneWay === undefined) close()
      })
    }
  }

  /** What becomes of the answer to this. */
  #fate(sent: Buffer): 'pass' | 'swallow' | 'cut' {
    for (const doom of this.#doomed) {
      if (!sent.includes(doom.to)) continue
      this.#doomed.delete(doom)
      doom.tell()
      return doom.how
    }
    return 'pass'
  }
}
