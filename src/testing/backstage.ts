import type { ClientConfig } from 'pg'
import { systemClock } from '../clock.ts'
import { Connection, type TextRow } from '../database/connection.ts'
import { RequestFailure, describeFailure } from '../database/failure.ts'
import { schemaGreeting } from '../database/schema.ts'
import { DatabaseError } from '../errors.ts'
import { silent } from '../logger.ts'

const applicationName = 'fencepost testing'

/** The way to the database that no fault of the kit is in. Everything there is done one after the other. */
export class Backstage {
  readonly #config: ClientConfig
  readonly #timeoutMs: number
  /** For whoever sends requests of its own: within `alone`. */
  readonly connection: Connection
  #last: Promise<unknown> = Promise.resolve()

  constructor(config: ClientConfig, timeoutMs: number) {
    this.#config = config
    this.#timeoutMs = timeoutMs
    this.connection = this.connect()
  }

  /** Another connection. */
  connect(): Connection {
    return new Connection(
      { config: this.#config, applicationName, clock: systemClock, logger: silent },
      schemaGreeting,
    )
  }

  /** Runs `step` when all that was begun before is done. `action` completes "could not …". */
  async alone<T>(action: string, step: () => Promise<T>): Promise<T> {
    const before = this.#last
    // A promise of its own: the stack of an error leads on to whoever awaits it only where nobody else does.
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#last = promise
    try {
      await before
      return await step()
    } catch (error) {
      throw error instanceof RequestFailure ? describeRefusal(error, action) : error
    } finally {
      resolve()
    }
  }

  /** @throws RequestFailure */
  query(text: string, values: readonly unknown[] = []): Promise<TextRow[]> {
    return this.connection.query({ text, values, timeoutMs: this.#timeoutMs })
  }

  /** @throws RequestFailure */
  async transaction<T>(work: () => Promise<T>): Promise<T> {
    await this.query('begin')
    try {
      const result = await work()
      await this.query('commit')
      return result
    } catch (error) {
      // On a connection that is gone the server does it.
      await this.query('rollback').catch(() => {})
      throw error
    }
  }

  async close(): Promise<void> {
    await this.#last
    await this.connection.close()
  }
}

function describeRefusal(failure: RequestFailure, action: string): DatabaseError {
  const described = describeFailure(failure, action)
  if (described.code !== 'PERMISSION_DENIED') return described
  return new DatabaseError(
    'PERMISSION_DENIED',
    `could not ${action}: this takes the rights of the role that owns the schema "fencepost". Name it as ownerConnectionString, ` +
      'or let the test connect with it.',
    { cause: described.cause, sqlState: described.sqlState },
  )
}
