import type { Clock } from '../clock.ts'
import type { HolderListener } from './holder.ts'
import type { Patience } from './patience.ts'
import type { Place, Seat } from './seat.ts'
import type { Token } from './term.ts'
import type { Wakes } from './wakes.ts'

/** A place in the database's line for a lease, for as long as somebody in this process wants it. */
export class Standing implements HolderListener {
  readonly seat: Seat
  readonly place: Place
  /** What was asked for: who wants something else cannot take the place over. */
  readonly key: string
  readonly #clock: Clock
  readonly #forget: () => void
  #news: { readonly token: Token | undefined } | undefined
  #tell: () => void = () => {}

  constructor(seat: Seat, place: Place, key: string, wakes: Wakes, clock: Clock) {
    this.seat = seat
    this.place = place
    this.key = key
    this.#clock = clock
    this.#forget = wakes.add(place.name, place.ticket, seat.holder.id, (token, isAnew = false) => {
      // A grant stays news, whatever else is heard.
      if (isAnew || this.#news?.token === undefined) this.#hear(token)
    })
    seat.holder.addListener(this)
  }

  /** The holder is lost, and its place in line with it. */
  get isGone(): boolean {
    return this.seat.holder.isLost
  }

  /** Sleeps until there is something to hear, or for so long. */
  async sleep(ms: number, patience: Patience): Promise<void> {
    if (this.#news !== undefined || this.isGone) return
    const { promise, resolve } = Promise.withResolvers<void>()
    const cancel = this.#clock.after(ms, resolve)
    this.#tell = resolve
    try {
      await patience.within(promise)
    } finally {
      cancel()
      this.#tell = () => {}
    }
  }

  /** The token, when the lease has been granted by a wake-up. What was heard is forgotten. */
  takeNews(): Token | undefined {
    const token = this.#news?.token
    this.#news = undefined
    return token
  }

  /** It has led to a grant, or is not valid any more. */
  end(): void {
    this.#forget()
    this.seat.holder.removeListener(this)
  }

  /** Leaves the line. What has been granted goes on to the next. */
  async leave(): Promise<void> {
    this.end()
    if (!this.isGone) await this.seat.leave(this.place)
  }

  /** Called by the holder. */
  atRisk(): void {}

  /** Called by the holder. */
  lost(): void {
    this.#hear(undefined)
  }

  #hear(token: Token | undefined): void {
    this.#news = { token }
    this.#tell()
  }
}
