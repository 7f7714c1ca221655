import type { Kysely } from 'kysely'
import type { Pool } from 'pg'
import { isStandbyWarning } from '../database/connection.ts'
import { RequestFailure, describeFailure, isRetryable, sqlStateOf } from '../database/failure.ts'
import { type Duration, durationMs, show } from '../duration.ts'
import { DatabaseError, FencepostError, InvalidArgumentError, OutcomeUnknownError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { ClientEar } from './client-ear.ts'
import { withWatchedSession } from './client-watch.ts'
import { type Fence, termsOf } from './fence.ts'
import { connectFailure, fenceFailure, isConnectionLoss } from './fence-failure.ts'

export interface AnnounceOptions {
  /**
   * How long to wait for fenced transactions of older terms that are still open there. Up to a day, 0 for not at all;
   * default 30 s. A paused one is cut off by the server after its idle timeout, 30 s unless it chose another.
   */
  readonly wait?: Duration | undefined
}

/** Where an announcement is, which decides what is known of it when it fails. */
interface Progress {
  isSent: boolean
  /** Undefined when the connection cannot be observed. */
  isLost: boolean | undefined
  isDoubtful: boolean
}

type Send = (waitMs: number, progress: Progress) => Promise<unknown>

const dayMs = 86_400_000
/** The same announcement at the same moment, above read committed, makes all but one of them start again. */
const attempts = 5

/**
 * Tells a database that only guards data (`fencepost migrate --fence-only`) that a term has begun: one committed statement,
 * after which that database refuses every older term of the lease. A fenced transaction or a repository's write announces its
 * term by itself; do it here first, so that older terms are shut out from the start of the term, and not from its first
 * write. The Kysely or pool is borrowed and never ended. In a database that holds the leases it verifies the term.
 *
 * It settles when the older terms' open fenced transactions have ended, and can be repeated.
 *
 * Not guaranteed: that database does not know when a holder expires. Until it has heard of the next term, it accepts the
 * writes of this one.
 *
 * @throws StaleTermError when a newer term was announced there before; LeaseLostError when the lease is known to be lost.
 * @throws DatabaseError with code `NOT_ANNOUNCED` when older terms' transactions did not end within `wait`.
 * @throws OutcomeUnknownError when the answer was lost: announce it again.
 * @example
 * ```ts
 * import { announce } from 'fencepost'
 *
 * await using lease = await fencepost.acquire('settlement')
 * await announce(lease, db, { wait: '5s' })
 * await lease.transaction(db, async (tx) => {
 *   await tx.updateTable('accounts').set({ status: 'settled' }).where('id', '=', 7).execute()
 * })
 * ```
 */
export async function announce<DB>(
  fence: Fence,
  db: Kysely<DB> | Pool,
  options: AnnounceOptions = {},
): Promise<void> {
  const waitMs = durationMs('wait', options.wait ?? 30_000, { minMs: 0, maxMs: dayMs })
  // Several terms one after the other, each for good: those that were announced before one is refused stay announced.
  const sends = termsOf(fence).map((term) => ({ term, send: sender(term, db) }))
  fence.assertHeld?.()
  // oxlint-disable-next-line no-await-in-loop -- One connection is enough, and each may have to wait.
  for (const { term, send } of sends) await announceTerm(term, send, waitMs)
}

async function announceTerm(term: Term, send: Send, waitMs: number): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const progress: Progress = { isSent: false, isLost: undefined, isDoubtful: false }
    try {
      await send(waitMs, progress)
      if (progress.isDoubtful) throw unknownOutcome(term, 'a synchronous standby may not have it')
      return
    } catch (error) {
      const sqlState = sqlStateOf(error)
      if (attempt < attempts && sqlState !== '55P03' && isRetryable(sqlState)) continue
      throw announceFailure(error, term, waitMs, progress)
    }
  }
}

function sender<DB>(term: Term, db: Kysely<DB> | Pool): Send {
  const source: unknown = db
  if (typeof source === 'object' && source !== null) {
    if ('getExecutor' in source) {
      const kysely = source as Kysely<DB>
      if (!kysely.isTransaction) return (waitMs, progress) => onKysely(term, kysely, waitMs, progress)
    } else if ('totalCount' in source && 'connect' in source) {
      const pool = source as Pool
      return (waitMs, progress) => onPool(term, pool, waitMs, progress)
    }
  }
  throw new InvalidArgumentError(
    'db',
    db,
    'db must be a Kysely instance or a pg Pool, and not a transaction or a client: an announcement is a transaction of its ' +
      `own; got ${show(db)}`,
  )
}

async function onKysely<DB>(term: Term, db: Kysely<DB>, waitMs: number, progress: Progress): Promise<void> {
  await db.connection().execute((session) =>
    withWatchedSession(session, async (watch) => {
      progress.isSent = true
      try {
        await session
          .selectNoFrom((eb) =>
            eb
              .fn<string>('fencepost.announce', [
                eb.cast(eb.val(term.lease), 'text'),
                eb.cast(eb.val(term.token.toString()), 'bigint'),
                eb.cast(eb.val(term.holderId), 'uuid'),
                eb.cast(eb.val(waitMs), 'bigint'),
              ])
              .as('token'),
          )
          .execute()
      } finally {
        progress.isLost = watch.isLost
        progress.isDoubtful = watch.isCommitDoubtful
      }
    }),
  )
}

async function onPool(term: Term, pool: Pool, waitMs: number, progress: Progress): Promise<void> {
  const client = await pool.connect()
  const onError = (): void => {
    progress.isLost = true
  }
  const onNotice = (notice: { routine?: string | undefined }): void => {
    if (isStandbyWarning(notice)) progress.isDoubtful = true
  }
  // It may break also when it is nobody's again.
  ClientEar.of(client)
  client.on('error', onError)
  client.on('notice', onNotice)
  progress.isSent = true
  progress.isLost = false
  let isSpoilt = false
  try {
    await client.query({
      text: 'select fencepost.announce($1::text, $2::bigint, $3::uuid, $4::bigint)',
      values: [term.lease, term.token.toString(), term.holderId, waitMs],
    })
  } catch (error) {
    isSpoilt = isConnectionLoss(error, progress.isLost)
    throw error
  } finally {
    client.off('error', onError)
    client.off('notice', onNotice)
    client.release(isSpoilt)
  }
}

function announceFailure(error: unknown, term: Term, waitMs: number, progress: Progress): unknown {
  if (error instanceof FencepostError) return error
  const refused = fenceFailure(error, term)
  if (refused !== undefined) return refused
  if (!progress.isSent) return connectFailure(error)
  const sqlState = sqlStateOf(error)
  if (sqlState === '55P03') {
    return new DatabaseError(
      'NOT_ANNOUNCED',
      `lease "${term.lease}" (token ${term.token}) was not announced: fenced transactions of an older term are still open ` +
        `there after ${waitMs} ms. Announce it again, or wait longer.`,
      { cause: error, sqlState },
    )
  }
  if (isConnectionLoss(error, progress.isLost)) {
    return unknownOutcome(term, error instanceof Error ? error.message : String(error), error)
  }
  return describeFailure(
    new RequestFailure('refused', error),
    `announce lease "${term.lease}" (token ${term.token})`,
  )
}

function unknownOutcome(term: Term, why: string, cause?: unknown): OutcomeUnknownError {
  return new OutcomeUnknownError(
    `whether lease "${term.lease}" (token ${term.token}) was announced is unknown (${why}). Announce it again: it may have ` +
      'been, and doing it twice does no harm.',
    { cause },
  )
}
