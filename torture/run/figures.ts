import type { Answered, Asked, HistoryEvent } from '../history.ts'

/** What has happened so far, in numbers that can be told while it goes on. */
export interface Figures {
  readonly operations: number
  /** Terms that began, by the server's log. */
  readonly grants: number
  readonly outcomes: Readonly<Record<Answered['outcome'], number>>
  /** Asked, and nothing is known: their client was killed, or waits still. */
  readonly unanswered: number
  readonly refusedWrites: number
  /** Nothing was written, although the term was good: rolled back, cut off, no server. */
  readonly failedWrites: number
  /** How often each began. */
  readonly faults: Readonly<Record<string, number>>
}

/** Counts the events as they come: what is committed in its order, and answers after what they are answers to. */
export class Counting {
  readonly #open = new Map<string, Asked>()
  readonly #tokens = new Map<string, string>()
  readonly #outcomes = { won: 0, busy: 0, lost: 0, unknown: 0 }
  readonly #faults: Record<string, number> = {}
  #operations = 0
  #grants = 0
  #refusedWrites = 0
  #failedWrites = 0

  get figures(): Figures {
    return {
      operations: this.#operations,
      grants: this.#grants,
      outcomes: { ...this.#outcomes },
      unanswered: this.#open.size,
      refusedWrites: this.#refusedWrites,
      failedWrites: this.#failedWrites,
      faults: { ...this.#faults },
    }
  }

  add(event: HistoryEvent): void {
    switch (event.kind) {
      case 'asked':
        this.#operations += 1
        this.#open.set(`${event.client} ${event.op}`, event)
        break
      case 'answered':
        this.#answered(event)
        break
      case 'fault':
        if (event.phase === 'begins') this.#faults[event.fault] = (this.#faults[event.fault] ?? 0) + 1
        break
      case 'committed':
        for (const change of event.changes) {
          if (change.table !== 'lease' || change.holderId === null) continue
          if (this.#tokens.get(change.name) !== change.token) this.#grants += 1
          this.#tokens.set(change.name, change.token)
        }
        break
      case 'trusted':
        break
    }
  }

  #answered({ client, op, outcome }: Answered): void {
    const key = `${client} ${op}`
    const asked = this.#open.get(key)
    this.#open.delete(key)
    this.#outcomes[outcome] += 1
    if (asked?.what !== 'write') return
    if (outcome === 'lost') this.#refusedWrites += 1
    if (outcome === 'busy') this.#failedWrites += 1
  }
}
