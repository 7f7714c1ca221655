import type { Client } from 'pg'
import { LogReader } from '../decode/log-reader.ts'
import type { TortureServer } from '../faults/fault.ts'
import { inSession, insist } from '../faults/nemesis-session.ts'
import type { HistoryEvent } from '../history.ts'
import { Counting, type Figures } from './figures.ts'
import type { HistoryFolder } from './history-folder.ts'

const patienceMs = 4000

/** The history as far as it is known, and what is to be said of it. */
export class Judge {
  readonly #server: TortureServer
  readonly #folder: HistoryFolder
  readonly #log: LogReader
  readonly #events: HistoryEvent[] = []
  /** Told of what may not have been read in the log yet. */
  readonly #early: HistoryEvent[] = []
  readonly #counting = new Counting()

  constructor(server: TortureServer, folder: HistoryFolder, log: LogReader) {
    this.#server = server
    this.#folder = folder
    this.#log = log
  }

  get events(): readonly HistoryEvent[] {
    return this.#events
  }

  get figures(): Figures {
    return this.#counting.figures
  }

  /** What has happened since it was asked last. Where the server does not answer soon, it is read the next time: false. */
  async tryToReadOn(): Promise<boolean> {
    try {
      await this.#readOn((work) => inSession(this.#server, work, patienceMs))
      return true
    } catch {
      return false
    }
  }

  /** The same, for the end: when nothing is wrong with the server any more. */
  async readOn(): Promise<void> {
    await this.#readOn((work) => insist(this.#server, work))
    for (const event of this.#early.splice(0)) this.#add(event)
  }

  async #readOn(onServer: (work: (client: Client) => Promise<void>) => Promise<void>): Promise<void> {
    // What a client was told has been committed before, so its story comes first: the log is then at least as far.
    for (const event of [...this.#early.splice(0), ...(await this.#folder.readOn())]) this.#add(event)
    await onServer(async (client) => {
      for (;;) {
        // oxlint-disable-next-line no-await-in-loop -- Portion after portion.
        const transactions = await this.#log.read(client)
        if (transactions.length === 0) return
        for (const transaction of transactions) this.#add(transaction)
      }
    })
    // And what has been committed was asked before. What clients have heard since then is for the next time.
    for (const event of await this.#folder.readOn()) {
      if (event.kind === 'asked') this.#add(event)
      else this.#early.push(event)
    }
  }

  #add(event: HistoryEvent): void {
    this.#events.push(event)
    this.#counting.add(event)
  }
}
