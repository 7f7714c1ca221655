import { RequestFailure, describeFailure, isTransient } from '../database/failure.ts'
import { type Contender, NotAcquiredError, SequenceMismatchError } from '../errors.ts'
import type { Logger } from '../logger.ts'
import type { HeldLease } from './held-lease.ts'
import type { AcquireRequest } from './lease-room.ts'
import { type Patience, PatienceOver } from './patience.ts'
import type { Refusal } from './protocol.ts'

/** What an attempt has led to. */
export type Outcome<L> =
  | { readonly leases: L[] }
  | { readonly name: string; readonly refusal: Refusal; readonly leases?: undefined }

/** Somebody who wants leases: how it asks, sleeps and gives up is its own affair. */
export interface Suitor<L> {
  /** One question to the database, or the answer that has come by itself. */
  ask(): Promise<Outcome<L>>
  /** Sleeps until it is worth asking again. `times`: so often in a row it has been refused for this reason, from 1. */
  pause(refusal: Refusal, times: number): Promise<void>
  /** Nobody waits any more. What an attempt that is still under way is granted goes back. */
  giveUp(attempt: Promise<Outcome<L>> | undefined): void
}

/** A caller with a shorter limit still waits so long for the first answer. */
export const firstAnswerMs = 1000

export interface ContendOptions<L> {
  readonly request: AcquireRequest
  readonly suitor: Suitor<L>
  readonly patience: Patience
  readonly logger: Logger
  /** A question that has been asked already. */
  readonly attempt?: Promise<Outcome<L>> | undefined
}

/**
 * Asks until granted or out of patience.
 *
 * @throws the reason of the signal; what the database refused for good; what it did not answer in time.
 */
export async function contend<L>(options: ContendOptions<L>): Promise<L[] | NotAcquiredError> {
  const { request, suitor, patience, logger } = options
  let refused: { readonly name: string; readonly contender: Contender } | undefined
  let failure: RequestFailure | undefined
  let reason: Refusal['reason'] | undefined
  let inARow = 0
  for (let tries = 1; ; tries += 1) {
    const attempt = tries === 1 && options.attempt !== undefined ? options.attempt : suitor.ask()
    // However short the wait is, a healthy database gets the time to say whether the leases are free.
    const isShort = tries === 1 && request.waitMs > 0 && patience.leftMs < firstAnswerMs
    const asking = isShort ? patience.anew(firstAnswerMs) : patience
    let pause: () => Promise<void>
    try {
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      const outcome = await asking.within(attempt)
      if (outcome.leases !== undefined) return outcome.leases
      const { name, refusal } = outcome
      refused = { name, contender: refusal.contender }
      failure = undefined
      if (refusal.reason === 'sequence') {
        throw new SequenceMismatchError(name, request.asking.sequence, refusal.contender.label ?? 'unknown')
      }
      if (request.waitMs === 0) {
        suitor.giveUp(undefined)
        return new NotAcquiredError(name, patience.waitedMs, refusal.contender)
      }
      inARow = refusal.reason === reason ? inARow + 1 : 1
      reason = refusal.reason
      const times = inARow
      pause = () => suitor.pause(refusal, times)
    } catch (error) {
      if (asking.isOver) {
        // The attempt may still be on the wire.
        suitor.giveUp(attempt)
        if (!(error instanceof PatienceOver)) throw error
        return notAcquired(request, patience, refused, failure)
      }
      const isRequestFailure = error instanceof RequestFailure
      if (!isRequestFailure || request.waitMs === 0 || !isTransient(error)) {
        suitor.giveUp(undefined)
        throw isRequestFailure ? describeFailure(error, `acquire ${show(request)}`) : error
      }
      logger.warn(`fencepost: ${show(request)} is asked for again: ${error.message}`)
      failure = error
      const pauseMs = Math.min(2000, 50 * 2 ** Math.min(tries, 6)) * (0.5 + Math.random() / 2)
      pause = () => patience.sleep(pauseMs)
    } finally {
      if (asking !== patience) asking.done()
    }
    try {
      // oxlint-disable-next-line no-await-in-loop
      await pause()
    } catch (impatience) {
      suitor.giveUp(undefined)
      if (!(impatience instanceof PatienceOver)) throw impatience
      return notAcquired(request, patience, refused, failure)
    }
  }
}

/** Gives back what an attempt that nobody waits for any more has been granted. Never rejects. */
export async function giveBack<L extends HeldLease>(attempt: Promise<Outcome<L>> | undefined): Promise<void> {
  try {
    const outcome = await attempt
    await Promise.all(outcome?.leases?.map((lease) => lease.release()) ?? [])
  } catch {
    // The caller has been told that it got no lease; a request without an answer is settled by its holder.
  }
}

/** Busy only when the database has said so: one that does not answer must not look like a lease that is held. */
function notAcquired(
  request: AcquireRequest,
  patience: Patience,
  refused: { readonly name: string; readonly contender: Contender } | undefined,
  failure: RequestFailure | undefined,
): NotAcquiredError {
  if (failure === undefined && refused !== undefined) {
    return new NotAcquiredError(refused.name, patience.waitedMs, refused.contender)
  }
  const silence = new Error(`no answer within the ${Math.round(patience.waitedMs)} ms that were to be waited`)
  throw describeFailure(failure ?? new RequestFailure('unsent', silence), `acquire ${show(request)}`)
}

function show({ names }: AcquireRequest): string {
  const list = names
    .slice(0, 3)
    .map((name) => `"${name}"`)
    .join(', ')
  if (names.length === 1) return `lease ${list}`
  return names.length > 3 ? `leases ${list} and ${names.length - 3} more` : `leases ${list}`
}
