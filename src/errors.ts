/**
 * Every error that fencepost throws is a `FencepostError` with a stable `code`. Facts are fields, so that
 * nobody has to read them out of a message. Contention is no error where the caller asked "try".
 */
export type FencepostErrorCode =
  | 'INVALID_ARGUMENT'
  | 'NOT_ACQUIRED'
  | 'LEASE_LOST'
  | 'LEASE_RELEASED'
  | 'STALE_TERM'
  | 'HOLDER_EXPIRED'
  | 'FOREIGN_LEASE'
  | 'NOT_ANNOUNCED'
  | 'SEQUENCE_MISMATCH'
  | 'UNFENCED'
  | 'WRONG_LEASE'
  | 'NOT_PROTECTABLE'
  | 'TABLE_BUSY'
  | 'TOKEN_OVERFLOW'
  | 'TRANSACTION_ABORTED'
  | 'TRANSACTION_CUT_OFF'
  | 'TRANSACTION_ENDED'
  | 'TRANSACTION_RETRYABLE'
  | 'OUTCOME_UNKNOWN'
  | 'SCHEMA_MISSING'
  | 'SCHEMA_OUTDATED'
  | 'SCHEMA_FENCE_ONLY'
  | 'SCHEMA_WITH_LEASES'
  | 'PERMISSION_DENIED'
  | 'DATABASE_UNAVAILABLE'
  | 'AUTHENTICATION_FAILED'
  | 'READ_ONLY_SERVER'
  | 'QUERY_FAILED'
  | 'UNKNOWN_TABLE'
  | 'UNKNOWN_COLUMN'
  | 'FENCE_COLUMN_MISSING'
  | 'POOL_ENDED'
  | 'TOKEN_MISSING'
  | 'TOKEN_MALFORMED'
  | 'STALE_TOKEN'
  | 'RESOURCE_BUSY'
  | 'PASSAGE_LOST'
  | 'ELECTION_STOPPED'
  | 'CLOSED'
  | 'LOCAL_SERVER_FAILED'

/** The base of every error fencepost throws. `code` is stable across versions; the message is not. */
export class FencepostError extends Error {
  readonly code: FencepostErrorCode

  constructor(code: FencepostErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = new.target.name
    this.code = code
  }
}

/** An argument is out of bounds. Thrown before anything is sent to the database. */
export class InvalidArgumentError extends FencepostError {
  /** The option or argument, as the caller wrote it. */
  readonly argument: string
  readonly value: unknown

  constructor(argument: string, value: unknown, message: string) {
    super('INVALID_ARGUMENT', message)
    this.argument = argument
    this.value = value
  }
}

/** Who stands in the way of a lease. What the database does not know is undefined. */
export interface Contender {
  /** It does not hold the lease, which is free, but stands first in line for it. */
  readonly isInLine: boolean
  /** The holder's label: for people, not an identity. */
  readonly label: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly since: Date | undefined
  /** Milliseconds until the holder's TTL ends unless it renews, by the database's clock when it answered. */
  readonly remainingMs: number | undefined
}

/** The lease was not granted within the time the caller was ready to wait. */
export class NotAcquiredError extends FencepostError {
  readonly lease: string
  readonly waitedMs: number
  readonly contender: Contender | undefined

  constructor(lease: string, waitedMs: number, contender: Contender | undefined) {
    const waited = waitedMs < 1 ? '' : ` within ${Math.round(waitedMs)} ms`
    super('NOT_ACQUIRED', `lease "${lease}" was not granted${waited}${describe(contender)}`)
    this.lease = lease
    this.waitedMs = Math.round(waitedMs)
    this.contender = contender
  }
}

function describe(contender: Contender | undefined): string {
  if (contender?.label === undefined) return '. Wait longer, or treat it as busy.'
  const { label, host, pid, since, isInLine } = contender
  const where = pid === undefined ? '' : ` (pid ${pid}${host === undefined ? '' : ` on ${host}`})`
  const when = since === undefined ? '' : ` since ${since.toISOString()}`
  return isInLine
    ? `: ${label}${where} is first in line for it${when}. Wait in line as well, or take it with "barge".`
    : `: it is held by ${label}${where}${when}. Wait longer, or treat it as busy.`
}

/**
 * Why a lease is lost: its holder was `ended` by the next taker; it `expired`, because it could not be renewed in time; its Fencepost
 * was `closed`; it is `overdue`: its maximum hold has passed; it was `taken`: the fence has refused it, because somebody else was
 * granted the lease or an operator has taken it away; or it is `forgotten`: the database has failed over, or was restored or moved, and where
 * it is now the grant is not known.
 */
export type LossReason = 'ended' | 'expired' | 'closed' | 'overdue' | 'taken' | 'forgotten'

/** The lease is no longer held. It is the reason of the lease's `signal` and final for that handle. */
export class LeaseLostError extends FencepostError {
  readonly lease: string
  readonly token: bigint
  readonly reason: LossReason

  constructor(lease: string, token: bigint, reason: LossReason, options?: ErrorOptions) {
    const why = {
      ended: 'the database says its holder has ended',
      expired: 'it could not be renewed in time',
      closed: 'its Fencepost was closed',
      overdue: 'it has been held for as long as its maxHold allows',
      taken: 'the database has refused a write under it as stale',
      forgotten: 'the database has failed over, and its grant is not known any more',
    }[reason]
    super(
      'LEASE_LOST',
      `lease "${lease}" (token ${token}) is lost: ${why}. Stop the work it guards, and acquire it anew.`,
      options,
    )
    this.lease = lease
    this.token = token
    this.reason = reason
  }
}

/** The handle was released, so it guards nothing any more. */
export class LeaseReleasedError extends FencepostError {
  readonly lease: string
  readonly token: bigint

  constructor(lease: string, token: bigint) {
    super('LEASE_RELEASED', `lease "${lease}" (token ${token}) has been released. Acquire it anew to go on.`)
    this.lease = lease
    this.token = token
  }
}

/** The database refused a write: a newer term exists, or this one was released. Nothing of the transaction stays. */
export class StaleTermError extends FencepostError {
  readonly lease: string
  readonly token: bigint
  /** The token that stands in the way: of the lease, or stamped on the row. Undefined when the server did not say. */
  readonly currentToken: bigint | undefined
  /** What refused it: the `lease` has a newer term, or the `row` carries a newer stamp (with `once`, the same one). */
  readonly by: 'lease' | 'row'

  constructor(
    lease: string,
    token: bigint,
    currentToken: bigint | undefined,
    by: 'lease' | 'row' = 'lease',
    options?: ErrorOptions,
  ) {
    const why =
      by === 'row'
        ? currentToken === token
          ? 'the row was already written under this token, and the repository writes it once'
          : `the row is stamped with token ${currentToken}`
        : currentToken === undefined
          ? 'the term is stale'
          : currentToken === token
            ? 'the term is over, or another holder has it'
            : `the term is stale; the current token is ${currentToken}`
    super(
      'STALE_TERM',
      `the write under lease "${lease}" with token ${token} was refused: ${why}. Nothing was written.`,
      options,
    )
    this.lease = lease
    this.token = token
    this.currentToken = currentToken
    this.by = by
  }
}

/** The database refused to begin fenced work: the holder has expired or ended. Nothing was written. */
export class HolderExpiredError extends FencepostError {
  readonly lease: string
  readonly token: bigint

  constructor(lease: string, token: bigint, options?: ErrorOptions) {
    super(
      'HOLDER_EXPIRED',
      `the holder of lease "${lease}" (token ${token}) has expired, so no new write may begin. Acquire the lease anew.`,
      options,
    )
    this.lease = lease
    this.token = token
  }
}

/** The lease was granted by another database than the one that was asked to honour it. */
export class ForeignLeaseError extends FencepostError {
  readonly lease: string
  readonly token: bigint

  constructor(lease: string, token: bigint, options?: ErrorOptions) {
    super(
      'FOREIGN_LEASE',
      `this database knows no lease "${lease}" with token ${token}, nor its holder: it was granted by another database, or ` +
        'purged here long ago. Nothing was written. Use a connection to the database that granted it.',
      options,
    )
    this.lease = lease
    this.token = token
  }
}

/**
 * A protected table or schema refused a write: with code `UNFENCED` the transaction carried no fence (or a malformed one),
 * with `WRONG_LEASE` it was fenced by a lease that does not guard what was written. Nothing of the transaction stays.
 */
export class ProtectedError extends FencepostError {
  /** What is protected: `table public.accounts`, `schema public (ALTER TABLE)`. Undefined when the driver did not say. */
  readonly what: string | undefined
  /** The lease, prefix or template that guards it. Undefined when the driver did not say. */
  readonly guard: string | undefined

  constructor(
    code: 'UNFENCED' | 'WRONG_LEASE',
    what: string | undefined,
    guard: string | undefined,
    options?: ErrorOptions,
  ) {
    const subject = what ?? 'what was written'
    const lease = guard === undefined ? 'the lease that guards it' : `lease "${guard}"`
    super(
      code,
      code === 'UNFENCED'
        ? `${subject} is protected, and the transaction carried no valid fence. Nothing was written. Write it under ${lease}: ` +
            'in lease.transaction(), after lease.fence(), or in a session that has its fence (see "fencepost env").'
        : `${subject} is protected, and the transaction was fenced by another lease than the one that guards it. ` +
            `Nothing was written. Write it under ${lease}.`,
      options,
    )
    this.what = what
    this.guard = guard
  }
}

/** Tokens of two sequences cannot be compared, so a term of another sequence is refused. */
export class SequenceMismatchError extends FencepostError {
  readonly lease: string
  readonly expected: string
  readonly actual: string

  constructor(lease: string, expected: string, actual: string) {
    super(
      'SEQUENCE_MISMATCH',
      `lease "${lease}" draws its tokens from sequence "${actual}", not "${expected}". Tokens of two sequences cannot ` +
        'be compared: name the same sequence in both places.',
    )
    this.lease = lease
    this.expected = expected
    this.actual = actual
  }
}

/** The request may or may not have taken effect. Ask the database before acting on either. */
export class OutcomeUnknownError extends FencepostError {
  constructor(message: string, options?: ErrorOptions) {
    super('OUTCOME_UNKNOWN', message, options)
  }
}

/** The database answered with an error, or did not answer. `sqlState` is PostgreSQL's code when there is one. */
export class DatabaseError extends FencepostError {
  readonly sqlState: string | undefined

  constructor(
    code: FencepostErrorCode,
    message: string,
    options: { cause: unknown; sqlState?: string | undefined },
  ) {
    super(code, message, { cause: options.cause })
    this.sqlState = options.sqlState
  }
}
