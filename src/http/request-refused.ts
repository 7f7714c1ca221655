import { FencepostError } from '../errors.ts'

/** Why a request was not let in. */
export type RefusalCode =
  | 'TOKEN_MISSING'
  | 'TOKEN_MALFORMED'
  | 'STALE_TOKEN'
  | 'RESOURCE_BUSY'
  | 'DATABASE_UNAVAILABLE'

/** What is known about a refusal. */
interface RefusalFacts {
  readonly resource: string
  readonly token?: bigint | undefined
  readonly currentToken?: bigint | undefined
  readonly cause?: unknown
}

/** What `RequestRefusedError.writeTo` needs of node:http's ServerResponse, which Express' response is as well. */
export interface WritableResponse {
  writeHead(status: number, headers: Record<string, string>): unknown
  end(body: string): unknown
}

const statuses: Readonly<Record<RefusalCode, readonly [status: number, title: string]>> = {
  TOKEN_MISSING: [428, 'Precondition Required'],
  TOKEN_MALFORMED: [400, 'Bad Request'],
  STALE_TOKEN: [412, 'Precondition Failed'],
  RESOURCE_BUSY: [503, 'Service Unavailable'],
  DATABASE_UNAVAILABLE: [503, 'Service Unavailable'],
}

const retryAfterSeconds = 1

/**
 * A request was refused before its handler ran, so nothing was done. `status` is the HTTP status of the answer:
 *
 * | code | status | |
 * | --- | --- | --- |
 * | `TOKEN_MISSING` | 428 | the request has no header `Fencing-Token` |
 * | `TOKEN_MALFORMED` | 400 | its value is not one decimal number from 1 to 2^63 − 1 |
 * | `STALE_TOKEN` | 412 | a newer token has been seen: `currentToken` |
 * | `RESOURCE_BUSY` | 503 | requests with older tokens, or others, did not finish in time; `Retry-After` |
 * | `DATABASE_UNAVAILABLE` | 503 | the highest token could not be asked for (see `cause`); `Retry-After` |
 *
 * Frameworks understand it as it is: Hono answers with `getResponse()`, Express with `status` and `headers`.
 */
export class RequestRefusedError extends FencepostError {
  readonly status: number
  readonly resource: string
  /** The token of the request, when it had one. */
  readonly token: bigint | undefined
  /** The highest token that has been seen of the resource, when that is why it was refused. */
  readonly currentToken: bigint | undefined
  /** The headers of the answer. */
  readonly headers: Readonly<Record<string, string>>
  readonly #title: string

  constructor(code: RefusalCode, facts: RefusalFacts) {
    super(code, describe(code, facts), { cause: facts.cause })
    const [status, title] = statuses[code]
    this.status = status
    this.#title = title
    this.resource = facts.resource
    this.token = facts.token
    this.currentToken = facts.currentToken
    this.headers = {
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
      ...(status === 503 ? { 'retry-after': String(retryAfterSeconds) } : {}),
    }
  }

  /** The body of the answer, as JSON (RFC 9457). Tokens are strings, because they do not fit into a JSON number. */
  get body(): string {
    return problem(this.status, this.#title, this.message, this.code, {
      token: this.token?.toString(),
      currentToken: this.currentToken?.toString(),
    })
  }

  /** The answer for servers of the fetch style. */
  getResponse(): Response {
    return new Response(this.body, { status: this.status, headers: this.headers })
  }

  /** Sends the answer with node:http or Express. */
  writeTo(response: WritableResponse): void {
    response.writeHead(this.status, { ...this.headers })
    response.end(this.body)
  }
}

/** A problem of RFC 9457 whose type is the status itself. */
export function problem(
  status: number,
  title: string,
  detail: string,
  code: string,
  more: Readonly<Record<string, string | undefined>> = {},
): string {
  return JSON.stringify({ type: 'about:blank', title, status, detail, code, ...more })
}

/** The client sees this. What the service calls the resource, and how it keeps its tokens, is none of its business. */
function describe(code: RefusalCode, { token, currentToken }: RefusalFacts): string {
  switch (code) {
    case 'TOKEN_MISSING':
      return 'The request has no header Fencing-Token. Nothing was done. Send the token of the lease that you hold.'
    case 'TOKEN_MALFORMED':
      return 'The header Fencing-Token must be one decimal number from 1 to 2^63 - 1. Nothing was done.'
    case 'STALE_TOKEN':
      return `The token ${token} is stale: ${currentToken} has been seen. Nothing was done. Do not repeat the request: the lease has a newer holder.`
    case 'RESOURCE_BUSY':
      return 'Requests that came before this one have not finished in time. Nothing was done. Try again.'
    case 'DATABASE_UNAVAILABLE':
      return 'The highest token seen could not be asked for. Nothing was done. Try again.'
  }
}
