import type { Client } from 'pg'
import { LogReader } from '../decode/log-reader.ts'
import type { TortureServer } from '../faults/fault.ts'
import { inSession, insist } from '../faults/nemesis-session.ts'
import { check, checkLiveness, type LivenessBounds, type Verdict } from '../check/check.ts'
import type { HistoryEvent } from '../history.ts'
import { Counting, type Figures } from './figures.ts'
import type { HistoryFolder } from './history-folder.ts'

const patienceMs = 4000
/** How long before the record of a fault, or after it, the fault may have been at work. */
const aroundUs = 2_000_000

/**
 * When the server was told not to wait for the disk. What an application has committed then may be gone after a crash: that is between the
 * application and PostgreSQL. What fencepost grants then may not.
 */
function carelessSpans(events: readonly HistoryEvent[]): { fromUs: number; toUs: number }[] {
  const faults = events
    .filter((event) => event.kind === 'fault')
    .filter(({ fault }) => fault === 'async-commit')
  return faults
    .filter(({ phase }) => phase === 'begins')
    .map(({ atUs }) => {
      const end = faults.find((each) => each.phase === 'ends' && each.atUs >= atUs)
      return {
        fromUs: atUs - aroundUs,
        toUs: end === undefined ? Number.POSITIVE_INFINITY : end.atUs + aroundUs,
      }
    })
}

/** The history as far as it is known, and what is to be said of it. */
export class Judge {
  readonly #server: TortureServer
  readonly #isNeverDurable: boolean
  readonly #folder: HistoryFolder
  readonly #log: LogReader
  readonly #events: HistoryEvent[] = []
  /** Told of what may not have been read in the log yet. */
  readonly #early: HistoryEvent[] = []
  readonly #counting = new Counting()

  constructor(server: TortureServer, folder: HistoryFolder, log: LogReader, isNeverDurable: boolean) {
    this.#isNeverDurable = isNeverDurable
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

  /** With bounds: also whether everything goes on. */
  verdict(bounds?: LivenessBounds): Verdict {
    const verdict = check(this.#events)
    const spans = this.#isNeverDurable
      ? [{ fromUs: 0, toUs: Number.POSITIVE_INFINITY }]
      : carelessSpans(this.#events)
    const violations = verdict.violations.filter(({ kind, piece }) => {
      if (kind !== 'won-write-missing') return true
      const { atUs } = piece.find((event) => event.kind === 'answered') ?? { atUs: 0 }
      return spans.every(({ fromUs, toUs }) => atUs < fromUs || atUs > toUs)
    })
    if (bounds !== undefined) violations.push(...checkLiveness(this.#events, bounds))
    return { ...verdict, violations }
  }

  #add(event: HistoryEvent): void {
    this.#events.push(event)
    this.#counting.add(event)
  }
}
