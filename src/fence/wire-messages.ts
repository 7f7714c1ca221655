/**
 * Messages of PostgreSQL's protocol, for what goes out in one piece before a statement of `pg`: `pg` has no means to send several
 * statements up to one Sync.
 */
export class WireMessages {
  readonly #parts: Buffer[] = []

  /** Reads a text, under a name or none. */
  parse(name: string, text: string): this {
    // No types of parameters.
    return this.#message('P', [cString(name), cString(text), int16(0)])
  }

  /** Carries out a statement with values, in a portal without a name, and asks for all rows. */
  execute(name: string, values: readonly (string | null)[] = []): this {
    // All parameters and results are text, which is said by naming no formats.
    const parameters = values.flatMap((value) =>
      value === null ? [int32(-1)] : [int32(Buffer.byteLength(value)), Buffer.from(value)],
    )
    return this.#message('B', [
      cString(''),
      cString(name),
      int16(0),
      int16(values.length),
      ...parameters,
      int16(0),
    ]).#message('E', [cString(''), int32(0)])
  }

  /** Forgets the statement of a name, whether there is one or not. */
  forget(name: string): this {
    return this.#message('C', [Buffer.from('S'), cString(name)])
  }

  sync(): this {
    return this.#message('S', [])
  }

  toBuffer(): Buffer {
    return Buffer.concat(this.#parts)
  }

  #message(kind: string, body: readonly Buffer[]): this {
    const length = body.reduce((sum, part) => sum + part.length, 4)
    this.#parts.push(Buffer.from(kind), int32(length), ...body)
    return this
  }
}

function cString(text: string): Buffer {
  return Buffer.from(`${text}\0`)
}

function int16(value: number): Buffer {
  const buffer = Buffer.alloc(2)
  buffer.writeInt16BE(value)
  return buffer
}

function int32(value: number): Buffer {
  const buffer = Buffer.alloc(4)
  buffer.writeInt32BE(value)
  return buffer
}
