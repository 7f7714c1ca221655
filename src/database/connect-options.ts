import { Client, type ClientConfig } from 'pg'
import { InvalidArgumentError } from '../errors.ts'

/** Where the leases live. */
export interface ConnectOptions {
  /**
   * A `postgres://` URL. Default: the environment variable FENCEPOST_DATABASE_URL, else DATABASE_URL, else what PGHOST or
   * PGDATABASE name. What a URL leaves open `pg` takes from PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and PGSSLMODE, and
   * the password also from PGPASSFILE or ~/.pgpass.
   */
  readonly connectionString?: string | undefined
  /** Settings for `pg` (host, port, user, password, ssl …), instead of or beside the URL. */
  readonly connection?: ClientConfig | undefined
}

/** Everything from the variables of PostgreSQL: what libpq and `pg` make of a URL that names nothing. */
const fromVariables = 'postgres://'

/**
 * The database that the environment names: FENCEPOST_DATABASE_URL, else DATABASE_URL, else PGHOST or PGDATABASE, as a URL
 * that leaves all to the latter. PGUSER, PGPASSWORD and PGSERVICE name none: the first two are often there for other
 * programs, and `pg` does not read the last.
 */
export function environmentUrl(env: NodeJS.ProcessEnv = process.env): string | undefined {
  const url = env['FENCEPOST_DATABASE_URL'] || env['DATABASE_URL']
  if (url !== undefined && url !== '') return url
  return env['PGHOST'] || env['PGDATABASE'] ? fromVariables : undefined
}

/** Follows where no database is named, for those who have one in a service file. */
export function serviceHint(env: NodeJS.ProcessEnv = process.env): string {
  return env['PGSERVICE'] ? ' (PGSERVICE is set, but pg does not read service files)' : ''
}

/**
 * What `pg` connects with, from options or the environment.
 *
 * @throws InvalidArgumentError when no database is named, or its URL cannot be read.
 */
export function connectionConfig(options: ConnectOptions): ClientConfig {
  const { connectionString, connection } = options
  const url = connectionString ?? (connection === undefined ? environmentUrl() : undefined)
  if (url === undefined && connection === undefined) {
    throw new InvalidArgumentError(
      'connectionString',
      url,
      'no database is named: pass connectionString, or set FENCEPOST_DATABASE_URL, DATABASE_URL, or PGHOST or PGDATABASE' +
        serviceHint(),
    )
  }
  if (url !== undefined && !isDatabaseUrl(url)) {
    // The value is not shown: a malformed URL may still hold a password.
    throw new InvalidArgumentError(
      'connectionString',
      undefined,
      'connectionString must be a well-formed URL that begins with postgres:// or postgresql://',
    )
  }
  return { ...connection, ...(url === undefined ? {} : { connectionString: url }) }
}

/** By the judgement of `pg` itself, which also takes URLs of Unix sockets that a browser would not. */
function isDatabaseUrl(url: string): boolean {
  if (!/^postgres(ql)?:\/\//.test(url)) return false
  try {
    // oxlint-disable-next-line no-new -- It reads the URL and does not connect.
    new Client({ connectionString: url })
    return true
  } catch (error) {
    // A certificate file that is not there is no fault of the form.
    return error instanceof Error && 'code' in error && error.code !== 'ERR_INVALID_URL'
  }
}
