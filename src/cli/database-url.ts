import { Client } from 'pg'
import { environmentUrl, serviceHint } from '../database/connect-options.ts'
import { FencepostError, InvalidArgumentError } from '../errors.ts'

export interface DatabaseOptions {
  readonly databaseUrl?: string
  readonly local?: boolean
}

/**
 * The database a command works on. Nothing is guessed: a pipeline that forgot its URL must not get a private database
 * and believe it is alone.
 */
export async function databaseUrl(options: DatabaseOptions): Promise<string> {
  const { databaseUrl: url, local } = options
  if (url !== undefined && local === true) {
    throw new InvalidArgumentError('--local', local, 'give --database-url or --local, not both')
  }
  if (local === true) {
    const { startLocalServer } = await import('../database/local-server.ts')
    try {
      return (await startLocalServer()).url
    } catch (error) {
      if (error instanceof FencepostError) throw error
      const reason = error instanceof Error ? error.message : String(error)
      throw new FencepostError('LOCAL_SERVER_FAILED', `the local server cannot be used: ${reason}`, {
        cause: error,
      })
    }
  }
  const found = url ?? environmentUrl()
  if (found === undefined || found === '') {
    throw new InvalidArgumentError(
      '--database-url',
      undefined,
      'no database is named: give --database-url, set FENCEPOST_DATABASE_URL, DATABASE_URL, or PGHOST or PGDATABASE' +
        `${serviceHint()}, or use --local for this machine's own server`,
    )
  }
  assertReadable(found)
  return found
}

/** A URL that cannot be read is wrong usage, and it is never shown: a malformed one may still hold a password. */
function assertReadable(url: string): void {
  if (!/^postgres(ql)?:\/\//.test(url)) {
    throw new InvalidArgumentError(
      '--database-url',
      undefined,
      'the database URL must begin with postgres:// or postgresql://',
    )
  }
  try {
    // Reads the URL and the files that it names, and connects to nothing.
    void new Client({ connectionString: url })
  } catch {
    throw new InvalidArgumentError(
      '--database-url',
      undefined,
      'the database URL cannot be read: check its host and port, that special characters in the user name and the ' +
        'password are percent-encoded, and that the certificates it names exist',
    )
  }
}
