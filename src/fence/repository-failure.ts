import { RequestFailure, describeFailure, isConnectionState, sqlStateOf } from '../database/failure.ts'
import { DatabaseError, FencepostError, OutcomeUnknownError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { connectFailure, fenceFailure, isConnectionLoss } from './fence-failure.ts'

export interface RepositoryStep {
  readonly term: Term | undefined
  /**
   * `reading` changes nothing; `in transaction` is the transaction's to judge; `connecting` has sent nothing yet; `sent`
   * is a transaction of its own, so a lost answer leaves its outcome unknown.
   */
  readonly stage: 'reading' | 'in transaction' | 'connecting' | 'sent'
  /** Undefined when the connection could not be observed. */
  readonly isConnectionLost: boolean | undefined
  readonly table: string
  readonly fenceColumn: string
  /** SQL that names the fence column as the database knows it, whatever naming plugin is in use. */
  compiledFenceColumn(): string
}

/** A failed statement of a repository as a typed error. What is none of fencepost's business passes unchanged. */
export function repositoryFailure(error: unknown, step: RepositoryStep): unknown {
  if (error instanceof FencepostError) return error
  const refused = step.term === undefined ? undefined : fenceFailure(error, step.term)
  if (refused !== undefined) return refused
  if (step.stage === 'connecting') return connectFailure(error)
  const sqlState = sqlStateOf(error)
  const options = { cause: error, sqlState }
  switch (sqlState) {
    case '42P01':
      return new DatabaseError(
        'UNKNOWN_TABLE',
        `the database has no table "${step.table}". Check its name, its schema and the search_path.`,
        options,
      )
    case '42703':
      return columnFailure(error, step)
    case '3F000':
    case '42883':
      // A function or schema of the caller's own is none of ours.
      return /"?fencepost"?/.test(messageOf(error))
        ? describeFailure(new RequestFailure('refused', error), `write to "${step.table}"`)
        : error
    case '25006':
      return describeFailure(new RequestFailure('refused', error), `write to "${step.table}"`)
    default:
      return sqlState === undefined || isConnectionState(sqlState) ? lostAnswer(error, step) : error
  }
}

/** The server names the column nowhere but in the message, quoted as it is: names are not translated. */
function columnFailure(error: unknown, step: RepositoryStep): DatabaseError {
  const message = messageOf(error)
  const name = /select .*?"([^"]+)" from/.exec(step.compiledFenceColumn())?.[1] ?? step.fenceColumn
  const options = { cause: error, sqlState: '42703' }
  if (message.includes(`"${name}"`) || message.includes(`.${name} `)) {
    return new DatabaseError(
      'FENCE_COLUMN_MISSING',
      `table "${step.table}" has no column "${name}". Add it: alter table ${step.table} add column ${name} bigint not null default 0`,
      options,
    )
  }
  return new DatabaseError('UNKNOWN_COLUMN', `could not use "${step.table}": ${message}`, options)
}

function lostAnswer(error: unknown, step: RepositoryStep): unknown {
  if (step.stage === 'in transaction') return error
  if (step.stage === 'reading')
    return isConnectionLoss(error, step.isConnectionLost) ? connectFailure(error) : error
  // An error of the driver's own, such as a value that it cannot send, has not reached the server.
  if (!isConnectionLoss(error, step.isConnectionLost)) return error
  return new OutcomeUnknownError(
    `the answer of the database was lost (${messageOf(error)}): whether "${step.table}" was written is unknown. Look for ` +
      `rows stamped with token ${step.term?.token}.`,
    { cause: error },
  )
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
