import { type Pool, type PoolClient, type QueryResult, escapeLiteral } from 'pg'
import { ClientEar } from '../fence/client-ear.ts'

/** What the database says to a request. */
interface Entry {
  readonly outcome: 'entered' | 'stale' | 'not_yet'
  /** The highest token that has been seen of the resource; undefined when there was none. */
  readonly highest: bigint | undefined
}

const rollbackWithinMs = 5000
const begin = 'begin isolation level read committed'

/**
 * A client of the caller's pool for the time of one request, and one typed call per function of
 * `migrations/0004_resources.sql`. Values travel as literals, so that `begin` and the call share a round trip.
 */
export class ResourceSession {
  readonly #client: PoolClient
  readonly #onLoss = (): void => {
    this.#isLost = true
    this.#tellLoss?.()
  }
  #tellLoss: (() => void) | undefined
  #isLost = false
  /** A statement is on its way, or the answer to it was given up. */
  #isBusy = false

  private constructor(client: PoolClient) {
    this.#client = client
    ClientEar.of(client)
    client.on('error', this.#onLoss)
    client.on('end', this.#onLoss)
  }

  /** Rejects with the signal's reason when it aborts first. */
  static async open(pool: Pool, signal: AbortSignal): Promise<ResourceSession> {
    const connecting = pool.connect()
    try {
      return new ResourceSession(await unlessAborted(connecting, signal))
    } catch (error) {
      // What comes after all goes straight back.
      connecting.then(
        (client) => client.release(),
        () => {},
      )
      throw error
    }
  }

  get isLost(): boolean {
    return this.#isLost
  }

  /** Calls `tell` when the connection breaks, also when the server ends it. */
  onLoss(tell: () => void): void {
    this.#tellLoss = tell
    if (this.#isLost) tell()
  }

  /** Begins the transaction that keeps newer tokens out, when the outcome is `entered`. */
  async enter(
    name: string,
    token: bigint,
    waitMs: number,
    holdMs: number,
    signal: AbortSignal,
  ): Promise<Entry> {
    const call = `fencepost.enter_resource(${escapeLiteral(name)}, ${token}, ${waitMs}, ${holdMs})`
    const row = await this.#run(`${begin}; select outcome, highest::text from ${call}`, signal)
    const { outcome, highest } = row as { outcome: Entry['outcome']; highest: string | null }
    return { outcome, highest: highest === null ? undefined : BigInt(highest) }
  }

  /** Shuts older tokens out, and waits until the requests that carry them have left. */
  async follow(name: string, token: bigint, waitMs: number, signal: AbortSignal): Promise<void> {
    const values = `(${escapeLiteral(name)}, ${token}, ${waitMs})`
    await this.#run(
      `rollback; ${begin}; select fencepost.see_token${values}; commit; ` +
        `${begin}; select fencepost.drain_resource${values}; commit`,
      signal,
    )
  }

  /** Ends the transaction and gives the client back. False when the session had ended before. */
  async close(): Promise<boolean> {
    // Nothing was written, and a rollback does not wait for the disk.
    const isIntact = !this.#isLost && !this.#isBusy && (await this.#isRolledBack())
    this.#client.off('error', this.#onLoss)
    this.#client.off('end', this.#onLoss)
    this.#client.release(!isIntact)
    return isIntact
  }

  async #isRolledBack(): Promise<boolean> {
    const timeout = AbortSignal.timeout(rollbackWithinMs)
    return this.#run('rollback', timeout).then(
      () => !this.#isLost,
      () => false,
    )
  }

  /** The first row of the last statement that has rows. */
  async #run(text: string, signal: AbortSignal): Promise<unknown> {
    signal.throwIfAborted()
    this.#isBusy = true
    const answer = this.#client.query(text).finally(() => (this.#isBusy = false))
    const results = (await unlessAborted(answer, signal)) as QueryResult | QueryResult[]
    return [results].flat().at(-1)?.rows[0]
  }
}

/** The promise, or the signal's reason when that comes first. What the promise does later is nobody's business then. */
async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  promise.catch(() => {})
  signal.throwIfAborted()
  const { promise: aborted, reject } = Promise.withResolvers<never>()
  const onAbort = (): void => reject(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    return await Promise.race([promise, aborted])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
