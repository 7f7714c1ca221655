import { DatabaseError, FencepostError, InvalidArgumentError, OutcomeUnknownError } from '../errors.ts'
import type { Fence } from './fence.ts'

export function controlNotAlone(): FencepostError {
  return new FencepostError(
    'TRANSACTION_ENDED',
    'in a fenced session BEGIN, COMMIT and ROLLBACK are statements of their own, without AND CHAIN: what follows them in one ' +
      'text would not be fenced. Nothing of the text was sent.',
  )
}

export function endedInside({ term }: Fence): FencepostError {
  return new FencepostError(
    'TRANSACTION_ENDED',
    `a text of several statements has ended its fenced transaction itself, under lease "${term.lease}". What it wrote before is ` +
      'written or rolled back as it said, and what came after in the text was not fenced. Nothing more is sent. Send BEGIN, ' +
      'COMMIT and ROLLBACK as statements of their own.',
  )
}

export function leftRunning({ term }: Fence): OutcomeUnknownError {
  return new OutcomeUnknownError(
    `the work of the fenced session under lease "${term.lease}" (token ${term.token}) has returned while a text of several statements ` +
      'was still running that may end its transaction: whether what it wrote is committed is unknown. Wait for its end.',
  )
}

export function notSubmittable(statement: unknown): InvalidArgumentError {
  return new InvalidArgumentError(
    'query',
    statement,
    'in a fenced session a cursor or a stream is part of a transaction that is open already, and neither begins nor ends one',
  )
}

export function foreignSnapshot(): DatabaseError {
  return new DatabaseError(
    'QUERY_FAILED',
    'in a fenced session a transaction sees its own snapshot: with one that was brought in, its fence could not see whether the ' +
      'term still holds. SET TRANSACTION SNAPSHOT was not sent.',
    { cause: undefined },
  )
}

export function readOnlyNotReset(): DatabaseError {
  return new DatabaseError(
    'TRANSACTION_ABORTED',
    'in a fenced session a transaction that only reads has no fence, and must not become one that writes: transaction_read_only was ' +
      'not reset, and the transaction was rolled back. Begin one that writes.',
    { cause: undefined },
  )
}

export function notInTransaction(cause: unknown, sqlState: string, isPooled: boolean): DatabaseError {
  const why = cause instanceof Error ? cause.message : String(cause)
  return new DatabaseError(
    'QUERY_FAILED',
    `a statement can be fenced only in a transaction, where PostgreSQL does not run this one (${why}). It was not carried out. ` +
      (isPooled
        ? 'Outside of one it needs a session of its own, which a pooler does not give: connect to PostgreSQL itself.'
        : 'The option outsideTransactions lets it through after a check of the term.'),
    { cause, sqlState },
  )
}
