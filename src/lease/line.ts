import type { Contender } from '../errors.ts'
import type { Patience } from './patience.ts'

/** The right to ask the database for one name, which one caller of this process has at a time. */
export interface Turn<Legacy> {
  /** What the one before has left: a place in the database's line. */
  readonly legacy: Legacy | undefined
  /** The database is being asked in this turn. */
  asks(nowMs: number): void
  /** The database has answered; `contender`, when it said no: who stands in the way. */
  isAnswered(contender: Contender | undefined): void
  /** Lets the next one have the turn. Calling it again does nothing. */
  leave(): void
  /** The same with a legacy. False when nobody waits: the turn stays. */
  leaveTo(legacy: Legacy): boolean
}

interface Place<Legacy> {
  /** In the order in which they asked. */
  readonly waiting: ((turn: Turn<Legacy>) => void)[]
  isAsked: boolean
  /** Leases of this name that this process has. */
  held: number
  /** Who stood in the way when the database was last asked. */
  contender: Contender | undefined
  /** Since when the database owes an answer to whoever has the turn. */
  silentSinceMs: number | undefined
}

/**
 * Callers of one process queue here, first come first served, and the first of them stands in the database's line for the
 * process: so the database sees one of them per name and process. Once that one has been granted the lease, it is the next one's turn.
 */
export class Line<Legacy = never> {
  readonly #places = new Map<string, Place<Legacy>>()
  readonly #abandon: (turn: Turn<Legacy>) => void

  /** `abandon` gets the turn of a caller that gave up in the very moment it came. */
  constructor(abandon: (turn: Turn<Legacy>) => void = (turn) => turn.leave()) {
    this.#abandon = abandon
  }

  /** The turn, if nobody in this process has it, waits for it, or holds the lease. Who barges only minds the last. */
  tryEnter(name: string, barges = false): Turn<Legacy> | undefined {
    const place = this.#places.get(name)
    if (place === undefined) return this.#turn(name, this.#place(name))
    return barges && place.held === 0 ? aside : undefined
  }

  async enter(name: string, patience: Patience): Promise<Turn<Legacy>> {
    const place = this.#place(name)
    if (!place.isAsked && place.waiting.length === 0) return this.#turn(name, place)
    const { promise, resolve } = Promise.withResolvers<Turn<Legacy>>()
    place.waiting.push(resolve)
    try {
      return await patience.within(promise)
    } catch (error) {
      const index = place.waiting.indexOf(resolve)
      if (index >= 0) place.waiting.splice(index, 1)
      else void promise.then(this.#abandon)
      throw error
    }
  }

  /** This process has the lease, until the returned function is called. */
  hold(name: string): () => void {
    const place = this.#place(name)
    place.held += 1
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      place.held -= 1
      this.#tidy(name, place)
    }
  }

  /** Who stands in the way, as far as is known; undefined also when this process has the lease. */
  contender(name: string): Contender | undefined {
    const place = this.#places.get(name)
    return place?.held === 0 ? place.contender : undefined
  }

  /** Milliseconds for which the database has been silent to whoever has the turn. */
  silentForMs(name: string, nowMs: number): number {
    return nowMs - (this.#places.get(name)?.silentSinceMs ?? nowMs)
  }

  #place(name: string): Place<Legacy> {
    const place = this.#places.get(name) ?? {
      waiting: [],
      isAsked: false,
      held: 0,
      contender: undefined,
      silentSinceMs: undefined,
    }
    this.#places.set(name, place)
    return place
  }

  #tidy(name: string, place: Place<Legacy>): void {
    if (!place.isAsked && place.held === 0 && place.waiting.length === 0) this.#places.delete(name)
  }

  #turn(name: string, place: Place<Legacy>, legacy?: Legacy): Turn<Legacy> {
    place.isAsked = true
    let isMine = true
    const pass = (left: Legacy | undefined): void => {
      isMine = false
      place.silentSinceMs = undefined
      const next = place.waiting.shift()
      if (next !== undefined) return next(this.#turn(name, place, left))
      place.isAsked = false
      this.#tidy(name, place)
    }
    return {
      legacy,
      asks: (nowMs) => {
        if (isMine) place.silentSinceMs ??= nowMs
      },
      isAnswered: (contender) => {
        if (!isMine) return
        place.silentSinceMs = undefined
        place.contender = contender
      },
      leave: () => {
        if (isMine) pass(undefined)
      },
      leaveTo: (left) => {
        if (!isMine || place.waiting.length === 0) return false
        pass(left)
        return true
      },
    }
  }
}

/** A turn that keeps nobody from theirs. */
const aside: Turn<never> = {
  legacy: undefined,
  asks: () => {},
  isAnswered: () => {},
  leave: () => {},
  leaveTo: () => false,
}
