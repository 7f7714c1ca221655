import { type HistoryIndex, type Request, type Term, listIn } from './history-index.ts'
import { overAtUs } from './over.ts'

export interface Span {
  readonly fromUs: number
  toUs: number
  /** The request that it begins with. */
  readonly first: Request
}

/** A time in which nobody had a lease that could have been granted, and somebody asked for it. */
export interface Gap {
  readonly lease: string
  readonly fromUs: number
  readonly toUs: number
  readonly first: Request
  readonly former: Term | undefined
  /** Undefined: it lasts to the end of the history. */
  readonly next: Term | undefined
}

/** The last that was heard of each client. */
export function lastHeard(history: HistoryIndex): Map<string, number> {
  const heard = new Map<string, number>()
  for (const event of history.events) {
    if (!('client' in event)) continue
    heard.set(event.client, Math.max(event.atUs, heard.get(event.client) ?? event.atUs))
  }
  return heard
}

/**
 * By lease, when somebody asked for it. Requests that follow each other within `pauseUs` are one; one that was never answered goes on
 * until `untilUs` of its client. Of a client for which that is undefined, none counts.
 */
export function askingSpans(
  history: HistoryIndex,
  pauseUs: number,
  untilUs: (client: string) => number | undefined,
): Map<string, Span[]> {
  const requests = new Map<string, Request[]>()
  for (const request of history.requests) {
    const { what, client, lease } = request.asked
    if (what === 'acquire' && untilUs(client) !== undefined) listIn(requests, lease).push(request)
  }
  const spans = new Map<string, Span[]>()
  for (const [lease, ofLease] of requests) {
    const list = listIn(spans, lease)
    for (const request of ofLease.toSorted((a, b) => a.asked.atUs - b.asked.atUs)) {
      const { asked, answered } = request
      const toUs = Math.max(asked.atUs, answered?.atUs ?? untilUs(asked.client) ?? asked.atUs)
      const last = list.at(-1)
      if (last !== undefined && asked.atUs <= last.toUs + pauseUs) last.toUs = Math.max(last.toUs, toUs)
      else list.push({ fromUs: asked.atUs, toUs, first: request })
    }
  }
  return spans
}

/** What of the spans falls into times in which nobody had the lease. */
export function* gaps(history: HistoryIndex, spans: ReadonlyMap<string, readonly Span[]>): Generator<Gap> {
  const terms = new Map<string, Term[]>()
  for (const term of history.terms) listIn(terms, term.lease).push(term)
  for (const [lease, ofLease] of spans) {
    const granted = terms.get(lease) ?? []
    let first = 0
    for (let place = 0; place <= granted.length; place += 1) {
      const former = granted[place - 1]
      const next = granted[place]
      const fromUs = former === undefined ? history.startUs : grantableFromUs(former)
      const toUs = next?.grantedAtUs ?? history.endUs
      while (first < ofLease.length && ofLease[first]!.toUs < fromUs) first += 1
      for (let at = first; at < ofLease.length && ofLease[at]!.fromUs < toUs; at += 1) {
        const span = ofLease[at]!
        const from = Math.max(fromUs, span.fromUs)
        const to = Math.min(toUs, span.toUs)
        if (from < to) yield { lease, fromUs: from, toUs: to, first: span.first, former, next }
      }
    }
  }
}

/** From when on the lease could be granted to another, if nobody did. */
function grantableFromUs(term: Term): number {
  const { availableAtUs } = (term.freed ?? term.grant).change
  const overUs = overAtUs({ ...term, next: undefined })
  return Math.max(overUs, term.grantedAtUs, availableAtUs ?? Number.NEGATIVE_INFINITY)
}
