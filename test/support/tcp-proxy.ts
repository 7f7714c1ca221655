import { type AddressInfo, type Server, type Socket, connect, createServer } from 'node:net'

/** A proxy in front of PostgreSQL that loses packets on purpose. */
export class TcpProxy {
  readonly #server: Server
  #target: URL
  readonly #pairs = new Set<{ readonly client: Socket; readonly upstream: Socket }>()
  #isDropping = false
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

  /** Resets every connection. */
  cut(): void {
    for (const { client, upstream } of this.#pairs) {
      client.resetAndDestroy()
      upstream.resetAndDestroy()
    }
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
    const pair = { client, upstream }
    let sent: Buffer = Buffer.alloc(0)
    let introduction: Buffer | undefined
    let isMute = false
    const isLost = (): boolean =>
      this.#isDropping || (this.#losing !== undefined && introduction?.includes(this.#losing) === true)
    this.#pairs.add(pair)
    const close = (): void => {
      this.#pairs.delete(pair)
      client.destroy()
      upstream.destroy()
    }
    client.on('data', (data: Buffer) => {
      introduction ??= data
      if (isLost()) return
      sent = data
      this.#onRequest(data)
      upstream.write(data)
    })
    upstream.on('data', (data: Buffer) => {
      if (isMute || isLost()) return
      switch (this.#beforeReply?.(data, sent) ?? 'pass') {
        case 'pass':
          client.write(data)
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
        if (!isLost()) close()
      })
    }
  }
}
