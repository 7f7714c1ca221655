import type { Socket } from 'node:net'
import { type ServerAddress, connectTo } from './server-address.ts'
import type { ArmedDrop } from './reply-drop.ts'
import { type Message, Messages, fatal, firstValueOf, textAt } from './wire.ts'

/** What a connection tells the proxy, and asks of it. */
export interface RelayedConnectionOptions {
  readonly client: Socket
  readonly server: ServerAddress
  /** Asked for each request when it is sent. The drop that it returns is for the reply to that request, and for no other. */
  claim(texts: readonly string[]): ArmedDrop | undefined
  /** Somebody joins as a holder. */
  joined(holderId: string): void
  /** A request was answered, and the answer is on its way to the client. */
  replied(texts: readonly string[]): void
  closed(): void
}

/** A request: what the server answers with one ReadyForQuery. */
interface Request {
  readonly texts: readonly string[]
  readonly drop: ArmedDrop | undefined
}

const sslRequest = 80_877_103
const gssRequest = 80_877_104
const cancelRequest = 80_877_102
const join = /\bfencepost\.join_holder\s*\(/i
const uuid = /[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}/i

/**
 * One connection through the proxy. It reads along what both sides say, to know which reply belongs to which request, and hands on
 * what it read unchanged.
 */
export class RelayedConnection {
  readonly #options: RelayedConnectionOptions
  readonly #client: Socket
  #server: Socket | undefined
  /** What came before the client has introduced itself. */
  #greeting: Buffer | undefined = Buffer.alloc(0)
  readonly #fromClient = new Messages()
  readonly #fromServer = new Messages()
  /** Those that are not answered, the oldest first. */
  readonly #requests: Request[] = []
  /** What was sent since the last request was complete. */
  #texts: string[] = []
  readonly #statements = new Map<string, string>()
  #isHeld = false
  #isConnecting = false
  #isClosed = false

  constructor(options: RelayedConnectionOptions) {
    this.#options = options
    const { client } = options
    this.#client = client
    client.setNoDelay(true)
    client.on('data', (data: Buffer) => this.#sent(data))
    this.#closeWith(client)
  }

  /** Nothing is read from either side any more: what they send stays where it is. */
  hold(): void {
    this.#isHeld = true
    this.#client.pause()
    this.#server?.pause()
  }

  letGo(): void {
    this.#isHeld = false
    if (!this.#isConnecting) this.#client.resume()
    this.#server?.resume()
  }

  /** Settles when the client has been sent the reset. */
  async reset(): Promise<void> {
    const closed = this.#client.closed
      ? Promise.resolve()
      : new Promise<void>((settle) => this.#client.once('close', () => settle()))
    this.#client.resetAndDestroy()
    this.#close()
    await closed
  }

  #closeWith(socket: Socket): void {
    socket.on('error', () => this.#close())
    socket.on('close', () => this.#close())
  }

  #close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    // Each side still hears what the other has said last.
    this.#client.destroySoon()
    this.#server?.destroySoon()
    // Their replies do not come any more.
    for (const { drop } of this.#requests) drop?.happened()
    this.#options.closed()
  }

  #sent(data: Buffer): void {
    if (this.#greeting === undefined) {
      for (const message of this.#fromClient.push(data)) this.#read(message)
      this.#server?.write(data)
      return
    }
    this.#greeting = Buffer.concat([this.#greeting, data])
    while (this.#greeting !== undefined && this.#greeting.length >= 8) {
      const length = this.#greeting.readInt32BE(0)
      if (this.#greeting.length < length) return
      const code = this.#greeting.readInt32BE(4)
      if (code !== sslRequest && code !== gssRequest) {
        const introduction = this.#greeting
        this.#greeting = undefined
        // The answer to an introduction ends like the one to a request. One to cancel has no answer.
        if (code !== cancelRequest) this.#requests.push({ texts: [], drop: undefined })
        void this.#connect(introduction)
        return
      }
      // Between the client and here nothing is encrypted: both are on this machine.
      this.#client.write('N')
      this.#greeting = this.#greeting.subarray(length)
    }
  }

  async #connect(introduction: Buffer): Promise<void> {
    this.#isConnecting = true
    this.#client.pause()
    let server: Socket
    try {
      server = await connectTo(this.#options.server)
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error)
      this.#client.end(fatal('08001', `the proxy of fencepost/testing cannot reach the server: ${why}`))
      return
    } finally {
      this.#isConnecting = false
    }
    this.#closeWith(server)
    if (this.#isClosed) {
      server.destroy()
      return
    }
    this.#server = server
    server.on('data', (data: Buffer) => this.#received(data))
    server.write(introduction)
    if (this.#isHeld) this.hold()
    else this.letGo()
  }

  #read({ type, bytes }: Message): void {
    switch (type) {
      // Parse
      case 'P': {
        const name = textAt(bytes, 5)
        this.#statements.set(name.text, textAt(bytes, name.end).text)
        break
      }
      // Bind
      case 'B': {
        const name = textAt(bytes, textAt(bytes, 5).end).text
        const text = this.#statements.get(name) ?? ''
        this.#texts.push(text)
        const id = join.test(text) ? firstValueOf(bytes) : undefined
        if (id !== undefined)
          this.#options.joined(id.length === 16 ? uuidOf(id) : id.toString().toLowerCase())
        break
      }
      // Query
      case 'Q': {
        const { text } = textAt(bytes, 5)
        this.#texts.push(text)
        const id = join.test(text) ? uuid.exec(text) : undefined
        if (id) this.#options.joined(id[0].toLowerCase())
        this.#requested()
        break
      }
      // Sync, and the call of a function
      case 'S':
      case 'F':
        this.#requested()
        break
    }
  }

  #requested(): void {
    const texts = this.#texts
    this.#texts = []
    this.#requests.push({ texts, drop: this.#options.claim(texts) })
  }

  #received(data: Buffer): void {
    const answers: Buffer[] = []
    const replied: (readonly string[])[] = []
    let drop: ArmedDrop | undefined
    for (const { type, bytes } of this.#fromServer.push(data)) {
      const request = this.#requests[0]
      if (request?.drop === undefined) answers.push(bytes)
      // ReadyForQuery
      if (type !== 'Z' || request === undefined) continue
      this.#requests.shift()
      drop = request.drop
      // A stream has no gaps: nothing that came after it arrives either.
      if (drop !== undefined) break
      replied.push(request.texts)
    }
    if (answers.length > 0) this.#client.write(Buffer.concat(answers))
    for (const texts of replied) this.#options.replied(texts)
    if (drop === undefined) return
    void this.reset().then(() => drop.happened())
  }
}

function uuidOf(bytes: Buffer): string {
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
