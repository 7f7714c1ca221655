import type { PoolClient } from 'pg'

/** Makes the packet with the status come after the one with the error, as it does now and then. */
export function tellLate({ connection }: PoolClient): void {
  const emit = connection.emit.bind(connection) as (event: string, ...rest: unknown[]) => boolean
  let hasFailed = false
  connection.emit = (event: string, ...rest: unknown[]) => {
    const isLate = hasFailed && event === 'readyForQuery'
    hasFailed = event === 'errorMessage'
    if (isLate) setImmediate(() => emit(event, ...rest))
    return isLate || emit(event, ...rest)
  }
}
