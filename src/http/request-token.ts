import { RequestRefusedError } from './request-refused.ts'

/** The header that carries the token, as `String(lease.token)`. Names of headers are compared without regard to case. */
const fencingTokenHeader = 'Fencing-Token'

/**
 * The headers of a request: a `Headers` of fetch (Hono, Deno, Bun, workers), or an object as node:http and Express have it.
 */
export type RequestHeaders =
  | Headers
  | Readonly<Record<string, string | readonly string[] | number | undefined>>

const maxToken = 2n ** 63n - 1n
const form = /^[1-9]\d{0,18}$/

/** @throws RequestRefusedError 428 when there is no token, 400 when it is not one decimal number from 1 to 2^63 − 1. */
export function tokenOf(headers: RequestHeaders, resource: string): bigint {
  const value = valueOf(headers)
  if (value === undefined) {
    throw new RequestRefusedError('TOKEN_MISSING', { resource })
  }
  // Several values arrive as one, joined by commas, or as a list.
  const token = form.test(value) ? BigInt(value) : 0n
  if (token < 1n || token > maxToken) {
    throw new RequestRefusedError('TOKEN_MALFORMED', { resource })
  }
  return token
}

function valueOf(headers: RequestHeaders): string | undefined {
  if (typeof headers.get === 'function') {
    return (headers as Headers).get(fencingTokenHeader) ?? undefined
  }
  const wanted = fencingTokenHeader.toLowerCase()
  const values = Object.entries(headers)
    .filter(([name, value]) => name.toLowerCase() === wanted && value !== undefined)
    .flatMap(([, value]) => value as string | readonly string[])
  return values.length === 0 ? undefined : values.join(', ')
}
