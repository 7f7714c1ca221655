import type { Operation } from '../history.ts'
import { askingSpans, gaps, lastHeard } from './asking.ts'
import { type HistoryIndex, type HolderLife, type Request, type Term, listIn } from './history-index.ts'
import type { Resolved, Summary } from './verdict.ts'

/** What a history comes to, in numbers. */
export function summarize(history: HistoryIndex): Summary {
  const { requests, terms } = history
  const count = (what: Operation): number => requests.filter(({ asked }) => asked.what === what).length
  const faults: Record<string, number> = {}
  for (const { fault, phase } of history.faults) {
    if (phase === 'begins') faults[fault] = (faults[fault] ?? 0) + 1
  }
  return {
    events: history.events.length,
    durationUs: Math.max(0, history.endUs - history.startUs),
    clients: new Set(requests.map(({ asked }) => asked.client)).size,
    leases: new Set(terms.map(({ lease }) => lease)).size,
    transactions: history.transactions.length,
    asked: byOperation(count),
    grants: terms.length,
    releases: terms.filter(({ freed, givenBack }) => freed !== undefined || givenBack.length > 0).length,
    writes: history.writes.length,
    refusedWrites: requests.filter(
      ({ asked, answered }) => asked.what === 'write' && answered?.outcome === 'lost',
    ).length,
    unknown: resolve(history),
    samples: history.samples.length,
    faults,
    ...waits(history),
  }
}

/** How long leases that somebody asked for were without a holder. */
function waits(history: HistoryIndex): Pick<Summary, 'takeOvers' | 'worstTakeOverUs' | 'longestGapUs'> {
  const heard = lastHeard(history)
  const spans = askingSpans(history, 0, (client) => heard.get(client) ?? history.endUs)
  let longestGapUs = 0
  let worstTakeOverUs: number | null = null
  const takeOvers = new Set(history.terms.filter(isTakeOver))
  for (const gap of gaps(history, spans)) {
    const lastsUs = gap.toUs - gap.fromUs
    longestGapUs = Math.max(longestGapUs, lastsUs)
    // Somebody has waited until it was granted.
    if (gap.next !== undefined && takeOvers.has(gap.next) && gap.toUs === gap.next.grantedAtUs) {
      worstTakeOverUs = Math.max(worstTakeOverUs ?? 0, lastsUs)
    }
  }
  return { takeOvers: takeOvers.size, worstTakeOverUs, longestGapUs }
}

function isTakeOver({ rowBefore, formerHolderThen, grantedAtUs }: Term): boolean {
  if (rowBefore === undefined || rowBefore.change.holderId === null || formerHolderThen === undefined)
    return false
  const { endedAtUs, expiresAtUs } = formerHolderThen.change
  return expiresAtUs <= Math.min(grantedAtUs, endedAtUs ?? grantedAtUs)
}

/** What the log says about requests whose outcome nobody was told. */
function resolve(history: HistoryIndex): Readonly<Record<Operation, Resolved>> {
  const written = new Set(history.writes.map(({ change }) => history.request(change.client, change.op)))
  const untold = new Map<string, Term[]>()
  for (const term of history.terms) {
    if (term.told.length === 0 && term.holder !== undefined) {
      listIn(untold, `${term.holder.client}\n${term.lease}`).push(term)
    }
  }
  const lives = new Map<string, HolderLife[]>()
  for (const life of history.holders) listIn(lives, life.client).push(life)
  const hasHappened = (request: Request): boolean => {
    const { asked, answered } = request
    switch (asked.what) {
      case 'write':
        return written.has(request)
      case 'acquire': {
        const untilUs = answered?.atUs ?? Number.POSITIVE_INFINITY
        const terms = untold.get(`${asked.client}\n${asked.lease}`) ?? []
        return terms.some(({ grantedAtUs }) => grantedAtUs >= asked.atUs && grantedAtUs <= untilUs)
      }
      case 'release': {
        const term = history.term(asked.lease, asked.token ?? '')
        return (
          term?.freed !== undefined ||
          (term?.next !== undefined && term.next.rowBefore?.change === term.grant.change)
        )
      }
      case 'close':
        return (lives.get(asked.client) ?? []).every(
          ({ steps, ended }) => steps[0]!.by.atUs > asked.atUs || ended !== undefined,
        )
    }
  }
  return byOperation((what) => {
    const open = history.requests.filter(
      ({ asked, answered }) =>
        asked.what === what && (answered === undefined || answered.outcome === 'unknown'),
    )
    const happened = open.filter(hasHappened).length
    return { happened, hadNot: open.length - happened }
  })
}

function byOperation<Value>(of: (what: Operation) => Value): Readonly<Record<Operation, Value>> {
  return { acquire: of('acquire'), release: of('release'), write: of('write'), close: of('close') }
}
