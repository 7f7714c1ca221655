import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { systemClock } from '../clock.ts'
import type { Connection } from '../database/connection.ts'
import { NotAcquiredError, SequenceMismatchError } from '../errors.ts'
import { Protocol } from '../lease/protocol.ts'
import { type Token, beatEveryMs } from '../lease/term.ts'
import { silent } from '../logger.ts'
import type { Backstage } from './backstage.ts'

/** A lease in somebody else's hands. */
export interface RivalLease extends AsyncDisposable {
  readonly name: string
  /** The token of the rival's term. */
  readonly token: bigint
  /**
   * The rival gives the lease back: to the first in line, or it is free. Of no effect when it was given back before.
   *
   * @throws DatabaseError
   */
  release(): Promise<void>
}

const ttlMs = 30_000
const label = 'a rival (fencepost/testing)'

/** Somebody else who takes leases: a holder of its own, as another process would be, which no fault of the kit meets. */
export class Rival {
  readonly #backstage: Backstage
  readonly #protocol: Protocol
  readonly #beats: Connection
  readonly #timeoutMs: number
  #holderId: string | undefined
  #timer: NodeJS.Timeout | undefined
  #attempt = 0

  constructor(backstage: Backstage, timeoutMs: number) {
    this.#backstage = backstage
    this.#timeoutMs = timeoutMs
    this.#beats = backstage.connect()
    this.#protocol = new Protocol({
      grants: backstage.connection,
      clock: systemClock,
      logger: silent,
      timeoutMs,
      // Nobody waits here.
      wakes: { deliver: () => false, ticketsOf: () => [] },
    })
  }

  isHolder(id: string): boolean {
    return id === this.#holderId
  }

  /** Takes part from now on. */
  async join(): Promise<void> {
    if (this.#holderId !== undefined) return
    const id = randomUUID()
    await this.#protocol.join({ id, label, host: hostname(), pid: process.pid, meta: {} }, ttlMs)
    this.#holderId = id
    this.#timer = setInterval(() => void this.#beat(id), beatEveryMs(ttlMs)).unref()
  }

  /**
   * Takes the lease when nobody holds it, whoever stands in line. Also in a transaction of the caller's; call `join` before.
   *
   * @throws NotAcquiredError, SequenceMismatchError, RequestFailure
   */
  async take(name: string, sequence: string): Promise<RivalLease> {
    const holderId = this.#holderId!
    this.#attempt += 1
    const bounds = { minHoldMs: 0, maxHoldMs: Number.POSITIVE_INFINITY, graceMs: 0 }
    const asking = { sequence, stands: false, barges: true, bounds }
    const [answer] = await this.#protocol.acquire([name], holderId, this.#attempt, asking)
    if (answer!.isGranted) return this.#lease(name, answer!.token, holderId)
    const { reason, contender } = answer!.refusal
    if (reason === 'sequence') throw new SequenceMismatchError(name, sequence, contender.label ?? '')
    throw new NotAcquiredError(name, 0, contender)
  }

  /** Ends another holder, unless it has ended, and lets its leases go on to whoever waits for them. */
  end(holderId: string): Promise<void> {
    return this.#protocol.end(holderId)
  }

  async close(): Promise<void> {
    clearInterval(this.#timer)
    const holderId = this.#holderId
    this.#holderId = undefined
    try {
      if (holderId !== undefined) await this.end(holderId)
    } finally {
      await this.#beats.close()
    }
  }

  #lease(name: string, token: Token, holderId: string): RivalLease {
    let released: Promise<void> | undefined
    const giveBack = (): Promise<void> =>
      this.#backstage.alone(`give lease "${name}" back`, async () => {
        // Whoever was ended holds nothing any more.
        if (this.#holderId === holderId) await this.#protocol.release([name], [token], holderId)
      })
    const release = (): Promise<void> => (released ??= giveBack())
    return { name, token, release, [Symbol.asyncDispose]: release }
  }

  async #beat(holderId: string): Promise<void> {
    // A process that was stopped for longer than a TTL has lost what it held. Next time it joins anew.
    const isAlive = await this.#protocol.beat(this.#beats, holderId, this.#timeoutMs).catch(() => true)
    if (isAlive || this.#holderId !== holderId) return
    clearInterval(this.#timer)
    this.#holderId = undefined
  }
}
