import { InvalidArgumentError } from '../errors.ts'

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
    return (await startLocalServer()).url
  }
  const found = url ?? (process.env['FENCEPOST_DATABASE_URL'] || process.env['DATABASE_URL'])
  if (found === undefined || found === '') {
    throw new InvalidArgumentError(
      '--database-url',
      url,
      'no database is named: give --database-url, set FENCEPOST_DATABASE_URL or DATABASE_URL, or use --local for ' +
        "this machine's own server",
    )
  }
  return found
}
