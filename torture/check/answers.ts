import type { HistoryIndex, LoggedWrite, Request, Term } from './history-index.ts'
import type { WriteChange } from '../history.ts'
import { overAtUs } from './over.ts'
import { nameOf } from './overlap.ts'
import { piece } from './piece.ts'
import type { Settings } from './settings.ts'
import type { Violation } from './verdict.ts'

const outcomes: readonly string[] = ['won', 'busy', 'lost', 'unknown']

/** Every answer is one of four, to a question, and the only one to it. */
export function* checkAnswers(history: HistoryIndex): Generator<Violation> {
  for (const answer of history.strayAnswers) {
    const request = history.request(answer.client, answer.op)
    yield {
      kind: 'odd-answer',
      sentence: `${answer.client} was told "${answer.outcome}" for request ${answer.op}, ${request === undefined ? 'which it had not sent' : 'which had been answered'}.`,
      piece: piece(request, answer),
    }
  }
  for (const request of history.requests) {
    const { asked, answered } = request
    if (answered === undefined) continue
    const isOdd = !outcomes.includes(answered.outcome)
    const lacksToken = asked.what === 'acquire' && answered.outcome === 'won' && answered.token === undefined
    if (!isOdd && !lacksToken) continue
    yield {
      kind: 'odd-answer',
      sentence: `${asked.client} was told "${answered.outcome}"${lacksToken ? ' without a token' : ''} when it asked to ${asked.what} ${asked.lease}.`,
      piece: piece(request),
    }
  }
}

/** What was won is in the log, and no grant is there that nobody asked for. */
export function* checkGrants(history: HistoryIndex, settings: Settings): Generator<Violation> {
  for (const request of history.requests) {
    const { asked, answered } = request
    if (asked.what !== 'acquire' || answered?.outcome !== 'won' || answered.token === undefined) continue
    const term = history.term(asked.lease, answered.token)
    if (term !== undefined && (term.holder === undefined || term.holder.client === asked.client)) continue
    yield {
      kind: 'won-grant-missing',
      sentence: `${asked.client} was told of ${asked.lease} #${answered.token}, which was ${term === undefined ? 'never granted' : `granted to ${nameOf(term)}`}.`,
      piece: piece(term, request),
    }
  }
  for (const term of history.terms) {
    if (term.told.length > 0 || term.holder === undefined) continue
    const acquires = history.acquires(term.holder.client, term.lease)
    const first = acquires[0]
    if (first === undefined || first.asked.atUs > term.grant.by.atUs + settings.slackUs) {
      yield {
        kind: 'grant-not-asked-for',
        sentence: `${term.lease} #${term.token} was granted to ${nameOf(term)}, which had not asked for ${term.lease}.`,
        piece: piece(term, first),
      }
      continue
    }
    yield* checkUntold(history, term, acquires, settings)
  }
}

/** A client gives back what it was granted without knowing, as long as it lives: else nobody gets the lease any more. */
function* checkUntold(
  history: HistoryIndex,
  term: Term,
  acquires: readonly Request[],
  { settleWithinUs }: Settings,
): Generator<Violation> {
  const untilUs = Math.min(overAtUs(term), history.endUs)
  const leastUs = settleWithinUs + 3 * (term.holder?.ttlUs ?? 0)
  if (untilUs - term.grantedAtUs <= leastUs) return
  const open = acquires.filter(
    ({ asked, answered }) =>
      asked.atUs <= untilUs && (answered === undefined || answered.atUs >= term.grantedAtUs),
  )
  // Whoever still asks may still be told.
  const answeredUs = open.map(({ answered }) => answered?.atUs ?? Number.POSITIVE_INFINITY)
  if (untilUs - Math.max(term.grantedAtUs, ...answeredUs) <= leastUs) return
  yield {
    kind: 'untold-term-lasts',
    sentence: `${nameOf(term)} had ${term.lease} #${term.token} for ${((untilUs - term.grantedAtUs) / 1e6).toFixed(1)} s without having been told.`,
    piece: piece(
      acquires.findLast(({ asked }) => asked.atUs <= term.grant.by.atUs),
      term,
      term.holder?.steps.at(-1),
    ),
  }
}

/** A write that was won is in the log, one that was refused is not, and none is there twice or unasked. */
export function* checkWriteAnswers(history: HistoryIndex, settings: Settings): Generator<Violation> {
  const committed = new Map<Request, LoggedWrite<WriteChange>>()
  for (const write of history.writes) {
    const { change, by } = write
    const request = history.request(change.client, change.op)
    const name = `${change.lease} #${change.token} to row ${change.row} (${change.client}, request ${change.op})`
    if (request === undefined || !isOf(write, request)) {
      yield {
        kind: 'write-not-asked-for',
        sentence: `The write under ${name} was committed, and nobody had asked for it.`,
        piece: piece(request, write),
      }
      continue
    }
    const twin = committed.get(request)
    committed.set(request, twin ?? write)
    const outcome = request.answered?.outcome
    if (twin !== undefined && twin.by !== by) {
      yield {
        kind: 'write-committed-twice',
        sentence: `The write under ${name} was committed twice.`,
        piece: piece(request, twin, write),
      }
    } else if (outcome === 'lost' || outcome === 'busy') {
      yield {
        kind: 'lost-write-committed',
        sentence: `The write under ${name} was committed, and ${change.client} was told "${outcome}".`,
        piece: piece(request, write),
      }
    }
  }
  const isCareless = carelessTimes(history, settings)
  for (const request of history.requests) {
    const { asked, answered } = request
    if (asked.what !== 'write' || answered?.outcome !== 'won' || committed.has(request)) continue
    if (isCareless(answered.atUs)) continue
    yield {
      kind: 'won-write-missing',
      sentence: `${asked.client} was told that its write under ${asked.lease} #${asked.token} to row ${asked.row} was committed, and it was not.`,
      piece: piece(history.term(asked.lease, asked.token ?? ''), request),
    }
  }
}

function isOf({ change }: LoggedWrite<WriteChange>, { asked }: Request): boolean {
  return (
    asked.what === 'write' &&
    asked.lease === change.lease &&
    asked.token === change.token &&
    (asked.row === undefined || asked.row === change.row)
  )
}

/** A fault is written down a moment after it was begun, and not just when it is over. */
const aroundUs = 2_000_000

/** Whether the server did not wait for the disk then. */
function carelessTimes(history: HistoryIndex, { carelessFaults }: Settings): (atUs: number) => boolean {
  const faults = history.faults
    .filter(({ fault }) => carelessFaults.includes(fault))
    .toSorted((a, b) => a.atUs - b.atUs)
  const times = faults
    .filter(({ phase }) => phase === 'begins')
    .map(({ atUs }) => {
      const end = faults.find((each) => each.phase === 'ends' && each.atUs >= atUs)
      return { fromUs: atUs - aroundUs, toUs: (end?.atUs ?? Number.POSITIVE_INFINITY) + aroundUs }
    })
  return (atUs) => times.some(({ fromUs, toUs }) => atUs >= fromUs && atUs <= toUs)
}
