import { RequestFailure, describeFailure, isConnectionState } from '../database/failure.ts'
import { DatabaseError, FencepostError, OutcomeUnknownError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { connectFailure, fenceFailure } from './fence-failure.ts'

export interface RepositoryStep {
  readonly term: Term | undefined
  /** The statement was a transaction of its own, so a lost answer leaves its outcome unknown. */
  readonly isInline: boolean
  readonly table: string
  readonly fenceColumn: string
  readonly sqlState: string | undefined
  /** SQL that names the fence column as the database knows it, whatever naming plugin is in use. */
  compiledFenceColumn(): string
}

/** A failed statement of a repository as a typed error. What is none of fencepost's business passes unchanged. */
export function repositoryFailure(error: unknown, step: RepositoryStep): unknown {
  if (error instanceof FencepostError) return error
  const refused = step.term === undefined ? undefined : fenceFailure(error, step.term)
  if (refused !== undefined) return refused
  const { sqlState } = step
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
    case '25006':
      return describeFailure(new RequestFailure('refused', error), `write to "${step.table}"`)
    case undefined:
      return step.isInline ? lostAnswer(error, step) : error
    default:
      return step.isInline && isConnectionState(sqlState) ? lostAnswer(error, step) : error
  }
}

/** The server names the column nowhere but in the message, quoted as it is: names are not translated. */
function columnFailure(error: unknown, step: RepositoryStep): DatabaseError {
  const message = error instanceof Error ? error.message : String(error)
  const name = /select .*?"([^"]+)" from/.exec(step.compiledFenceColumn())?.[1] ?? step.fenceColumn
  const options = { cause: error, sqlState: step.sqlState }
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
  const known = connectFailure(error)
  if (known instanceof FencepostError && known.code === 'POOL_ENDED') return known
  const message = error instanceof Error ? error.message : String(error)
  if (/ECONNREFUSED|ENOTFOUND|EAI_AGAIN/.test(String((error as { code?: unknown } | null)?.code)))
    return known
  return new OutcomeUnknownError(
    `the answer of the database was lost (${message}): whether "${step.table}" was written is unknown. Look for rows ` +
      `stamped with token ${step.term?.token}.`,
    { cause: error },
  )
}
