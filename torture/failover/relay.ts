import { type AddressInfo, type Server, type Socket, connect, createServer } from 'node:net'

/**
 * An address that leads to one server now and to another one later, as a virtual IP or HAProxy does; and a line between a primary and
 * its standby that can be held. Nothing that passes is lost or changed: what is held waits, as it does in the buffers of a slow network.
 */
export class Relay implements AsyncDisposable {
  readonly #server: Server
  readonly #pairs = new Set<{ readonly client: Socket; readonly upstream: Socket }>()
  #port: number
  #isHeld = false

  private constructor(server: Server, port: number) {
    this.#server = server
    this.#port = port
  }

  static async to(port: number): Promise<Relay> {
    const server = createServer()
    const relay = new Relay(server, port)
    server.on('connection', (client) => relay.#join(client))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return relay
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port
  }

  get url(): string {
    return `postgres://postgres@127.0.0.1:${this.port}/postgres`
  }

  /** New connections lead there; those that are open are reset. */
  moveTo(port: number): void {
    this.#port = port
    this.cut()
  }

  /** From now on nothing arrives at whoever has connected. */
  hold(): void {
    this.#isHeld = true
    for (const { upstream } of this.#pairs) upstream.pause()
  }

  /** What has been held arrives. */
  letGo(): void {
    this.#isHeld = false
    for (const { upstream } of this.#pairs) upstream.resume()
  }

  /** Resets every connection. What is held is lost with it. */
  cut(): void {
    for (const { client, upstream } of this.#pairs) {
      client.resetAndDestroy()
      upstream.resetAndDestroy()
    }
  }

  /** From now on it leads nowhere. */
  close(): void {
    this.#server.close()
    this.cut()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = this.#server.listening
      ? new Promise<void>((resolve) => this.#server.once('close', () => resolve()))
      : undefined
    this.close()
    await closed
  }

  #join(client: Socket): void {
    const upstream = connect(this.#port, '127.0.0.1')
    const pair = { client, upstream }
    this.#pairs.add(pair)
    client.on('data', (data: Buffer) => upstream.write(data))
    upstream.on('data', (data: Buffer) => client.write(data))
    if (this.#isHeld) upstream.pause()
    const close = (): void => {
      this.#pairs.delete(pair)
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) {
      socket.on('error', close)
      socket.on('close', close)
    }
  }
}
