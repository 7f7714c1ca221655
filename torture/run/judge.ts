import { check, type Verdict } from '../check/check.ts'
import { LogReader } from '../decode/log-reader.ts'
import type { TortureServer } from '../faults/fault.ts'
import { insist } from '../faults/nemesis-session.ts'
import type { HistoryEvent } from '../history.ts'
import { Counting, type Figures } from './figures.ts'
import type { HistoryFolder } from './history-folder.ts'

/** The history as far as it is known, and what is to be said of it. */
export class Judge {
  readonly #server: TortureServer
  readonly #folder: HistoryFolder
  readonly #log: LogReader
  readonly #events: HistoryEvent[] = []
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

  /** What has happened since it was asked last. Throws where the server does not answer: ask again later. */
  async readOn(): Promise<void> {
    // What a client was told has been committed before, so its story comes first: the log is then at least as far.
    for (const event of await this.#folder.readOn()) this.#add(event)
    await insist(this.#server, async (client) => {
      for (;;) {
        // oxlint-disable-next-line no-await-in-loop -- Portion after portion.
        const transactions = await this.#log.read(client)
        if (transactions.length === 0) return
        for (const transaction of transactions) this.#add(transaction)
      }
    })
  }

  verdict(): Verdict {
    return check(this.#events)
  }

  #add(event: HistoryEvent): void {
    this.#events.push(event)
    this.#counting.add(event)
  }
}
