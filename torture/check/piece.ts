import type { Change, HistoryEvent } from '../history.ts'
import type { Logged, Request, Term } from './history-index.ts'

type Part = HistoryEvent | Logged<Change> | Request | Term | undefined

/** The events that these parts are made of, in the order in which they happened; of transactions, only the changes that are named. */
export function piece(...parts: readonly Part[]): HistoryEvent[] {
  const events = new Set<HistoryEvent>()
  const changes = new Map<HistoryEvent, Set<Change>>()
  for (const part of parts) {
    if (part === undefined) continue
    if ('kind' in part) events.add(part)
    else if ('asked' in part) {
      events.add(part.asked)
      if (part.answered !== undefined) events.add(part.answered)
    } else {
      const { by, change } = 'grant' in part ? part.grant : part
      events.add(by)
      changes.set(by, (changes.get(by) ?? new Set<Change>()).add(change))
    }
  }
  return [...events]
    .map((event) => {
      const named = changes.get(event)
      return event.kind === 'committed' && named !== undefined
        ? { ...event, changes: event.changes.filter((change) => named.has(change)) }
        : event
    })
    .toSorted((a, b) => a.atUs - b.atUs)
}
