import type { Clock } from '../clock.ts'
import { FencepostError } from '../errors.ts'
import type { Logger } from '../logger.ts'
import { lookEveryMs } from './rest.ts'

/** Who holds the lease of an election, as the database says. What it does not know is undefined. */
export interface Leader {
  /** The holder's label: for people, not an identity. */
  readonly holder: string | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  /** The token of the leader's term. */
  readonly token: bigint
  readonly since: Date | undefined
}

export interface LeaderWatchOptions {
  readonly name: string
  readonly ttlMs: number
  readonly clock: Clock
  readonly logger: Logger
  random(): number
  /** Asks the database. */
  look(): Promise<Leader | undefined>
  onChange(leader: Leader | undefined): void
}

/** Looks who leads, again and again, for as long as somebody wants to know. Two looks never overlap. */
export class LeaderWatch {
  readonly #options: LeaderWatchOptions
  /** The current round of looks. A look that answers into another round is not heard. */
  #round: object | undefined
  #known: { readonly leader: Leader | undefined } | undefined
  #isLooking = false
  #isHurried = false
  #hasFailed = false
  #cancel: () => void = () => {}

  constructor(options: LeaderWatchOptions) {
    this.#options = options
  }

  /** The first look is a change: what was known before is out of date. */
  start(): void {
    if (this.#round !== undefined) return
    this.#round = {}
    this.#known = undefined
    this.hurry()
  }

  stop(): void {
    this.#round = undefined
    this.#cancel()
  }

  /** Something has happened here: looks at once, or once more when a look is under way. */
  hurry(): void {
    if (this.#round === undefined) return
    this.#isHurried = true
    if (!this.#isLooking) void this.#look(this.#round)
  }

  async #look(round: object): Promise<void> {
    const { name, ttlMs, clock, logger } = this.#options
    this.#cancel()
    this.#isLooking = true
    this.#isHurried = false
    try {
      const leader = await this.#options.look()
      this.#hasFailed = false
      if (this.#round === round && (this.#known === undefined || !isSame(this.#known.leader, leader))) {
        this.#known = { leader }
        this.#options.onChange(leader)
      }
    } catch (error) {
      if (error instanceof FencepostError && error.code === 'CLOSED') this.stop()
      else if (!this.#hasFailed) {
        // Once for each time that it stops working: whoever is known to lead is still the best there is to know.
        this.#hasFailed = true
        logger.warn(`fencepost: who leads "${name}" could not be asked, it is asked again: ${String(error)}`)
      }
    } finally {
      this.#isLooking = false
    }
    const current = this.#round
    if (current === undefined) return
    if (this.#isHurried || current !== round) void this.#look(current)
    else
      this.#cancel = clock.after(lookEveryMs(ttlMs, this.#options.random()), () => void this.#look(current))
  }
}

/** A term is its token. */
function isSame(a: Leader | undefined, b: Leader | undefined): boolean {
  return a?.token === b?.token
}
