import { createHash } from 'node:crypto'
import type { Client } from 'pg'
import { processIdOf } from '../database/process-id.ts'

/** As many as a session keeps for fencepost. Each takes some memory of the server until the session ends. */
const mostKept = 100

const namesKnown = 1000

/** What process answers. */
export const processText = 'select pg_catalog.pg_backend_pid()'

const names = new Map<string, string>()

/** The same text has the same name wherever it is prepared, and no other one has it. */
function nameOf(text: string): string {
  let name = names.get(text)
  if (name === undefined) {
    name = `fencepost_${createHash('sha256').update(text).digest('hex').slice(0, 32)}`
    if (names.size >= namesKnown) names.clear()
    names.set(text, name)
  }
  return name
}

/**
 * The statements that a session of the server keeps under a name: the server reads and plans their text once. For a fence that is a
 * quarter of what it costs there.
 *
 * Only in a session that is the client's own. A pooler may give it another one for each transaction, which knows no names. So a client
 * is taken for pooled until the process that answers it has been compared with the one it was told of when it connected.
 */
export class SessionStatements {
  static readonly #known = new WeakMap<object, SessionStatements>()
  readonly #processId: number | undefined
  readonly #kept = new Set<string>()
  #isOwn: boolean | undefined
  #uses = 0
  #generation = 0

  static of(client: Client): SessionStatements {
    let statements = SessionStatements.#known.get(client)
    if (statements === undefined) {
      statements = new SessionStatements(client)
      SessionStatements.#known.set(client, statements)
    }
    return statements
  }

  private constructor(client: Client) {
    this.#processId = processIdOf(client)
    if (this.#processId === undefined) this.#isOwn = false
  }

  /** Says that it is used, and whether it is worth asking what process answers: a client that is used once has nothing of it. */
  isToAsk(): boolean {
    if (this.#isOwn !== undefined) return false
    this.#uses += 1
    return this.#uses > 1
  }

  /** What `pg_backend_pid()` has answered. */
  answeredBy(processId: unknown): void {
    this.#isOwn ??= Number(processId) === this.#processId
  }

  /** The name to send a text under; undefined where it has to be sent without one. */
  nameFor(text: string): string | undefined {
    if (this.#isOwn !== true) return undefined
    const name = this.#generation === 0 ? nameOf(text) : `${nameOf(text)}_${this.#generation}`
    return this.#kept.has(name) || this.#kept.size < mostKept ? name : undefined
  }

  /** Whether the session has the statement already. */
  has(name: string): boolean {
    return this.#kept.has(name)
  }

  keeps(name: string): void {
    this.#kept.add(name)
  }

  /**
   * Whether a statement was not carried out only because of its name. Names are not used again where somebody discards them; and
   * others are where a table has changed since.
   */
  isGone(error: unknown): boolean {
    const { code, routine } = (error ?? {}) as { code?: unknown; routine?: unknown }
    // A name that does not exist, and one that does.
    if (code === '26000' || code === '42P05') {
      this.#isOwn = false
      return true
    }
    // The columns of its answer would be others now, which has no code of its own.
    if (code !== '0A000' || routine !== 'RevalidateCachedQuery') return false
    this.#generation += 1
    return true
  }
}
