import type { Logger } from '../logger.ts'
import type { TextRow } from './connection.ts'

/** Which server answers: of which cluster, and after how many promotions of a standby. */
export interface Whereabouts {
  readonly systemIdentifier: string
  readonly timeline: number
}

/**
 * What tells it, in SQL that every role may execute unless somebody has forbidden it. The name of the log's file has the timeline from the
 * promotion on; the control file only from the first checkpoint after it.
 */
export const whereaboutsColumns: Readonly<Record<string, string>> = {
  system_identifier: '(pg_catalog.pg_control_system()).system_identifier::text',
  wal_file:
    'case when not pg_catalog.pg_is_in_recovery() then pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) end',
}

/** Undefined where the server does not say. */
export function readWhereabouts(row: TextRow): Whereabouts | undefined {
  const { system_identifier: systemIdentifier, wal_file: walFile } = row
  if (systemIdentifier == null || walFile == null) return undefined
  return { systemIdentifier, timeline: Number.parseInt(walFile.slice(0, 8), 16) }
}

/** A connection as the watch sees it. */
export interface Watched {
  /** Where its session leads for good. Undefined: it has none, a pooler decides, or the server does not say. */
  readonly whereabouts: Whereabouts | undefined
  /** The session, if there is one, is of no use any more when it leads to a server before this promotion. */
  leaveOlderThan(where: Whereabouts): void
}

/**
 * Notices when the connections of one Fencepost lead to another server than before: a standby was promoted (its timeline is higher), an old
 * primary lives on beside the new one (lower), or it is another cluster altogether.
 */
export class ServerWatch {
  readonly #logger: Logger
  readonly #connections = new Set<Watched>()
  readonly #onMove: (what: string) => void
  #seen: Whereabouts | undefined

  /** `onMove` is told what has happened. */
  constructor(logger: Logger, onMove: (what: string) => void) {
    this.#logger = logger
    this.#onMove = onMove
  }

  follow(connection: Watched): void {
    this.#connections.add(connection)
  }

  forget(connection: Watched): void {
    this.#connections.delete(connection)
  }

  /** Whether another connection has a session to a server that was promoted later. */
  isBehind(where: Whereabouts | undefined): boolean {
    return [...this.#connections].some(({ whereabouts }) => {
      return whereabouts !== undefined && where !== undefined && isOlder(where, whereabouts)
    })
  }

  /** A session was opened there, or is there now. */
  saw(where: Whereabouts | undefined): void {
    const before = this.#seen
    this.#seen = where ?? before
    if (where === undefined || before === undefined) return
    if (where.systemIdentifier === before.systemIdentifier && where.timeline === before.timeline) return
    const what = whatHappened(before, where)
    this.#logger.warn(
      `fencepost: ${what} Each term that is held is looked up there, and lost unless the database knows it.`,
    )
    if (isOlder(before, where)) {
      // A session to the old primary, which may live on, would go on as if nothing had happened.
      for (const connection of [...this.#connections]) connection.leaveOlderThan(where)
    }
    this.#onMove(what)
  }
}

export function isOlder(one: Whereabouts, other: Whereabouts): boolean {
  return one.systemIdentifier === other.systemIdentifier && one.timeline < other.timeline
}

function whatHappened(before: Whereabouts, where: Whereabouts): string {
  if (where.systemIdentifier !== before.systemIdentifier) {
    return (
      `the database is in another cluster than before (system identifier ${where.systemIdentifier}, was ` +
      `${before.systemIdentifier}): it was moved or restored from a dump, or its address leads elsewhere.`
    )
  }
  const timelines = `(timeline ${where.timeline}, was ${before.timeline})`
  return where.timeline > before.timeline
    ? `the database has failed over ${timelines}: a standby was promoted, or a backup was restored. Unless the standby was synchronous, the last grants may be lost.`
    : `the database is an older one than before ${timelines}: an old primary that lives on beside the new one, or an old copy that was restored.`
}
