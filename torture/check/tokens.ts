import { type HistoryIndex, type Request, type Term, listIn } from './history-index.ts'
import { piece } from './piece.ts'
import type { Settings } from './settings.ts'
import type { Violation } from './verdict.ts'

/** The tokens of a sequence are distinct and rise in the order of the commits, and with it those of each lease. */
export function* checkTokens(history: HistoryIndex, settings: Settings): Generator<Violation> {
  const given = new Map<string, Term>()
  /** By sequence: the latest transaction that drew from it, its highest token, and the highest of those before. */
  const drawn = new Map<string, { highest: Term; before: Term | undefined }>()
  for (const term of history.terms) {
    const sequence = settings.sequenceOf(term.lease)
    const twin = given.get(`${sequence}\n${term.token}`)
    const known = drawn.get(sequence)
    const before = known?.highest.grant.by === term.grant.by ? known.before : known?.highest
    if (twin !== undefined) {
      yield {
        kind: 'token-given-twice',
        sentence: `Token ${term.token} was given to ${twin.lease} and to ${term.lease}.`,
        piece: piece(twin, term),
      }
    } else if (before !== undefined && term.token < before.token) {
      yield {
        kind: 'token-fell',
        sentence: `${term.lease} got token ${term.token} after ${before.lease} had got ${before.token}.`,
        piece: piece(before, term),
      }
    }
    given.set(`${sequence}\n${term.token}`, twin ?? term)
    if (known === undefined) drawn.set(sequence, { highest: term, before: undefined })
    else if (known.highest.grant.by !== term.grant.by) {
      drawn.set(sequence, {
        highest: term.token > known.highest.token ? term : known.highest,
        before: known.highest,
      })
    } else if (term.token > known.highest.token) known.highest = term
  }
}

/** The same, as the clients were told: who asks after a token was told gets a greater one. */
export function* checkToldTokens(history: HistoryIndex, settings: Settings): Generator<Violation> {
  const told = new Map<string, Request>()
  const byLease = new Map<string, Request[]>()
  for (const request of history.requests) {
    const { asked, answered } = request
    if (asked.what !== 'acquire' || answered?.outcome !== 'won' || answered.token === undefined) continue
    listIn(byLease, asked.lease).push(request)
    const key = `${settings.sequenceOf(asked.lease)}\n${answered.token}`
    const twin = told.get(key)
    if (twin === undefined) told.set(key, request)
    else {
      yield {
        kind: 'token-told-twice',
        sentence: `${twin.asked.client} and ${asked.client} were both told of token ${answered.token}.`,
        piece: piece(twin, request),
      }
    }
  }
  for (const requests of byLease.values()) yield* checkToldOfLease(requests, settings)
}

function* checkToldOfLease(requests: readonly Request[], { slackUs }: Settings): Generator<Violation> {
  const byAnswer = requests.toSorted((a, b) => a.answered!.atUs - b.answered!.atUs)
  let next = 0
  let highest: Request | undefined
  for (const request of requests.toSorted((a, b) => a.asked.atUs - b.asked.atUs)) {
    for (; next < byAnswer.length; next += 1) {
      const earlier = byAnswer[next]!
      if (earlier.answered!.atUs + slackUs >= request.asked.atUs) break
      if (highest === undefined || tokenOf(earlier) > tokenOf(highest)) highest = earlier
    }
    if (highest === undefined || tokenOf(request) >= tokenOf(highest)) continue
    yield {
      kind: 'told-token-fell',
      sentence: `${request.asked.client} was told of ${request.asked.lease} #${tokenOf(request)}, and had asked after ${highest.asked.client} was told of #${tokenOf(highest)}.`,
      piece: piece(highest, request),
    }
  }
}

function tokenOf({ answered }: Request): bigint {
  return BigInt(answered!.token!)
}
