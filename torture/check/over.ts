import type { HistoryIndex, Logged, Request, Term } from './history-index.ts'
import type { LeaseChange } from '../history.ts'
import type { Settings } from './settings.ts'

/** From when on the database could have granted the lease to another. Infinity: not within this history. */
export function overAtUs(term: Term): number {
  const { holder } = term
  return Math.min(
    term.freed?.by.atUs ?? Number.POSITIVE_INFINITY,
    term.next?.grantedAtUs ?? Number.POSITIVE_INFINITY,
    term.deadlineUs ?? Number.POSITIVE_INFINITY,
    holder?.ended?.change.endedAtUs ?? Number.POSITIVE_INFINITY,
    holder?.steps.at(-1)?.change.expiresAtUs ?? Number.POSITIVE_INFINITY,
  )
}

/**
 * Whether its own client has let the term go by this time: it had asked for that, and was not told that there was nothing to let go. One
 * that was never told of a term gives it back without being asked: its caller had given up, or its attempt was taken for lost.
 */
export function isLetGo(term: Term, byUs: number, { slackUs }: Settings): boolean {
  return (
    term.holder === undefined ||
    term.told.length === 0 ||
    term.givenBack.some(({ asked, answered }) => asked.atUs <= byUs + slackUs && answered?.outcome !== 'lost')
  )
}

/** Requests to release this lease that were told that they had, about when it was freed. */
export function suspects(history: HistoryIndex, { change, by }: Logged<LeaseChange>): Request[] {
  return history
    .releases(change.name)
    .filter(
      ({ asked, answered }) =>
        answered?.outcome === 'won' && asked.atUs <= by.atUs && answered.atUs >= by.atUs,
    )
}
