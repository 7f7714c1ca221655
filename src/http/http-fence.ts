import type { Pool } from 'pg'
import { type Clock, systemClock } from '../clock.ts'
import {
  RequestFailure,
  describeFailure,
  isConnectionState,
  isRetryable,
  sqlStateOf,
} from '../database/failure.ts'
import { type Duration, durationMs, show } from '../duration.ts'
import { FencepostError, InvalidArgumentError } from '../errors.ts'
import { connectFailure } from '../fence/fence-failure.ts'
import { checkName } from '../lease/name.ts'
import { type Logger, harmless, silent } from '../logger.ts'
import { Passage } from './passage.ts'
import { Places } from './places.ts'
import { RequestRefusedError, problem } from './request-refused.ts'
import { type RequestHeaders, tokenOf } from './request-token.ts'
import { ResourceSession } from './resource-session.ts'

export interface HttpFenceOptions {
  /**
   * How long a request waits to be let in: for a connection, and for requests with older tokens to leave. 10 ms to 5 minutes,
   * default 10 s. After that it is refused with 503.
   */
  readonly wait?: Duration | undefined
  /**
   * How long a handler may take until its `passage.signal` aborts. A tenth of it later the database lets newer tokens in,
   * also when this process is paused. 10 ms to 1 hour, default 30 s.
   */
  readonly timeout?: Duration | undefined
  /**
   * How many connections of the pool are used at a time: one for each request that is at work or waits to be let in. At least
   * 1. Default: half of the pool's `max`, so that handlers which use the same pool get along.
   */
  readonly maxConnections?: number | undefined
  /** Where it is reported why the database could not be asked, which the client is not told. Default: nowhere. */
  readonly logger?: Logger | undefined
}

export interface EnterOptions {
  /** Gives the waiting up; `enter` then rejects with its reason. It has no effect on a request that was let in. */
  readonly signal?: AbortSignal | undefined
}

/** Handles a request of the fetch style. `passage.signal` tells it when to stop. */
export type FencedHandler = (request: Request, passage: Passage) => Response | Promise<Response>

/**
 * A fence for services in front of other stores (files, object storage, another database). It reads the header
 * `Fencing-Token` of each request and refuses a token that is lower than the highest seen of the resource. That is kept in
 * PostgreSQL (`fencepost migrate`, with or without `--fence-only`), so all instances of the service share it.
 *
 * A look at the token alone would not do: a request with token 33 could be looked at, be delayed, and write after 34 has. So a
 * request that was let in keeps newer tokens out until it leaves, and from the moment a newer token is seen older ones are
 * refused. Requests with the same token run side by side.
 *
 * The pool is borrowed, never ended, and gives one connection to each request while it is at work: see `maxConnections`.
 *
 * Not guaranteed: a process that is paused in a handler for longer than `timeout` may write when it wakes, before it has heard
 * that its place is lost. Only a store that compares the token itself can refuse that: pass `passage.token` on where it can.
 * What a handler starts and does not wait for, and a body that streams after it has returned, is not covered either. And it
 * is no access control: whoever may send a token may send a high one, which shuts everybody else out.
 *
 * @example
 * ```ts
 * import { writeFile } from 'node:fs/promises'
 * import { HttpFence } from 'fencepost'
 * import { Pool } from 'pg'
 *
 * const fence = new HttpFence(new Pool({ connectionString: process.env.DATABASE_URL }))
 * const fetch = fence.wrap('reports', async (request, passage) => {
 *   await writeFile('report.pdf', await request.bytes(), { signal: passage.signal })
 *   return new Response(null, { status: 204 })
 * })
 * ```
 */
export class HttpFence {
  readonly #pool: Pool
  readonly #places: Places
  readonly #waitMs: number
  readonly #timeoutMs: number
  readonly #clock: Clock = systemClock
  readonly #logger: Logger

  /** @throws InvalidArgumentError */
  constructor(pool: Pool, options: HttpFenceOptions = {}) {
    const given: unknown = pool
    if (typeof given !== 'object' || given === null || !('totalCount' in given && 'connect' in given)) {
      throw new InvalidArgumentError('pool', pool, `pool must be a pg Pool; got ${show(pool)}`)
    }
    this.#pool = pool
    this.#waitMs = durationMs('wait', options.wait ?? 10_000, { minMs: 10, maxMs: 300_000 })
    this.#timeoutMs = durationMs('timeout', options.timeout ?? 30_000, { minMs: 10, maxMs: 3_600_000 })
    const { maxConnections = Math.max(1, Math.floor((pool.options?.max ?? 10) / 2)) } = options
    if (!Number.isSafeInteger(maxConnections) || maxConnections < 1) {
      throw new InvalidArgumentError(
        'maxConnections',
        maxConnections,
        `maxConnections must be a whole number of at least 1; got ${show(maxConnections)}`,
      )
    }
    this.#places = new Places(maxConnections)
    this.#logger = options.logger === undefined ? silent : harmless(options.logger)
  }

  /**
   * Wraps a handler of the fetch style. A request that is refused gets its answer (see `RequestRefusedError`) and does not reach
   * the handler. What the handler returns or throws passes unchanged, with one exception: when newer tokens may have been let
   * in before it was done, the answer is a 500 with code `PASSAGE_LOST`, because whether its writes came in order is unknown.
   *
   * @param resource what the handler writes to, or a function that tells it by the request. 1 to 512 bytes of UTF-8.
   */
  wrap(
    resource: string | ((request: Request) => string | Promise<string>),
    handler: FencedHandler,
  ): (request: Request) => Promise<Response> {
    if (typeof resource !== 'function') checkName('resource', resource)
    if (typeof handler !== 'function') {
      throw new InvalidArgumentError('handler', handler, `handler must be a function; got ${show(handler)}`)
    }
    return async (request) => {
      const name = typeof resource === 'function' ? await resource(request) : resource
      let passage: Passage
      try {
        passage = await this.enter(request.headers, name, { signal: request.signal })
      } catch (error) {
        if (error instanceof RequestRefusedError) return error.getResponse()
        throw error
      }
      let isInOrder = false
      let response: Response
      try {
        response = await handler(request, passage)
      } finally {
        isInOrder = await passage.leave()
      }
      if (isInOrder) return response
      await response.body?.cancel().catch(() => {})
      return new Response(passageLost, {
        status: 500,
        headers: { 'content-type': 'application/problem+json', 'cache-control': 'no-store' },
      })
    }
  }

  /**
   * Lets one request in, for servers of any style. The caller leaves when the writing is done.
   *
   * @param headers of the request: `Headers`, or the object that node:http and Express have.
   * @param resource what is written to. 1 to 512 bytes of UTF-8 without control characters, compared byte by byte.
   * @throws RequestRefusedError with the status of the answer: nothing was done, and there is nothing to leave.
   * @throws InvalidArgumentError for a resource out of bounds, before anything is asked.
   * @example
   * ```ts
   * import { writeFile } from 'node:fs/promises'
   * import { createServer } from 'node:http'
   * import { HttpFence } from 'fencepost'
   * import { Pool } from 'pg'
   *
   * const fence = new HttpFence(new Pool({ connectionString: process.env.DATABASE_URL }))
   * createServer(async (request, response) => {
   *   await using passage = await fence.enter(request.headers, 'reports')
   *   await writeFile('report.pdf', request, { signal: passage.signal })
   *   response.writeHead(204).end()
   * })
   * ```
   */
  async enter(headers: RequestHeaders, resource: string, options: EnterOptions = {}): Promise<Passage> {
    checkName('resource', resource)
    if (typeof headers !== 'object' || headers === null) {
      throw new InvalidArgumentError('headers', headers, 'headers must be those of a request')
    }
    const token = tokenOf(headers, resource)
    options.signal?.throwIfAborted()
    const due = this.#clock.monotonicMs() + this.#waitMs
    const busy = new AbortController()
    const cancel = this.#clock.after(this.#waitMs, () => {
      busy.abort(new RequestRefusedError('RESOURCE_BUSY', { resource, token }))
    })
    const stop = options.signal === undefined ? busy.signal : AbortSignal.any([options.signal, busy.signal])
    try {
      return await this.#enter(resource, token, due, stop)
    } catch (error) {
      if (stop.aborted && error === stop.reason) throw error
      const refused = refusal(error, resource, token)
      if (refused.code === 'DATABASE_UNAVAILABLE') {
        this.#logger.error(`fencepost: a request was refused: ${(refused.cause as Error).message}`)
      }
      throw refused
    } finally {
      cancel()
    }
  }

  async #enter(resource: string, token: bigint, due: number, stop: AbortSignal): Promise<Passage> {
    const free = await this.#places.take(stop)
    let session: ResourceSession | undefined
    try {
      session = await ResourceSession.open(this.#pool, stop)
      const leftMs = await this.#letIn(session, resource, token, due, stop)
      return new Passage(session, resource, token, { clock: this.#clock, leftMs }, free)
    } catch (error) {
      await session?.close()
      free()
      throw error
    }
  }

  /** Returns how long the handler may take, which counts from before the request to the database was sent. */
  async #letIn(
    session: ResourceSession,
    resource: string,
    token: bigint,
    due: number,
    stop: AbortSignal,
  ): Promise<number> {
    for (;;) {
      const sentAt = this.#clock.monotonicMs()
      const waitMs = Math.max(1, Math.ceil(due - sentAt))
      const { outcome, highest } = await session.enter(resource, token, waitMs, this.#holdMs, stop)
      switch (outcome) {
        case 'entered': {
          const leftMs = sentAt + this.#timeoutMs - this.#clock.monotonicMs()
          if (leftMs > 0) return leftMs
          throw new RequestRefusedError('RESOURCE_BUSY', { resource, token })
        }
        case 'stale':
          throw new RequestRefusedError('STALE_TOKEN', { resource, token, currentToken: highest })
        case 'not_yet':
          await session.follow(resource, token, waitMs, stop)
      }
    }
  }

  /** How long the database waits for a silent process: longer than its own signal, so that it is told first. */
  get #holdMs(): number {
    return Math.ceil(this.#timeoutMs * 1.1)
  }
}

const passageLost = problem(
  500,
  'Internal Server Error',
  'The request took too long, or the service lost its database. It was carried out, but a newer token may have been let in ' +
    'before it was done. Look before you repeat it.',
  'PASSAGE_LOST',
)

function refusal(error: unknown, resource: string, token: bigint): FencepostError {
  if (error instanceof FencepostError) return error
  const sqlState = sqlStateOf(error)
  if (isRetryable(sqlState))
    return new RequestRefusedError('RESOURCE_BUSY', { resource, token, cause: error })
  const cause =
    sqlState === undefined || isConnectionState(sqlState)
      ? connectFailure(error)
      : describeFailure(new RequestFailure('refused', error), `ask for the highest token of "${resource}"`)
  return new RequestRefusedError('DATABASE_UNAVAILABLE', { resource, token, cause })
}
