import {
  RequestFailure,
  describeFailure,
  isConnectionState,
  isRetryable,
  sqlStateOf,
} from '../database/failure.ts'
import {
  DatabaseError,
  FencepostError,
  ForeignLeaseError,
  HolderExpiredError,
  OutcomeUnknownError,
  ProtectedError,
  StaleTermError,
} from '../errors.ts'
import type { Term } from '../lease/term.ts'

/** Where a fenced transaction was when something failed. It decides what is known of the outcome. */
export type Phase = 'connecting' | 'beginning' | 'working' | 'committing'

/** The fence's own refusals as typed errors, whoever's statement met them; undefined for anything else. */
export function fenceFailure(error: unknown, term: Term): FencepostError | undefined {
  switch (sqlStateOf(error)) {
    case 'FP001':
      return staleTerm(error, term)
    case 'FP002':
      return new HolderExpiredError(term.lease, term.token, { cause: error })
    case 'FP003':
      return new ForeignLeaseError(term.lease, term.token, { cause: error })
    case 'FP007':
      return new DatabaseError(
        'NOT_ANNOUNCED',
        `the term of lease "${term.lease}" with token ${term.token} has not announced itself in this database, and above read ` +
          'committed a fenced transaction cannot do that by itself. Nothing was written. Call announce() first.',
        { cause: error, sqlState: 'FP007' },
      )
    case 'FP005':
    case 'FP006':
      return protectedFailure(error)
    default:
      return undefined
  }
}

/**
 * What a caller of a fenced transaction is told. Errors of the caller's own making pass unchanged.
 * `isConnectionLost` is undefined when the connection could not be observed.
 */
export function transactionFailure(
  error: unknown,
  phase: Phase,
  term: Term,
  isConnectionLost: boolean | undefined,
): unknown {
  if (error instanceof FencepostError) return error
  const refused = fenceFailure(error, term)
  if (refused !== undefined) return refused
  const sqlState = sqlStateOf(error)
  if (isRetryable(sqlState)) {
    return new DatabaseError(
      'TRANSACTION_RETRYABLE',
      `the fenced transaction under lease "${term.lease}" was rolled back for the sake of another one (${sqlState}). ` +
        'Nothing was written; run it again.',
      { cause: error, sqlState },
    )
  }
  switch (phase) {
    case 'connecting':
      return connectFailure(error)
    case 'beginning':
      return describeFailure(
        new RequestFailure('refused', error),
        `begin a fenced transaction under lease "${term.lease}"`,
      )
    case 'working':
      return isConnectionLoss(error, isConnectionLost) ? cutOff(term, error) : error
    case 'committing':
      return commitFailure(error, term)
  }
}

/**
 * Why a fenced transaction could not begin where the server has refused a write. It says the same of a standby and of a transaction
 * that is read-only by default, so it is asked. `send` sends on the same session, in no transaction.
 */
export async function readOnlyFailure(
  error: unknown,
  { lease }: Term,
  send: (sql: string) => Promise<{ rows: unknown[] }>,
): Promise<unknown> {
  if (sqlStateOf(error) !== '25006') return error
  try {
    const { rows } = await send('select 1 where not pg_catalog.pg_is_in_recovery()')
    if (rows.length === 0) return error
  } catch {
    return error
  }
  return new DatabaseError(
    'QUERY_FAILED',
    `could not begin a fenced transaction under lease "${lease}": transactions are read-only by default here, although the ` +
      'server takes writes. Nothing was written. Find where default_transaction_read_only is set (for the role, the database, the ' +
      "server, or in the connection's options), and turn it off for whoever writes.",
    { cause: error, sqlState: '25006' },
  )
}

/** A pool that has ended has no code for it, so this one fault is known by the words of `pg` and Kysely. */
export function connectFailure(error: unknown): unknown {
  if (/after calling end on the pool|driver has already been destroyed/i.test(messageOf(error))) {
    return new DatabaseError(
      'POOL_ENDED',
      'the pool or Kysely that was passed in has been ended. fencepost never ends what it borrows: end it later.',
      { cause: error },
    )
  }
  return describeFailure(new RequestFailure('unsent', error), 'connect')
}

function commitFailure(error: unknown, term: Term): unknown {
  if (error instanceof Error && error.name === 'AbortedTransactionError')
    return abortedTransaction(term, error)
  const sqlState = sqlStateOf(error)
  if (sqlState !== undefined && !isConnectionState(sqlState)) return error
  // The server raises it where it waits for the next message, or has read one that it does not carry out any more: after a
  // COMMIT there is no transaction in which it could be idle.
  if (sqlState === '25P03') return cutOff(term, error)
  return new OutcomeUnknownError(
    `the answer to COMMIT was lost (${messageOf(error)}): whether the fenced transaction under lease "${term.lease}" ` +
      `(token ${term.token}) was written is unknown. Do not repeat it blindly: look for rows stamped with the token.`,
    { cause: error },
  )
}

/** PostgreSQL answers COMMIT with ROLLBACK when a statement had failed and its error was caught. */
export function abortedTransaction(term: Term, cause?: unknown): DatabaseError {
  return new DatabaseError(
    'TRANSACTION_ABORTED',
    `the fenced transaction under lease "${term.lease}" was rolled back: a statement in it failed and the error was ` +
      'caught. Nothing was written. Let the error out of the callback, or use a savepoint.',
    { cause },
  )
}

/** The session ended before COMMIT was sent. */
export function cutOff(term: Term, cause: unknown): DatabaseError {
  return new DatabaseError(
    'TRANSACTION_CUT_OFF',
    `the fenced transaction under lease "${term.lease}" was cut off (${messageOf(cause)}): it was silent for longer than ` +
      'its idle timeout, or the connection was lost. Nothing was written.',
    { cause, sqlState: sqlStateOf(cause) },
  )
}

/** PostgreSQL says "committed" with a warning when it gave up waiting for a synchronous standby. */
export function doubtfulCommit(term: Term): OutcomeUnknownError {
  return new OutcomeUnknownError(
    `the fenced transaction under lease "${term.lease}" (token ${term.token}) is committed on this server, but its ` +
      'synchronous standby may not have it: after a failover it may be gone.',
  )
}

/**
 * Whether an error tells of the statement's connection rather than of the statement. `isLost` is what was observed of the
 * connection; undefined when it could not be.
 */
export function isConnectionLoss(error: unknown, isLost: boolean | undefined): boolean {
  const sqlState = sqlStateOf(error)
  if (sqlState !== undefined) return isConnectionState(sqlState)
  // A client-side timeout leaves the connection as it is, and the answer unknown.
  if (/^query read timeout/i.test(messageOf(error))) return true
  // Another connection of the caller's work may break with the same words.
  if (isLost !== undefined) return isLost
  if (typeof error !== 'object' || error === null) return false
  const code = 'code' in error ? String(error.code) : ''
  return (
    /^E(CONNRESET|PIPE|TIMEDOUT|NOTCONN)$/.test(code) ||
    /connection terminated|not queryable/i.test(messageOf(error))
  )
}

/** Of several terms that of the lease which a refusal names; the first when it names none. */
export function termAtFault(error: unknown, terms: readonly Term[]): Term {
  const { lease } = detailOf(error)
  return terms.find((term) => term.lease === lease) ?? terms[0]!
}

/** The refusal of a protected table or schema, which names no term; undefined for anything else. */
export function protectedFailure(error: unknown): ProtectedError | undefined {
  const sqlState = sqlStateOf(error)
  if (sqlState !== 'FP005' && sqlState !== 'FP006') return undefined
  const code = sqlState === 'FP005' ? 'UNFENCED' : 'WRONG_LEASE'
  const { what, guard } = detailOf(error)
  return new ProtectedError(code, textOf(what), textOf(guard), { cause: error })
}

/** What the database says in the DETAIL of a refusal, as JSON. Not every driver passes it on. */
function detailOf(error: unknown): Record<string, unknown> {
  try {
    const detail: unknown = JSON.parse((error as { detail: string }).detail)
    return typeof detail === 'object' && detail !== null ? { ...detail } : {}
  } catch {
    return {}
  }
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined
}

function staleTerm(error: unknown, term: Term): StaleTermError {
  const { current, by } = detailOf(error)
  // Where the driver did not pass the detail on, the refusal itself is certain all the same.
  const currentToken = typeof current === 'string' && /^\d+$/.test(current) ? BigInt(current) : undefined
  return new StaleTermError(term.lease, term.token, currentToken, by === 'row' ? 'row' : 'lease', {
    cause: error,
  })
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
