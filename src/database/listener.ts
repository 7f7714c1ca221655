import { randomUUID } from 'node:crypto'
import type { Clock } from '../clock.ts'
import type { Logger } from '../logger.ts'
import type { Connection, Ear } from './connection.ts'

/** The one channel of all wake-ups. */
const channel = 'fencepost'

export interface ListenerOptions {
  /** A connection of the listener's own, which tells `ear` what it hears. */
  connect(ear: Ear): Connection
  /** Sends a notification on the channel over another connection. */
  notify(payloads: readonly string[]): Promise<void>
  /** Called for each notification. */
  heard(payload: string): void
  /** Notifications may have been missed until now, or may be missed from now on. */
  changed(): void
  readonly clock: Clock
  readonly logger: Logger
  /** For everything about one request. */
  readonly timeoutMs: number
}

/** A session that says nothing is asked so often whether it is there: a cut connection looks like silence. */
const probeEveryMs = 10_000
/** How long the notification that the listener sends to itself may take, and the answer to a probe. */
const patienceMs = 3000
/** Nobody has listened for so long: the connection is given back to the server. */
const idleMs = 30_000
const shortestRetryMs = 100
const longestRetryMs = 30_000

/**
 * Listens for wake-ups while somebody waits for one, over one connection. It counts as listening only after it has heard a notification
 * that it sent to itself over another connection: behind a transaction pooler LISTEN is accepted and stays without effect.
 * A session that is lost is replaced, and everybody is told that something may have been missed.
 */
export class Listener {
  readonly #options: ListenerOptions
  #listeners = 0
  #connection: Connection | undefined
  #isListening = false
  #isClosed = false
  #hasWarned = false
  #failures = 0
  #isRetryDue = false
  #cancelTimer: () => void = () => {}
  #echo: { readonly payload: string; heard(): void } | undefined

  constructor(options: ListenerOptions) {
    this.#options = options
  }

  get isListening(): boolean {
    return this.#isListening
  }

  /** Listens until the returned function is called, which may be called again. */
  listen(): () => void {
    this.#listeners += 1
    if (this.#listeners === 1) this.#start()
    let isMine = true
    return () => {
      if (!isMine) return
      isMine = false
      this.#listeners -= 1
      if (this.#listeners === 0 && this.#isListening) this.#after(idleMs, () => void this.#stop())
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#stop()
  }

  #start(): void {
    if (this.#isClosed) return
    // It has gone on listening since the last one left.
    if (this.#isListening) this.#after(probeEveryMs, () => void this.#probe())
    else if (this.#connection === undefined && !this.#isRetryDue) void this.#open()
  }

  async #stop(): Promise<void> {
    this.#cancelTimer()
    this.#isListening = false
    const connection = this.#connection
    this.#connection = undefined
    await connection?.close()
  }

  async #open(): Promise<void> {
    this.#cancelTimer()
    const { timeoutMs, logger } = this.#options
    const connection: Connection = this.#options.connect({
      notified: (name, payload) => this.#notified(name, payload),
      ended: () => this.#lost(connection, 'the connection was lost'),
    })
    this.#connection = connection
    try {
      await connection.query({ text: `listen ${channel}`, timeoutMs })
      await this.#hearItself()
    } catch (error) {
      this.#lost(connection, error instanceof Error ? error.message : String(error))
      return
    }
    if (this.#connection !== connection) return
    this.#isListening = true
    this.#failures = 0
    this.#hasWarned = false
    logger.debug('fencepost: listening for wake-ups')
    this.#options.changed()
    if (this.#listeners === 0) this.#after(idleMs, () => void this.#stop())
    else this.#after(probeEveryMs, () => void this.#probe())
  }

  /** Also tells a session that is deaf from one that is just slow to answer: the notification goes over another connection. */
  async #hearItself(): Promise<void> {
    const payload = `echo ${randomUUID()}`
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const cancel = this.#options.clock.after(patienceMs, () => {
      reject(new Error('it is deaf to notifications, as behind a transaction-mode pooler'))
    })
    const echo = { payload, heard: resolve }
    this.#echo = echo
    try {
      await Promise.all([promise, this.#options.notify([payload])])
    } finally {
      cancel()
      if (this.#echo === echo) this.#echo = undefined
    }
  }

  async #probe(): Promise<void> {
    const connection = this.#connection
    if (connection === undefined || !this.#isListening) return
    try {
      await connection.query({ text: 'select 1', timeoutMs: patienceMs })
      if (this.#connection === connection) this.#after(probeEveryMs, () => void this.#probe())
    } catch (error) {
      this.#lost(connection, error instanceof Error ? error.message : String(error))
    }
  }

  #notified(name: string, payload: string): void {
    if (name !== channel) return
    if (payload === this.#echo?.payload) this.#echo.heard()
    else this.#options.heard(payload)
  }

  #lost(connection: Connection, why: string): void {
    if (this.#connection !== connection) return
    this.#connection = undefined
    const wasListening = this.#isListening
    this.#isListening = false
    this.#failures += 1
    void connection.close()
    if (!this.#hasWarned) {
      this.#hasWarned = true
      this.#options.logger.warn(
        `fencepost: wake-ups do not come: ${why}. Waiting goes on with a question about once a second.`,
      )
    }
    if (wasListening) this.#options.changed()
    const retryMs = Math.min(longestRetryMs, shortestRetryMs * 2 ** Math.min(this.#failures - 1, 20))
    this.#isRetryDue = true
    this.#after(retryMs * (0.5 + Math.random() / 2), () => {
      this.#isRetryDue = false
      if (this.#listeners > 0 && !this.#isClosed) void this.#open()
    })
  }

  #after(delayMs: number, action: () => void): void {
    this.#cancelTimer()
    this.#cancelTimer = this.#options.clock.after(delayMs, action)
  }
}
