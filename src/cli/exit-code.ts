import {
  DatabaseError,
  FencepostError,
  InvalidArgumentError,
  NotAcquiredError,
  SequenceMismatchError,
} from '../errors.ts'

/** The exit codes of every command. `run` adds the command's own, and 128 + n when a signal ended it. */
export const exitCode = {
  done: 0,
  failed: 1,
  /** What was named is not there, or is no longer what the caller took it for. Nothing was changed. */
  nothingThere: 3,
  usage: 64,
  databaseUnavailable: 69,
  leaseLost: 70,
  notAcquired: 75,
  notExecutable: 126,
  notFound: 127,
} as const

const refusals: ReadonlySet<string> = new Set([
  'QUERY_FAILED',
  'UNKNOWN_TABLE',
  'UNKNOWN_COLUMN',
  'NOT_PROTECTABLE',
  'TABLE_BUSY',
])

/** The code that tells a script what kind of failure it was. */
export function exitCodeOf(error: unknown): number {
  if (error instanceof InvalidArgumentError) return exitCode.usage
  // The lease that was named is one that this command cannot be used for.
  if (error instanceof SequenceMismatchError) return exitCode.usage
  if (error instanceof NotAcquiredError) return exitCode.notAcquired
  // A refusal of one request says nothing about the database: asking again would not help.
  if (error instanceof DatabaseError) {
    return refusals.has(error.code) ? exitCode.failed : exitCode.databaseUnavailable
  }
  if (error instanceof FencepostError && error.code === 'LOCAL_SERVER_FAILED')
    return exitCode.databaseUnavailable
  return exitCode.failed
}
