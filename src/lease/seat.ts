import type { Connection } from '../database/connection.ts'
import { RequestFailure, isTransient } from '../database/failure.ts'
import { Batcher } from './batcher.ts'
import type { HandOverOutcome } from './held-lease.ts'
import { Holder, type HolderOptions } from './holder.ts'
import {
  type AcquireAllAnswer,
  type AcquireAnswer,
  type Asking,
  type ReleaseAnswer,
  isHolderGone,
} from './protocol.ts'
import { type Term, type Token, marginMs } from './term.ts'

/** A grant, with the end of its maximum hold as this process sees it. */
export interface Grant {
  readonly isGranted: true
  readonly token: Token
  /** By the monotonic clock. Infinity: it has none. */
  readonly deadlineMs: number
}

export type Refused = AcquireAnswer & { readonly isGranted: false }
export type RefusedOne = AcquireAllAnswer & { readonly isGranted: false }

/** A name, and the place in line for it. */
export interface Place {
  readonly name: string
  readonly ticket: string
  readonly sequence: string
}

type Send<Request> = (requests: Request[]) => Promise<(Grant | Refused)[]>

export interface SeatOptions extends Omit<HolderOptions, 'onBeat' | 'isSpare' | 'onSettled' | 'giveBack'> {
  /** Asked at the time of a beat whether a seat that nobody uses may go. True: it is being closed. */
  retire(seat: Seat): boolean
  /** Places in line that this holder has may be gone. */
  onSettled(holderId: string): void
}

/** A term that is to be given back, and what is known of it. */
interface Sought {
  readonly term: Term
  readonly startedMs: number
  /** A request without an answer may have given it back. */
  isUnsure: boolean
  /** The last request got no answer. */
  isSilent: boolean
}

/** How long the places in line are waited for that are being left when the holder is ended: they go with it. */
const leaveWithinMs = 1000

/** A holder, and the requests that are made in its name: gathered into batches, and followed until they are known. */
export class Seat {
  readonly holder: Holder
  readonly #options: SeatOptions
  /** This seat, once the holder has joined. */
  readonly whenJoined: Promise<Seat>
  /** One batch for all who ask alike. */
  readonly #acquires = new Map<string, Batcher<string, Grant | Refused>>()
  readonly #questions = new Map<string, Batcher<Place, Grant | Refused>>()
  readonly #leaves: Batcher<Place, boolean>
  /** Places that are being left. */
  readonly #leaving = new Set<Promise<void>>()
  readonly #releases: Batcher<Term, ReleaseAnswer>
  /** Requests that are under way. */
  #inUse = 0
  /** Terms that are being given back, by token and name. */
  readonly #givingBack = new Map<string, Promise<HandOverOutcome>>()
  /** Terms given back, by name, and when that was answered: the answer is not durable until a later beat is. */
  readonly #givenBack = new Map<string, { readonly term: Term; readonly atMs: number }>()

  /** Joins at once. */
  constructor(options: SeatOptions) {
    const { protocol, identity } = options
    this.#options = options
    this.holder = new Holder({
      ...options,
      onBeat: (sentAtMs) => void this.#confirmGivenBack(sentAtMs),
      isSpare: () => this.#inUse === 0 && options.retire(this),
      onSettled: () => options.onSettled(identity.id),
      giveBack: (term) => void this.giveBack(term),
    })
    this.#leaves = new Batcher(
      (places) =>
        protocol.leave(
          identity.id,
          places.map(({ name }) => name),
          places.map(({ ticket }) => ticket),
        ),
      nameOf,
    )
    this.#releases = new Batcher(
      (terms) =>
        protocol.release(
          terms.map((term) => term.lease),
          terms.map((term) => term.token),
          identity.id,
        ),
      (term) => term.lease,
      { crowd: () => this.#inUse, overlaps: () => protocol.overlaps },
    )
    this.whenJoined = this.holder.join().then(() => this)
    // Who waits for it is told; whoever comes later takes another seat.
    this.whenJoined.catch(() => this.holder.lose('expired'))
  }

  get beats(): Connection {
    return this.#options.beats
  }

  /** Ends the holder, so that its leases are free at once, and closes the connection of its beats. */
  async close(): Promise<void> {
    await this.whenJoined.catch(() => {})
    // What was granted to places that nobody waits at any more goes on as if it had not been.
    const { promise: late, resolve } = Promise.withResolvers<void>()
    const cancel = this.#options.clock.after(leaveWithinMs, resolve)
    await Promise.race([Promise.all(this.#leaving), late])
    cancel()
    await this.holder.end().catch((error: unknown) => {
      this.#options.logger.warn(`fencepost: a holder could not be ended, its leases expire: ${String(error)}`)
    })
    await this.beats.close()
  }

  /** Keeps the seat while somebody waits under it. The returned function lets go. */
  use(): () => void {
    this.#inUse += 1
    return () => {
      this.#inUse -= 1
    }
  }

  /** Asks for a lease, together with all who ask alike meanwhile. */
  acquire(name: string, asking: Asking): Promise<Grant | Refused> {
    const send = (): Send<string> => (names) => this.#acquireAlike(names, asking)
    return this.#add(this.#acquires, keyOf(asking), send, name, itself)
  }

  #acquireAlike(names: string[], asking: Asking): Promise<(Grant | Refused)[]> {
    return this.#attempt(names, async (attempt) => {
      const sentAtMs = this.#options.clock.monotonicMs()
      const answers = await this.#options.protocol.acquire(names, this.holder.id, attempt, asking)
      // The database has counted from later than this.
      return answers.map((answer) =>
        answer.isGranted ? this.#grant(answer.token, sentAtMs, asking.bounds.maxHoldMs) : answer,
      )
    })
  }

  /** Asks with the place in line, together with all who do meanwhile. */
  askAgain(place: Place): Promise<Grant | Refused> {
    const { sequence } = place
    const send = (): Send<Place> => (places) => this.#askAlikeAgain(places, sequence)
    return this.#add(this.#questions, sequence, send, place, nameOf)
  }

  async #askAlikeAgain(places: Place[], sequence: string): Promise<(Grant | Refused)[]> {
    const sentAtMs = this.#options.clock.monotonicMs()
    const answers = await this.#options.protocol.askAgain(
      places.map(({ name }) => name),
      places.map(({ ticket }) => ticket),
      this.holder.id,
      sequence,
    )
    return answers.map((answer) =>
      answer.isGranted
        ? this.#grant(answer.token, sentAtMs, answer.deadlineMs ?? Number.POSITIVE_INFINITY)
        : answer,
    )
  }

  /**
   * Leaves the line, and what has been granted meanwhile goes on to the next. Asks until it is known, or the holder is gone and its
   * places with it.
   */
  leave(place: Place): Promise<void> {
    const leaving = this.#leave(place).finally(() => this.#leaving.delete(leaving))
    this.#leaving.add(leaving)
    return leaving
  }

  async #leave(place: Place): Promise<void> {
    const { clock, logger } = this.#options
    const done = this.use()
    try {
      for (let tries = 1; !this.holder.isLost; tries += 1) {
        try {
          // oxlint-disable-next-line no-await-in-loop -- Until it is known.
          if (await this.#leaves.add(place)) return
        } catch (error) {
          if (error instanceof RequestFailure && error.effect === 'refused' && !isTransient(error)) {
            // Asking on would keep the other callers of this process from the lease.
            logger.error(`fencepost: the line for lease "${place.name}" cannot be left: ${error.message}`)
            return
          }
          logger.debug(`fencepost: the line for lease "${place.name}" is left once more: ${String(error)}`)
        }
        // oxlint-disable-next-line no-await-in-loop
        await new Promise<void>((resolve) => clock.after(Math.min(2 ** tries, 500), resolve))
      }
    } finally {
      done()
    }
  }

  /** A grant that has come by a wake-up is durable, and with it the release that came before. */
  granted(name: string): void {
    this.#givenBack.delete(name)
  }

  /** The same, of a lease that others wait for too, as like as not. */
  grantedInLine(name: string): void {
    this.granted(name)
    this.#options.protocol.rememberWaitedFor(name)
  }

  /** Asks for all of the leases or none, in a call of its own. */
  async acquireAll(
    names: readonly string[],
    asking: Asking,
  ): Promise<{ readonly isGranted: true; readonly grants: readonly Grant[] } | RefusedOne> {
    const done = this.use()
    const answered = this.holder.startAsking()
    try {
      const { protocol, clock } = this.#options
      return await this.#attempt(names, async (attempt) => {
        const sentAtMs = clock.monotonicMs()
        const answer = await protocol.acquireAll(names, this.holder.id, attempt, asking)
        if (!answer.isGranted) return answer
        for (const name of names) this.granted(name)
        const grants = answer.tokens.map((token) => this.#grant(token, sentAtMs, asking.bounds.maxHoldMs))
        return { isGranted: true, grants }
      })
    } catch (error) {
      this.#noticeEnd(error)
      throw error
    } finally {
      answered()
      done()
    }
  }

  /** Has the database end the term after so long. Asks until it has agreed or the holder is gone. */
  async limit(term: Term, withinMs: number): Promise<void> {
    const { clock, logger, protocol } = this.#options
    for (let tries = 1; !this.holder.isLost; tries += 1) {
      try {
        // oxlint-disable-next-line no-await-in-loop -- Until it is known.
        if (await protocol.limitTerm(term.lease, term.token, this.holder.id, withinMs)) return
      } catch (error) {
        logger.debug(`fencepost: the end of lease "${term.lease}" is asked for once more: ${String(error)}`)
      }
      // oxlint-disable-next-line no-await-in-loop
      await new Promise<void>((resolve) => clock.after(Math.min(10 * 2 ** tries, 1000), resolve))
    }
  }

  /**
   * Asks until it is known, or until the TTL has passed without an answer. Then it goes on asking quietly. A term that is being given back
   * already is so once: of two who ask, one would be told that it was not held.
   */
  giveBack(term: Term): Promise<HandOverOutcome> {
    const key = `${term.token}:${term.lease}`
    const underWay = this.#givingBack.get(key)
    if (underWay !== undefined) return underWay
    const outcome = this.#giveBack(term).finally(() => this.#givingBack.delete(key))
    this.#givingBack.set(key, outcome)
    return outcome
  }

  async #giveBack(term: Term): Promise<HandOverOutcome> {
    this.#inUse += 1
    try {
      const sought = { term, startedMs: this.#options.clock.monotonicMs(), isUnsure: false, isSilent: false }
      return (await this.#askBack(sought)) ?? (await this.#insist(sought))
    } finally {
      this.#inUse -= 1
    }
  }

  /** One question about a term that is to be given back. Undefined: not known yet. */
  async #askBack(sought: Sought): Promise<HandOverOutcome | undefined> {
    const { term } = sought
    const { clock, logger } = this.#options
    try {
      const { outcome, isHandedOver } = await this.#releases.add(term)
      sought.isSilent = false
      // Durable, unlike a release.
      if (isHandedOver) return 'handed-over'
      // While our holder lives nobody else can have freed it: an earlier request did, and its answer was lost.
      if (outcome === 'released' || (outcome === 'not_held' && sought.isUnsure && this.holder.isAlive)) {
        this.#givenBack.set(term.lease, { term, atMs: clock.monotonicMs() })
        return 'released'
      }
      if (outcome === 'not_held') return sought.isUnsure ? 'unknown' : 'not-held'
    } catch (error) {
      sought.isUnsure = true
      sought.isSilent = true
      logger.debug(`fencepost: release of lease "${term.lease}" is sent again: ${String(error)}`)
    }
    return this.holder.isLost ? 'unknown' : undefined
  }

  /** Goes on asking, also when its caller is told that nobody knows. */
  #insist(sought: Sought): Promise<HandOverOutcome> {
    const { clock, ttlMs } = this.#options
    const { promise, resolve } = Promise.withResolvers<HandOverOutcome>()
    let sleepMs = 1
    const askLater = (): void => {
      if (sought.isSilent && clock.monotonicMs() - sought.startedMs >= ttlMs) resolve('unknown')
      clock.after(sleepMs, () => void ask())
      sleepMs = Math.min(sleepMs * 2, 500)
    }
    const ask = async (): Promise<void> => {
      const outcome = await this.#askBack(sought)
      if (outcome === undefined) askLater()
      else resolve(outcome)
    }
    askLater()
    return promise
  }

  /**
   * A release commits without waiting for the disk, so a crash of the server can undo it, and this holder, which lives
   * on, would keep the lease that nobody holds any more. The beat was durable, and with it every release answered before
   * it was sent; unless a crash came in between. So they are asked for once more: "not held" settles it.
   */
  async #confirmGivenBack(sentAtMs: number): Promise<void> {
    const older = [...this.#givenBack.values()].filter(({ atMs }) => atMs < sentAtMs)
    await Promise.all(
      older.map(async ({ term }) => {
        const answer = await this.#releases.add(term).then(
          ({ outcome }) => outcome,
          () => 'unknown' as const,
        )
        if (this.#givenBack.get(term.lease)?.term !== term) return
        if (answer === 'not_held') this.#givenBack.delete(term.lease)
        else if (answer === 'released') {
          this.#givenBack.set(term.lease, { term, atMs: this.#options.clock.monotonicMs() })
        }
      }),
    )
  }

  #grant(token: Token, sentAtMs: number, maxHoldMs: number): Grant {
    const { ttlMs } = this.#options
    return { isGranted: true, token, deadlineMs: sentAtMs + maxHoldMs - marginMs(Math.min(ttlMs, maxHoldMs)) }
  }

  /** The database says that the holder has expired or ended. */
  #noticeEnd(error: unknown): void {
    if (isHolderGone(error)) this.holder.lose('ended', error)
  }

  async #add<Request>(
    batchers: Map<string, Batcher<Request, Grant | Refused>>,
    key: string,
    makeSend: () => Send<Request>,
    request: Request,
    subjectOf: (request: Request) => string,
  ): Promise<Grant | Refused> {
    let batcher = batchers.get(key)
    if (batcher === undefined) {
      // Ways of asking may be many; those that nobody uses are not kept.
      const onIdle = (): void => void (batchers.size > 4 && batchers.delete(key))
      batcher = new Batcher(makeSend(), subjectOf, {
        onIdle,
        crowd: () => this.#inUse,
        overlaps: () => this.#options.protocol.overlaps,
      })
      batchers.set(key, batcher)
    }
    this.#inUse += 1
    const answered = this.holder.startAsking()
    try {
      const answer = await batcher.add(request)
      // A grant is durable, and with it the release that came before.
      if (answer.isGranted) this.granted(subjectOf(request))
      return answer
    } catch (error) {
      this.#noticeEnd(error)
      throw error
    } finally {
      answered()
      this.#inUse -= 1
    }
  }

  /** One numbered attempt; what it may have been granted is followed up when its answer is lost. */
  async #attempt<T>(names: readonly string[], send: (attempt: number) => Promise<T>): Promise<T> {
    await this.holder.settle()
    const attempt = this.holder.nextAttempt()
    try {
      return await send(attempt)
    } catch (error) {
      if (error instanceof RequestFailure && error.effect === 'unknown') {
        this.holder.leaveUnsettled(attempt, names)
      }
      throw error
    }
  }
}

const itself = (name: string): string => name
const nameOf = ({ name }: Place): string => name

const keys = new WeakMap<Asking, string>()

/** The same for all that are asked for alike. Those who ask without options share one object. */
function keyOf(asking: Asking): string {
  let key = keys.get(asking)
  if (key === undefined) {
    key = JSON.stringify(asking)
    keys.set(asking, key)
  }
  return key
}
