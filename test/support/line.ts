import type { QueryResultRow } from 'pg'
import { expect } from 'vitest'

/** What can be asked: the database of a test file, or a server of a test's own. */
export interface Queryable {
  query<Row extends QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]>
}

const patience = { timeout: 30_000, interval: 10 }

/** Waits until so many stand in line for the lease, one for each process. */
export async function untilInLine(database: Queryable, lease: string, count: number): Promise<void> {
  await expect
    .poll(async () => {
      const [row] = await database.query<{ count: number }>(
        'select count(*)::integer as count from fencepost.waiter where lease = $1',
        [lease],
      )
      return row!.count
    }, patience)
    .toBe(count)
}

export async function listeners(database: Queryable): Promise<number[]> {
  const rows = await database.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and application_name = 'fencepost listener'`,
  )
  return rows.map(({ pid }) => pid)
}

/** Waits until nobody holds the lease and nobody stands in line for it: nothing was left behind. */
export async function untilLeft(database: Queryable, lease: string): Promise<void> {
  await expect
    .poll(
      () =>
        database.query(
          `select 'held' as left_behind from fencepost.lease l join fencepost.holder h on h.id = l.holder_id
            where l.name = $1 and h.ended_at is null and h.expires_at > clock_timestamp()
            union all select 'in line' from fencepost.waiter where lease = $1`,
          [lease],
        ),
      patience,
    )
    .toEqual([])
}

/** Waits until the named holder's last heartbeat is a TTL old. */
export async function untilExpired(database: Queryable, label: string): Promise<void> {
  await expect
    .poll(
      () =>
        database.query(
          'select from fencepost.holder where label = $1 and ended_at is null and expires_at > clock_timestamp()',
          [label],
        ),
      patience,
    )
    .toEqual([])
}

/** Has the named holder, which is dead, be silent for longer than its TTL. */
export async function expire(database: Queryable, label: string): Promise<void> {
  await database.query(
    `update fencepost.holder set expires_at = clock_timestamp() - interval '1 ms' where label = $1 and ended_at is null`,
    [label],
  )
}

/** Milliseconds from the end of the named holder's last heartbeat to the grant of the lease's present term. */
export async function takenOverAfterMs(database: Queryable, lease: string, label: string): Promise<number> {
  const [row] = await database.query<{ ms: number }>(
    `select extract(epoch from l.granted_at - max(h.expires_at))::float * 1000 as ms
       from fencepost.lease l cross join fencepost.holder h
      where l.name = $1 and h.label = $2
      group by l.granted_at`,
    [lease, label],
  )
  return row!.ms
}

/** Collects what fencepost reports. */
export class Log {
  readonly warnings: string[] = []
  readonly errors: string[] = []
  readonly #details: string[] = []

  debug(message: string): void {
    this.#details.push(message)
  }

  info(): void {}

  warn(message: string): void {
    this.warnings.push(message)
  }

  error(message: string): void {
    this.errors.push(message)
  }

  /** Waits until wake-ups come. */
  async untilListening(): Promise<void> {
    await expect.poll(() => this.#details, patience).toContain('fencepost: listening for wake-ups')
  }

  /** Those about wake-ups that do not come. */
  get deafness(): string[] {
    return this.warnings.filter((message) => message.includes('wake-ups do not come'))
  }
}
