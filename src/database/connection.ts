import { Client, type ClientConfig, type QueryConfig } from 'pg'
import type { Clock } from '../clock.ts'
import type { Logger } from '../logger.ts'
import {
  type ServerWatch,
  type Whereabouts,
  isOlder,
  readWhereabouts,
  whereaboutsColumns,
} from './whereabouts.ts'
import { processIdOf } from './process-id.ts'
import { RequestFailure, isConnectionState, spoilsConnection, sqlStateOf } from './failure.ts'

/** One row as the server sent it: every value is text or null, whatever parsers the host program has set. */
export type TextRow = Record<string, string | null>

export interface ConnectionOptions {
  readonly config: ClientConfig
  readonly applicationName: string
  readonly clock: Clock
  readonly logger: Logger
  /** What is told of a session beside the answers to requests. */
  readonly ear?: Ear
}

/** Hears what a session says by itself. */
export interface Ear {
  notified(channel: string, payload: string): void
  /** The session has ended, whoever ended it. */
  ended(): void
}

export interface Request {
  readonly text: string
  readonly values?: readonly unknown[]
  /** Names a prepared statement; not used behind a pooler, which may lead each request to another server session. */
  readonly name?: string
  /** Milliseconds for everything: waiting for its turn, connecting, sending and the answer. */
  readonly timeoutMs: number
}

/** What a new session is asked first, in the same round trip as what the connection asks for itself. */
export interface Greeting {
  /** Named SQL expressions: `{ version: 'fencepost.schema_version()::text' }`. */
  readonly columns: Readonly<Record<string, string>>
  /** Looks at the answer; what it throws closes the session. */
  check(row: TextRow): void
}

/** Values stay text, so that neither a global parser nor the size of a number matters. */
const asText = { getTypeParser: () => (value: string) => value }

/**
 * One connection of fencepost's own. It connects when first used, and throws itself away after a timeout or an error that
 * makes it useless; the next request connects anew. It never retries. The database carries requests out one after the other, as they
 * came; the next one is sent before the answer to the last, except to a pooler, which need not expect that.
 */
export class Connection {
  readonly #options: ConnectionOptions
  readonly #greeting: Greeting
  #session: Session | undefined
  /** Settles after the last request that is here. Undefined: none is. */
  #turn: Promise<unknown> | undefined
  #inFlight = 0
  /** Called when nothing is in flight any more. */
  #onQuiet: (() => void) | undefined
  #closed = false
  #watch: ServerWatch | undefined

  constructor(options: ConnectionOptions, greeting: Greeting) {
    this.#options = options
    this.#greeting = greeting
  }

  /** Whether the next request finds a session, as far as is known. */
  get isOpen(): boolean {
    return this.#session?.isUsable === true
  }

  /** Whether a pooler stands between: another client may use the server's session. False while there is no session. */
  get isPooled(): boolean {
    return this.#session?.isPooled === true
  }

  /** From now on the watch is told where the sessions of this connection lead. */
  reportTo(watch: ServerWatch): void {
    this.#watch = watch
    watch.follow(this)
    watch.saw(this.#session?.whereabouts)
  }

  /**
   * What to select as well where a session may have been led elsewhere since it was opened, which only a pooler does. What comes back is for
   * `ledTo`. Undefined where there is nothing to ask.
   */
  get whereaboutsList(): string | undefined {
    const session = this.#session
    return session?.isPooled === true && session.whereabouts !== undefined
      ? selectList(whereaboutsColumns)
      : undefined
  }

  ledTo(row: TextRow): void {
    this.#watch?.saw(readWhereabouts(row))
  }

  /** Read by the watch. Where a pooler leads a session is up to the pooler. */
  get whereabouts(): Whereabouts | undefined {
    const session = this.#session
    return session?.isUsable === true && !session.isPooled ? session.whereabouts : undefined
  }

  /** Called by the watch. Requests that wait for an answer of that server get none. */
  leaveOlderThan(where: Whereabouts): void {
    const { whereabouts } = this
    if (whereabouts !== undefined && isOlder(whereabouts, where)) this.#discard(this.#session!)
  }

  /**
   * Connects now rather than with the first request.
   *
   * @throws RequestFailure
   */
  async connect(timeoutMs: number): Promise<void> {
    await this.#inTurn(timeoutMs, async (due) => void (await this.#opened(due)))
  }

  /** @throws RequestFailure */
  async query(request: Request): Promise<TextRow[]> {
    this.#inFlight += 1
    try {
      const session = this.#session
      return session?.isUsable === true && session.takesMany && !this.#closed
        ? await this.#ask(session, request, request.timeoutMs)
        : await this.#inTurn(request.timeoutMs, async (due) =>
            this.#ask(await this.#opened(due), request, this.#leftMs(due)),
          )
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#onQuiet?.()
    }
  }

  async #inTurn<T>(timeoutMs: number, step: (due: number) => Promise<T>): Promise<T> {
    const due = this.#options.clock.monotonicMs() + timeoutMs
    const turn = this.#turn
    const { promise: done, resolve: release } = Promise.withResolvers<void>()
    const mine = turn === undefined ? done : turn.then(() => done)
    this.#turn = mine
    try {
      if (turn !== undefined) await this.#within(due, turn, 'the connection is busy')
      return await step(due)
    } finally {
      release()
      if (this.#turn === mine) this.#turn = undefined
    }
  }

  /** Ends the session after the requests in progress. Further requests fail. */
  async close(): Promise<void> {
    this.#closed = true
    this.#watch?.forget(this)
    await this.#turn
    if (this.#inFlight > 0) await new Promise<void>((resolve) => (this.#onQuiet = resolve))
    const session = this.#session
    this.#session = undefined
    if (session !== undefined) await session.end()
  }

  async #ask(session: Session, request: Request, timeoutMs: number): Promise<TextRow[]> {
    try {
      return await session.query(request, timeoutMs)
    } catch (failure) {
      if (
        failure instanceof RequestFailure &&
        // The session of a commit in doubt is sound, and others may be waiting for their answers in it.
        !(failure.cause instanceof StandbyDoubt) &&
        (failure.effect === 'unknown' || spoilsConnection(failure.sqlState))
      ) {
        this.#discard(session)
      }
      throw failure
    }
  }

  async #opened(due: number): Promise<Session> {
    if (this.#closed) throw new RequestFailure('unsent', new Error('the connection is closed'))
    if (this.#session !== undefined && this.isOpen) return this.#session
    const session = newSession(this.#options)
    try {
      await session.connect(this.#leftMs(due), this.#greeting)
    } catch (error) {
      session.destroy()
      // A greeting changes nothing that matters, so whatever was lost with it, the request itself was not sent.
      if (error instanceof RequestFailure) throw new RequestFailure('unsent', error.cause)
      throw error
    }
    if (!session.isPooled && this.#watch?.isBehind(session.whereabouts) === true) {
      // What is granted there is unknown where the heartbeats go.
      session.destroy()
      throw new RequestFailure('unsent', new Error('this is an old primary, and a newer one is in use'))
    }
    this.#session = session
    this.#watch?.saw(session.whereabouts)
    return session
  }

  #discard(session: Session): void {
    session.destroy()
    if (this.#session === session) this.#session = undefined
  }

  #leftMs(due: number): number {
    return Math.max(1, due - this.#options.clock.monotonicMs())
  }

  async #within(due: number, promise: Promise<unknown>, what: string): Promise<void> {
    const { promise: timeout, reject } = Promise.withResolvers<never>()
    const cancel = this.#options.clock.after(this.#leftMs(due), () => {
      reject(new RequestFailure('unsent', new Error(what)))
    })
    try {
      await Promise.race([promise, timeout])
    } finally {
      cancel()
    }
  }
}

/**
 * A wait for a synchronous standby that was cancelled is answered with success and a warning. Its SQLSTATE is that of
 * every warning; the name of the routine is not translated.
 */
export function isStandbyWarning(notice: { readonly routine?: string | undefined }): boolean {
  return notice.routine === 'SyncRepWaitForLSN'
}

/** Settings that `pg` cannot use, such as a certificate file that is not there, are noticed here. */
function newSession(options: ConnectionOptions): Session {
  try {
    return new Session(options)
  } catch (error) {
    throw new RequestFailure('unsent', error)
  }
}

function selectList(columns: Readonly<Record<string, string>>): string {
  return Object.entries(columns)
    .map(([name, expression]) => `${expression} as ${name}`)
    .join(', ')
}

class StandbyDoubt extends Error {}

/** A request whose answer is being waited for. */
interface Asked {
  isWarned: boolean
}

/** One session: from connect to the first sign of trouble. */
class Session {
  readonly #client: Client & { pipeline?: boolean }
  readonly #clock: Clock
  /** Requests without an answer, the oldest first. */
  readonly #asked: Asked[] = []
  #ended = false
  #isPooled = false
  #whereabouts: Whereabouts | undefined

  constructor(options: ConnectionOptions) {
    this.#clock = options.clock
    this.#client = new Client({
      application_name: options.applicationName,
      keepAlive: true,
      ...options.config,
      types: asText,
    })
    // Without a listener a lost connection would end the process.
    this.#client.on('error', (error) => {
      options.logger.debug(`fencepost: a connection was lost: ${error.message}`)
      this.#ended = true
    })
    this.#client.on('end', () => {
      this.#ended = true
      options.ear?.ended()
    })
    const { ear } = options
    if (ear !== undefined) {
      this.#client.on('notification', ({ channel, payload = '' }) => ear.notified(channel, payload))
    }
    this.#client.on('notice', (notice) => {
      // The server answers in order, so it speaks of the oldest.
      const [oldest] = this.#asked
      if (isStandbyWarning(notice) && oldest !== undefined) oldest.isWarned = true
    })
  }

  get isUsable(): boolean {
    return !this.#ended
  }

  get isPooled(): boolean {
    return this.#isPooled
  }

  /** Where it led when it was opened. Undefined: the server does not say. */
  get whereabouts(): Whereabouts | undefined {
    return this.#whereabouts
  }

  /** Whether a request can be sent before the last one is answered. */
  get takesMany(): boolean {
    return this.#client.pipeline ?? false
  }

  async connect(timeoutMs: number, greeting: Greeting): Promise<void> {
    const started = this.#clock.monotonicMs()
    const leftMs = (): number => Math.max(1, timeoutMs - (this.#clock.monotonicMs() - started))
    await this.#bounded(timeoutMs, 'unsent', () => this.#client.connect())
    const columns = {
      pid: 'pg_catalog.pg_backend_pid()::text',
      isolation: `pg_catalog.current_setting('default_transaction_isolation')`,
      read_only: `pg_catalog.current_setting('transaction_read_only')`,
      ...greeting.columns,
    }
    const ask = (more: Readonly<Record<string, string>>): Promise<TextRow[]> =>
      this.query({ text: `select ${selectList({ ...columns, ...more })}` }, leftMs())
    const [row = {}] = await ask(whereaboutsColumns).catch((failure: unknown) => {
      // There are servers that do not let everybody know, or have no such functions. They are of use all the same.
      if (failure instanceof RequestFailure && failure.effect === 'refused') return ask({})
      throw failure
    })
    this.#whereabouts = readWhereabouts(row)
    if (row['read_only'] === 'on') {
      throw new RequestFailure(
        'refused',
        Object.assign(new Error('the session is read-only'), { code: '25006' }),
      )
    }
    greeting.check(row)
    // A pooler answers the connection with a process id of its own. Session settings and prepared statements would
    // stay behind on a server session that others use next.
    this.#isPooled = row['pid'] !== String(processIdOf(this.#client))
    if (!this.#isPooled && row['isolation'] !== 'read committed') {
      await this.query(
        { text: 'set session characteristics as transaction isolation level read committed' },
        leftMs(),
      )
    }
    // Versions of pg that know nothing of it go on sending one after the other.
    this.#client.pipeline = !this.#isPooled
  }

  async query(request: Omit<Request, 'timeoutMs'>, timeoutMs: number): Promise<TextRow[]> {
    const asked: Asked = { isWarned: false }
    const rows = await this.#bounded(timeoutMs, 'unknown', () => this.#send(request, asked))
    if (asked.isWarned) {
      throw new RequestFailure(
        'unknown',
        new StandbyDoubt('the wait for a synchronous standby was cancelled'),
      )
    }
    return rows
  }

  #send(request: Omit<Request, 'timeoutMs'>, asked: Asked): Promise<TextRow[]> {
    return new Promise((resolve, reject) => {
      this.#asked.push(asked)
      const config: QueryConfig = { text: request.text, values: [...(request.values ?? [])] }
      if (request.name !== undefined && !this.#isPooled) config.name = request.name
      // Called while the answer is read: a promise would be told when the next answer may have been read too.
      this.#client.query<TextRow>(config, (error: Error | null | undefined, result) => {
        this.#asked.splice(this.#asked.indexOf(asked), 1)
        if (error == null) resolve(result.rows)
        else reject(error)
      })
    })
  }

  destroy(): void {
    this.#ended = true
    // A polite end would wait for the answer that does not come. The stream exists once connect() was called.
    const { connection } = this.#client as unknown as { connection?: { stream?: { destroy(): void } } }
    connection?.stream?.destroy()
  }

  async end(): Promise<void> {
    this.#ended = true
    await this.#bounded(1000, 'unknown', () => this.#client.end()).catch(() => this.destroy())
  }

  /** Runs `step` for at most `timeoutMs`; after that the session is destroyed, because its answer may still come. */
  #bounded<T>(timeoutMs: number, effectOfSilence: 'unsent' | 'unknown', step: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const answer = step()
      const cancel = this.#clock.after(timeoutMs, () => {
        reject(new RequestFailure(effectOfSilence, new Error(`no answer within ${Math.round(timeoutMs)} ms`)))
        this.destroy()
      })
      answer.then(
        (outcome) => {
          cancel()
          resolve(outcome)
        },
        (error: unknown) => {
          cancel()
          const sqlState = sqlStateOf(error)
          const answered = sqlState !== undefined && !isConnectionState(sqlState)
          reject(new RequestFailure(answered ? 'refused' : effectOfSilence, error))
        },
      )
    })
  }
}
