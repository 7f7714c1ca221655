import { DatabaseError, type FencepostErrorCode } from '../errors.ts'
import { tlsAdvice } from './tls-failure.ts'

/**
 * What is known of a request that failed:
 *   - `unsent`: it never left, so it had no effect;
 *   - `refused`: the server answered with an error, so it had no effect;
 *   - `unknown`: it was sent and no answer came, so it may have had its effect or may yet have it.
 */
export type Effect = 'unsent' | 'refused' | 'unknown'

/** A request that failed on one of fencepost's own connections. */
export class RequestFailure extends Error {
  readonly effect: Effect
  readonly sqlState: string | undefined

  constructor(effect: Effect, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause })
    this.name = 'RequestFailure'
    this.effect = effect
    this.sqlState = sqlStateOf(cause)
  }
}

/**
 * The five characters PostgreSQL gives to every error; undefined when the error came from elsewhere. What ends the session by 08P01 is told
 * as 08006: PgBouncer says so of everything, of a server too that it has lost in the middle of a COMMIT. About a message that was
 * sent, such as one with too many parameters, the server says 08P01 and goes on.
 */
export function sqlStateOf(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error)) return undefined
  if (error.code === '08P01' && 'severity' in error && error.severity === 'FATAL') return '08006'
  return typeof error.code === 'string' && /^[0-9A-Z]{5}$/.test(error.code) && !systemCodes.has(error.code)
    ? error.code
    : undefined
}

/** Node's own error codes that happen to have the form of an SQLSTATE. */
const systemCodes = new Set(['EPIPE', 'EPERM', 'EBADF', 'EBUSY', 'EROFS', 'EXDEV', 'ENOSR'])

/** The server may have carried the statement out before it said this, or says it of the connection as a whole. */
export function isConnectionState(sqlState: string): boolean {
  // 25P03 and 25P04: the server ended the session over its idle or transaction timeout.
  // It is about the message that was sent; see sqlStateOf().
  if (sqlState === '08P01') return false
  return (
    sqlState.startsWith('08') ||
    sqlState.startsWith('57P') ||
    sqlState === '25P03' ||
    sqlState === '25P04' ||
    sqlState === '53300'
  )
}

/** The connection must not be used again: it is gone, or it leads to the wrong server. */
export function spoilsConnection(sqlState: string | undefined): boolean {
  return sqlState === undefined || isConnectionState(sqlState) || sqlState === '25006' || sqlState === '0A000'
}

/** The statement was rolled back for the sake of another one: the same statement may well succeed now. */
export function isRetryable(sqlState: string | undefined): boolean {
  return sqlState === '40001' || sqlState === '40P01' || sqlState === '55P03'
}

/** The database may be back in a moment. */
export function isTransient(failure: RequestFailure): boolean {
  const { sqlState } = failure
  if (sqlState === undefined) return true
  // 0A000: a plan kept from before an upgrade of the schema; the next session has none.
  if (sqlState === '25006' || sqlState === '0A000') return true
  return isRetryable(sqlState) || isConnectionState(sqlState) || sqlState.startsWith('53')
}

/** One table from SQLSTATE to what a caller can do about it. */
const meanings: Record<string, readonly [FencepostErrorCode, string]> = {
  '3F000': [
    'SCHEMA_MISSING',
    'the schema "fencepost" is not installed in this database. Run "fencepost migrate".',
  ],
  '42883': [
    'SCHEMA_OUTDATED',
    'the schema "fencepost" lacks a function that this version needs. Run "fencepost migrate".',
  ],
  '42501': [
    'PERMISSION_DENIED',
    'this database role may not use fencepost. Run "fencepost migrate --grant-to ROLE" as the owner of the schema.',
  ],
  '28P01': [
    'AUTHENTICATION_FAILED',
    'the server refused the user name or the password. Check the database URL.',
  ],
  '28000': [
    'AUTHENTICATION_FAILED',
    'the server refused this user from this address. Check the database URL, with its sslmode and sslcert, and pg_hba.conf.',
  ],
  '3D000': ['DATABASE_UNAVAILABLE', 'the server has no database of that name. Check the database URL.'],
  '25006': [
    'READ_ONLY_SERVER',
    'the server is read-only (a standby?). Leases need the primary: check the database URL.',
  ],
  '22003': [
    'TOKEN_OVERFLOW',
    'the token sequence has reached its end, 2^63 - 1. Name a fresh sequence for new leases.',
  ],
}

/** A failed request as the caller sees it, with the cause kept. */
export function describeFailure(failure: RequestFailure, action: string): DatabaseError {
  const known = failure.sqlState === undefined ? undefined : meanings[failure.sqlState]
  const options = { cause: failure.cause, sqlState: failure.sqlState }
  if (known !== undefined) return new DatabaseError(known[0], `could not ${action}: ${known[1]}`, options)
  const advice = tlsAdvice(failure.cause)
  if (advice !== undefined && failure.effect === 'unsent') {
    return new DatabaseError('DATABASE_UNAVAILABLE', `could not ${action}: ${advice}`, options)
  }
  if (failure.effect === 'unknown') {
    return new DatabaseError(
      'OUTCOME_UNKNOWN',
      `could not ${action}: the database did not answer (${failure.message}), so whether it was done is unknown.`,
      options,
    )
  }
  if (failure.effect === 'refused' && failure.sqlState === undefined) {
    return new DatabaseError('DATABASE_UNAVAILABLE', `could not ${action}: ${failure.message}.`, options)
  }
  if (failure.sqlState === undefined || isConnectionState(failure.sqlState)) {
    return new DatabaseError(
      'DATABASE_UNAVAILABLE',
      `could not ${action}: the database cannot be reached (${failure.message}). Check that it runs and the database URL.`,
      options,
    )
  }
  return new DatabaseError(
    'QUERY_FAILED',
    `could not ${action}: the database answered ${failure.sqlState} (${failure.message}).`,
    options,
  )
}
