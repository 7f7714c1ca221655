import { randomUUID } from 'node:crypto'
import type { Clock } from '../clock.ts'
import type { Logger } from '../logger.ts'
import type { Connection, Ear } from './connection.ts'

/** The channel that all processes hear. */
const commonChannel = 'fencepost'

export interface ListenerOptions {
  /** A name that nobody else listens by; lower-case letters, digits and underscores. */
  readonly channel: string
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
/** So often the server's session behind a pooler is looked at. */
const mostLooks = 10
const closed = 'the listener is closed'
const deaf = 'it is deaf to notifications, as behind a transaction-mode pooler'
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
  #echo: { readonly payload: string; heard(): void; giveUp(): void } | undefined
  #opening: Promise<void> | undefined

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
      if (this.#listeners === 0 && this.#isListening) this.#goOn()
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#stop()
  }

  #start(): void {
    if (this.#isClosed) return
    // It has gone on listening since the last one left.
    if (this.#isListening) this.#goOn()
    else if (this.#connection === undefined && !this.#isRetryDue) this.#open()
  }

  async #stop(): Promise<void> {
    this.#cancelTimer()
    this.#isListening = false
    const connection = this.#connection
    this.#connection = undefined
    this.#echo?.giveUp()
    await this.#opening
    await connection?.close()
  }

  #open(): void {
    this.#cancelTimer()
    const connection: Connection = this.#options.connect({
      notified: (name, payload) => this.#notified(name, payload),
      ended: () => this.#lost(connection, 'the connection was lost'),
    })
    this.#connection = connection
    this.#opening = this.#subscribe(connection).then(
      () => this.#opened(connection),
      (error: unknown) => this.#lost(connection, error instanceof Error ? error.message : String(error)),
    )
  }

  async #subscribe(connection: Connection): Promise<void> {
    if (await this.#isShared(connection)) throw new Error(deaf)
    const session = await this.#inTransaction(connection, 'listen')
    // It says nothing for long, which is no reason to end it. The setting is not there before version 14.
    if (!connection.isPooled) {
      const text = `select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings where name = 'idle_session_timeout'`
      await connection.query({ text, timeoutMs: this.#options.timeoutMs })
    }
    try {
      if (this.#connection !== connection) throw new Error(closed)
      await this.#hearItself()
    } catch (error) {
      if (connection.isPooled) await this.#unsubscribe(connection, session)
      throw error
    }
  }

  /**
   * Whether a pooler is seen to lend the server's session to others between transactions. A subscription would stay with that
   * session, for others to hear. False proves nothing.
   */
  async #isShared(connection: Connection): Promise<boolean> {
    await this.#session(connection)
    if (!connection.isPooled) return false
    const other = this.#options.connect({ notified: () => {}, ended: () => {} })
    try {
      for (let tries = 0; tries < mostLooks; tries += 1) {
        // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
        if ((await this.#session(connection)) === (await this.#session(other))) return true
      }
      return false
    } finally {
      await other.close()
    }
  }

  /** Where nobody was seen to share the session, and yet somebody does: it may take a few tries to meet it again. */
  async #unsubscribe(connection: Connection, session: string | undefined): Promise<void> {
    try {
      for (let tries = 0; tries < mostLooks; tries += 1) {
        // oxlint-disable-next-line no-await-in-loop -- Until it is the right one.
        if ((await this.#inTransaction(connection, 'unlisten')) === session) return
      }
    } catch (error) {
      this.#options.logger.debug(`fencepost: a session may have been left listening: ${String(error)}`)
    }
  }

  /** Returns the server's session that has run it: within a transaction a pooler does not change it. */
  async #inTransaction(connection: Connection, command: 'listen' | 'unlisten'): Promise<string | undefined> {
    const { timeoutMs, channel } = this.#options
    await connection.query({ text: 'begin', timeoutMs })
    await connection.query({ text: `${command} ${commonChannel}`, timeoutMs })
    await connection.query({ text: `${command} ${channel}`, timeoutMs })
    const session = await this.#session(connection)
    await connection.query({ text: 'commit', timeoutMs })
    return session
  }

  async #session(connection: Connection): Promise<string | undefined> {
    const { timeoutMs } = this.#options
    const [row] = await connection.query({ text: 'select pg_catalog.pg_backend_pid() as pid', timeoutMs })
    return row?.['pid'] ?? undefined
  }

  #opened(connection: Connection): void {
    if (this.#connection !== connection) return
    this.#isListening = true
    this.#options.logger.debug('fencepost: listening for wake-ups')
    this.#options.changed()
    this.#goOn()
  }

  #goOn(): void {
    if (this.#listeners === 0) this.#after(idleMs, () => void this.#stop())
    else this.#after(probeEveryMs, () => void this.#probe())
  }

  /** Also tells a session that is deaf from one that is just slow to answer: the notification goes over another connection. */
  async #hearItself(): Promise<void> {
    const payload = `echo ${randomUUID()}`
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const cancel = this.#options.clock.after(patienceMs, () => {
      reject(new Error(deaf))
    })
    const echo = { payload, heard: resolve, giveUp: () => reject(new Error(closed)) }
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
      // Only a session that lasts is one: others come and go at their own pace, and nobody is to be asked or warned at that.
      this.#failures = 0
      this.#hasWarned = false
      // The last one who waited may have left meanwhile.
      if (this.#connection === connection) this.#goOn()
    } catch (error) {
      this.#lost(connection, error instanceof Error ? error.message : String(error))
    }
  }

  #notified(name: string, payload: string): void {
    if (name !== commonChannel && name !== this.#options.channel) return
    if (payload === this.#echo?.payload) this.#echo.heard()
    else this.#options.heard(payload)
  }

  #lost(connection: Connection, why: string): void {
    if (this.#connection !== connection) return
    this.#connection = undefined
    this.#echo?.giveUp()
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
      if (this.#listeners > 0 && !this.#isClosed) this.#open()
    })
  }

  #after(delayMs: number, action: () => void): void {
    this.#cancelTimer()
    this.#cancelTimer = this.#options.clock.after(delayMs, action)
  }
}
