import type { Client } from 'pg'
import { isStandbyWarning } from '../database/connection.ts'

/** What is listened to: a client of `pg`, or what looks like one. */
export type Heard = Partial<Pick<Client, 'connection' | 'on' | 'once' | 'off'>> & {
  readonly readyForQuery?: boolean
}

/** Whoever wants to know what a client says, for as long as it works with it. */
export interface Listener {
  /** A statement was carried out: what the server calls it. */
  onAnswer(command: string): void
  /** A statement failed. */
  onFailure(): void
  /** Everything that was sent has been answered. */
  onReady(status: string | undefined): void
  /** The connection has ended. */
  onEnd(): void
  /** The connection broke. */
  onLoss(error: unknown): void
  /** The server gave up waiting for a synchronous standby and says "committed" all the same. */
  onDoubt(): void
}

const ears = new WeakMap<object, ClientEar>()

/**
 * Listens to one client of `pg` from its first fenced work on, and passes what it hears on to whoever works with it. To put six
 * listeners on a client and take them off again costs as much as a statement, so they stay; and `pg` reports a lost connection as
 * an error event, also when the client is nobody's: without a listener that would end the process.
 */
export class ClientEar {
  readonly #listeners: Listener[] = []

  static of(client: Heard): ClientEar {
    let ear = ears.get(client)
    if (ear === undefined) {
      ear = new ClientEar(client)
      ears.set(client, ear)
    }
    return ear
  }

  private constructor(client: Heard) {
    const { connection } = client
    const listeners = this.#listeners
    // Before `pg` itself, whose answer to the caller may be the next statement.
    connection?.prependListener('commandComplete', ({ text }: { text: string }) => {
      for (const listener of listeners) listener.onAnswer(text)
    })
    connection?.prependListener('errorMessage', () => {
      for (const listener of listeners) listener.onFailure()
    })
    connection?.prependListener('readyForQuery', ({ status }: { status?: string }) => {
      for (const listener of listeners) listener.onReady(status)
    })
    connection?.prependListener('end', () => {
      for (const listener of listeners) listener.onEnd()
    })
    client.on?.('error', (error: unknown) => {
      for (const listener of listeners) listener.onLoss(error)
    })
    client.on?.('notice', (notice: { routine?: string | undefined }) => {
      if (listeners.length === 0 || !isStandbyWarning(notice)) return
      for (const listener of listeners) listener.onDoubt()
    })
  }

  add(listener: Listener): void {
    this.#listeners.push(listener)
  }

  remove(listener: Listener): void {
    const index = this.#listeners.indexOf(listener)
    if (index >= 0) this.#listeners.splice(index, 1)
  }
}
