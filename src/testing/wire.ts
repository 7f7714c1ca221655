/** One message of PostgreSQL's protocol, as it came. */
export interface Message {
  /** Its first byte: `Q`, `B`, `Z` … */
  readonly type: string
  /** All of it, with type and length. */
  readonly bytes: Buffer
}

/** Cuts a stream into messages. */
export class Messages {
  #chunks: Buffer[] = []
  #length = 0
  /** So many bytes are needed before there is anything to do. */
  #needed = 5

  /** The messages that are complete with this chunk. */
  push(chunk: Buffer): Message[] {
    this.#chunks.push(chunk)
    this.#length += chunk.length
    if (this.#length < this.#needed) return []
    const all = this.#chunks.length === 1 ? chunk : Buffer.concat(this.#chunks)
    const messages: Message[] = []
    let at = 0
    this.#needed = 5
    while (all.length - at >= 5) {
      const length = 1 + all.readInt32BE(at + 1)
      if (all.length - at < length) {
        this.#needed = length
        break
      }
      messages.push({ type: String.fromCodePoint(all[at]!), bytes: all.subarray(at, at + length) })
      at += length
    }
    const rest = all.subarray(at)
    this.#chunks = rest.length === 0 ? [] : [rest]
    this.#length = rest.length
    return messages
  }
}

/** A text that ends with a zero byte, and where the next thing begins. */
export function textAt(bytes: Buffer, at: number): { readonly text: string; readonly end: number } {
  const end = bytes.indexOf(0, at)
  return { text: bytes.toString('utf8', at, end), end: end + 1 }
}

/** The first value of a Bind message, however it is written; undefined where there is none. */
export function firstValueOf(bind: Buffer): Buffer | undefined {
  const { end } = textAt(bind, textAt(bind, 5).end)
  const values = end + 2 + 2 * bind.readInt16BE(end)
  if (bind.readInt16BE(values) < 1) return undefined
  const length = bind.readInt32BE(values + 2)
  return length < 0 ? undefined : bind.subarray(values + 6, values + 6 + length)
}

/** What a server says that lets nobody in. */
export function fatal(sqlState: string, message: string): Buffer {
  const fields = [
    ['S', 'FATAL'],
    ['V', 'FATAL'],
    ['C', sqlState],
    ['M', message],
  ]
  const body = Buffer.from(`${fields.map(([field, value]) => `${field}${value}\0`).join('')}\0`)
  const head = Buffer.from('E\0\0\0\0')
  head.writeInt32BE(4 + body.length, 1)
  return Buffer.concat([head, body])
}
