import type { Client, Connection, Submittable } from 'pg'

/** Of an answer to something of fencepost's own: what the last statement was called, and the first column of the last row. */
export interface ControlAnswer {
  readonly command: string | undefined
  readonly value: unknown
}

type Callback = (error: unknown, answer?: ControlAnswer) => void

/**
 * Something of fencepost's own that begins or ends a transaction, as a text or as messages that end with a Sync. It sends itself, as a
 * cursor does, and keeps next to nothing of the answer: to make a result with rows of it, as `pg` does, costs more than to send it.
 */
class ControlQuery implements Submittable {
  readonly text: string
  readonly #messages: Buffer | undefined
  /** `pg` puts its own in the way, where there is a timeout. */
  callback: Callback
  #command: string | undefined
  #value: unknown

  constructor(control: string | Buffer, callback: Callback) {
    this.text = typeof control === 'string' ? control : ''
    this.#messages = typeof control === 'string' ? undefined : control
    this.callback = callback
  }

  submit(connection: Connection): void {
    if (this.#messages === undefined) connection.query(this.text)
    else if (connection.stream.writable) connection.stream.write(this.#messages)
  }

  handleDataRow({ fields }: { fields: readonly unknown[] }): void {
    this.#value = fields[0]
  }

  handleCommandComplete({ text }: { text: string }): void {
    this.#command = text
  }

  handleReadyForQuery(): void {
    this.callback(null, { command: this.#command, value: this.#value })
  }

  handleError(error: unknown): void {
    this.callback(error)
  }

  handleRowDescription(): void {}
  handleEmptyQuery(): void {}
}

/** Sends a text on a client of `pg`. */
export async function sendControl(client: Client, text: string): Promise<ControlAnswer> {
  if (takesOwnQueries(client)) return submit(client, text)
  const results = (await client.query(text)) as { command: string } | { command: string }[]
  return { command: Array.isArray(results) ? results.at(-1)?.command : results.command, value: undefined }
}

/** Sends messages that end with a Sync, on a client that takes what sends itself. */
export function sendControlMessages(client: Client, messages: Buffer): Promise<ControlAnswer> {
  return submit(client, messages)
}

async function submit(client: Client, control: string | Buffer): Promise<ControlAnswer> {
  try {
    return await new Promise((resolve, reject) => {
      client.query(
        new ControlQuery(control, (error, answer) =>
          error === null || error === undefined ? resolve(answer!) : reject(error),
        ),
      )
    })
  } catch (error) {
    // As `pg` does: the trace that leads to its socket helps nobody.
    if (error instanceof Error) Error.captureStackTrace(error)
    throw error
  }
}

/** Whether a client takes what sends itself: not where `pg` pipelines, and not `pg-native`. */
export function takesOwnQueries(client: Client): boolean {
  const { connection, pipeline } = client as Partial<Client> & { readonly pipeline?: boolean }
  return typeof connection?.stream?.cork === 'function' && pipeline !== true
}
