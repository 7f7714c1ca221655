import type { HistoryIndex, Term } from './history-index.ts'
import { isLetGo, suspects } from './over.ts'
import { piece } from './piece.ts'
import type { Settings } from './settings.ts'
import type { Violation } from './verdict.ts'

/**
 * Grants of a lease do not overlap, by the server's clock: when one is made, the term before has been given back, has passed its end, or its
 * holder has ended. One that has only run out of time has to be ended by the taker first, or its heartbeat could still come through.
 */
export function* checkOverlap(history: HistoryIndex, settings: Settings): Generator<Violation> {
  for (const term of history.terms) {
    const { grantedAtUs, rowBefore, former } = term
    const who = `${term.lease} #${term.token} was granted to ${nameOf(term)}`
    const availableAtUs = rowBefore?.change.availableAtUs ?? null
    if (availableAtUs !== null && availableAtUs > grantedAtUs) {
      yield {
        kind: 'granted-too-early',
        sentence: `${who} ${ms(availableAtUs - grantedAtUs)} before it was to be available.`,
        piece: piece(former, rowBefore, term),
      }
    }
    const why = stillCurrent(term, settings)
    if (why !== undefined) {
      const asked = suspects(history, term.grant)
      yield {
        kind: 'terms-overlap',
        sentence: `${who} while #${former?.token ?? rowBefore?.change.token} of ${former === undefined ? 'another' : nameOf(former)} ${why}.`,
        piece: piece(former, ...(former?.told ?? []), term.formerHolderThen, ...asked, term),
      }
    }
  }
}

/** Why the term before was not over. Undefined: it was, or nothing is known of it. */
function stillCurrent(term: Term, settings: Settings): string | undefined {
  const { grantedAtUs, rowBefore, former, formerHolderThen } = term
  if (rowBefore === undefined) return undefined
  const { deadlineUs } = rowBefore.change
  if (deadlineUs !== null && deadlineUs <= grantedAtUs) return undefined
  // Nobody held it. Or its holder is forgotten, and its leases count as given back.
  if (formerHolderThen === undefined || formerHolderThen.change.how === 'delete') return undefined
  const { endedAtUs, expiresAtUs } = formerHolderThen.change
  if (endedAtUs !== null) {
    return endedAtUs <= grantedAtUs ? undefined : `ended only ${ms(endedAtUs - grantedAtUs)} later`
  }
  // From hand to hand, in one step.
  if (former !== undefined && isLetGo(former, term.grant.by.atUs, settings)) return undefined
  return expiresAtUs > grantedAtUs
    ? `had ${ms(expiresAtUs - grantedAtUs)} left`
    : 'had run out of time, and nobody had ended its holder'
}

/** A taker ends a holder only when its time is up, and nobody grants anything to a holder that has ended. */
export function* checkEnds(history: HistoryIndex): Generator<Violation> {
  for (const term of history.terms) {
    if (term.holderThen !== undefined && term.holderThen.endedAtUs !== null) {
      yield {
        kind: 'granted-to-ended',
        sentence: `${term.lease} #${term.token} was granted to ${nameOf(term)}, whose holder had ended.`,
        piece: piece(term.holder?.ended, term),
      }
    }
    const { formerHolderThen, former, grant } = term
    if (formerHolderThen === undefined || formerHolderThen.by !== grant.by) continue
    const { change } = formerHolderThen
    if (change.id === term.holderId || change.endedAtUs === null || change.expiresAtUs <= change.endedAtUs)
      continue
    yield {
      kind: 'ended-alive',
      sentence: `${nameOf(term)} took ${term.lease} and ended the holder of ${change.label}, which had ${ms(change.expiresAtUs - change.endedAtUs)} left.`,
      piece: piece(former, term.formerHolderThen, term),
    }
  }
}

export function nameOf(term: Term): string {
  return term.holder?.client ?? 'somebody'
}

export function ms(us: number): string {
  return `${(us / 1000).toFixed(us < 100_000 ? 1 : 0)} ms`
}
