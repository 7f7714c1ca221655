import type { Client, Connection, Submittable } from 'pg'

type Callback = (error: unknown, command?: string) => void

/**
 * A text of fencepost's own that begins or ends a transaction. It sends itself, as a cursor does, and of the answer it keeps only what
 * the last statement was called: to make a result with rows of it, as `pg` does, costs more than to send it.
 */
class ControlQuery implements Submittable {
  readonly text: string
  /** `pg` puts its own in the way, where there is a timeout. */
  callback: Callback
  #command: string | undefined

  constructor(text: string, callback: Callback) {
    this.text = text
    this.callback = callback
  }

  submit(connection: Connection): void {
    connection.query(this.text)
  }

  handleCommandComplete({ text }: { text: string }): void {
    this.#command = text
  }

  handleReadyForQuery(): void {
    this.callback(null, this.#command)
  }

  handleError(error: unknown): void {
    this.callback(error)
  }

  handleRowDescription(): void {}
  handleDataRow(): void {}
  handleEmptyQuery(): void {}
}

/** Sends a text on a client of `pg` and tells what its last statement was called. */
export async function sendControl(client: Client, text: string): Promise<string | undefined> {
  if (!takesOwnQueries(client)) {
    const results = (await client.query(text)) as { command: string } | { command: string }[]
    return Array.isArray(results) ? results.at(-1)?.command : results.command
  }
  try {
    return await new Promise((resolve, reject) => {
      client.query(new ControlQuery(text, (error, command) => (error ? reject(error) : resolve(command))))
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
