import type { TextRow } from '../database/connection.ts'
import { RequestFailure, isRetryable } from '../database/failure.ts'
import { formatMs } from '../duration.ts'
import type { Backstage } from './backstage.ts'
import type { Rival, RivalLease } from './rival.ts'
import { TestKitError } from './test-kit-error.ts'

/** What a transaction says that has met a retryable error before. */
const isAborted = '25P02'

/** The terms of those who have joined through the proxy. Nothing is done here to anybody else's. */
export class OwnTerms {
  readonly #backstage: Backstage
  readonly #rival: Rival
  readonly #holders: ReadonlySet<string>
  readonly #withinMs: number

  /**
   * `holders`: the ids of those whose terms they are. `withinMs`: so long sessions with fenced transactions are ended again and again
   * before stealing is given up.
   */
  constructor(backstage: Backstage, rival: Rival, holders: ReadonlySet<string>, withinMs: number) {
    this.#withinMs = withinMs
    this.#backstage = backstage
    this.#rival = rival
    this.#holders = holders
  }

  async steal(name: string): Promise<RivalLease> {
    const stolen = await this.#backstage.alone(`steal lease "${name}"`, async () => {
      await this.#rival.join()
      const due = performance.now() + this.#withinMs
      do {
        // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
        const taken = await this.#trySteal(name)
        if (taken !== undefined) return taken
      } while (performance.now() < due)
      throw new TestKitError(
        'STILL_IN_USE',
        `lease "${name}" could not be stolen within ${formatMs(this.#withinMs)}: there is always another fenced transaction of it, or ` +
          'somebody has locked its row.',
        name,
      )
    })
    return stolen
  }

  async expire(name: string): Promise<void> {
    const backstage = this.#backstage
    await backstage.alone(`let lease "${name}" expire`, async () => {
      const { holderId } = await this.#find(name)
      await backstage.query(
        `update fencepost.holder set expires_at = pg_catalog.clock_timestamp() - interval '1 ms' where id = $1::uuid and ended_at is null`,
        [holderId],
      )
      await backstage.query(
        'select fencepost.wake(array(select n from fencepost.next_after(array[$1::text], array[0::bigint]) n))',
        [name],
      )
    })
  }

  /** Undefined: not yet. */
  async #trySteal(name: string): Promise<RivalLease | undefined> {
    const backstage = this.#backstage
    const { holderId, token, sequence } = await this.#find(name)
    await backstage.query(
      'select pg_catalog.pg_terminate_backend(s.pid) from fencepost.fenced_sessions($1::text, $2::bigint) s (pid)',
      [name, token],
    )
    let taken: RivalLease | undefined
    try {
      taken = await backstage.transaction(async () => {
        await backstage.query(`set local lock_timeout = '250ms'`)
        // Those that would begin a fenced transaction wait for it.
        await backstage.query(
          'select pg_catalog.pg_advisory_xact_lock(1178947139, fencepost.fence_key($1::text))',
          [name],
        )
        const changed = await backstage.query(
          `update fencepost.lease set grace = '0', available_at = '-infinity'
            where name = $1::text and token = $2::bigint and holder_id = $3::uuid
          returning true as is_changed`,
          [name, token, holderId],
        )
        if (changed.length === 0) return undefined
        // What whoever takes it does with a holder whose TTL has passed.
        await backstage.query(
          `update fencepost.holder set expires_at = pg_catalog.clock_timestamp() - interval '1 ms', ended_at = pg_catalog.clock_timestamp()
            where id = $1::uuid and ended_at is null`,
          [holderId],
        )
        return this.#rival.take(name, sequence)
      })
    } catch (error) {
      if (error instanceof RequestFailure && (isRetryable(error.sqlState) || error.sqlState === isAborted)) {
        return undefined
      }
      throw error
    }
    // The other leases of the holder go on to whoever waits for them.
    if (taken !== undefined) await this.#rival.end(holderId)
    return taken
  }

  /** The current term of the lease, which must be one that was acquired through the proxy. */
  async #find(name: string): Promise<{ holderId: string; token: string; sequence: string }> {
    const [row] = await this.#backstage.query(
      `select l.token::text as token, l.sequence, l.holder_id::text as holder, h.label,
              (h.ended_at is null and l.deadline > pg_catalog.clock_timestamp())::text as is_held
         from fencepost.lease l left join fencepost.holder h on h.id = l.holder_id
        where l.name = $1::text`,
      [name],
    )
    if (row === undefined) {
      throw new TestKitError(
        'UNKNOWN_LEASE',
        `nobody was ever granted a lease "${name}" here. Is the name right?`,
        name,
      )
    }
    const { holder, token, sequence } = row as TextRow & { token: string; sequence: string }
    if (holder == null || row['is_held'] !== 'true') {
      throw new TestKitError('NOT_HELD', `nobody holds lease "${name}". Acquire it before.`, name)
    }
    if (this.#rival.isHolder(holder)) {
      throw new TestKitError(
        'FOREIGN_HOLDER',
        `lease "${name}" is held by the rival of this kit already.`,
        name,
      )
    }
    if (!this.#holders.has(holder)) {
      throw new TestKitError(
        'FOREIGN_HOLDER',
        `lease "${name}" is held by "${row['label'] ?? ''}", who does not go through this kit, so it is left alone. Acquire it by ` +
          'kit.fencepost, or by a Fencepost that was opened with kit.connectionString.',
        name,
      )
    }
    return { holderId: holder, token, sequence }
  }
}
