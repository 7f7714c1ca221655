import type { HistoryEvent, HolderChange, LeaseChange } from '../history.ts'
import { type Gap, askingSpans, gaps } from './asking.ts'
import { HistoryIndex, type Logged, type Request, type Term, listIn } from './history-index.ts'
import { overAtUs } from './over.ts'
import { nameOf } from './overlap.ts'
import { piece } from './piece.ts'
import type { LivenessBounds, Violation } from './verdict.ts'

/** So often others who came later may be granted a lease before one who waits: callers of one process are one in the line. */
const mostOvertakings = 10

/** Judges whether everything went on after the faults were over, or had become permanent. */
export function checkLiveness(events: readonly HistoryEvent[], bounds: LivenessBounds): Violation[] {
  const history = new HistoryIndex(events)
  const gone = goneClients(history, bounds)
  const judge: Judge = {
    history,
    gone,
    healedAtUs: bounds.healedAtUs,
    withinUs: bounds.ttlUs + bounds.longestTransactionUs + bounds.retryUs,
    retryUs: bounds.retryUs,
  }
  return [...notGranted(judge), ...notTold(judge), ...neverAnswered(judge), ...starved(judge)]
}

interface Judge {
  readonly history: HistoryIndex
  readonly gone: ReadonlySet<string>
  readonly healedAtUs: number
  /** A TTL, the longest fenced transaction, and one more try. */
  readonly withinUs: number
  readonly retryUs: number
}

/** Clients that were killed, and those to whom something was done that did not end. */
function goneClients(history: HistoryIndex, { gone = [] }: LivenessBounds): Set<string> {
  const open = new Map<string, number>()
  const targets = [...gone]
  for (const { fault, phase, target } of history.faults) {
    if (/kill/i.test(fault)) targets.push(target)
    const key = `${fault}\n${target}`
    open.set(key, (open.get(key) ?? 0) + (phase === 'begins' ? 1 : -1))
  }
  for (const [key, count] of open) {
    if (count > 0) targets.push(key.slice(key.indexOf('\n') + 1))
  }
  // What is not the name of a client is harmless here.
  return new Set(targets.flatMap((target) => target.split(' ')))
}

/** Somebody who asks for a lease that nobody has gets it. */
function* notGranted(judge: Judge): Generator<Violation> {
  const { history, gone, healedAtUs, withinUs } = judge
  const spans = askingSpans(history, judge.retryUs, (client) =>
    gone.has(client) ? undefined : history.endUs,
  )
  for (const gap of gaps(history, spans)) {
    const fromUs = Math.max(gap.fromUs, healedAtUs)
    if (gap.toUs - fromUs <= withinUs) continue
    yield {
      kind: 'not-granted',
      sentence: `${gap.first.asked.client} asked for ${gap.lease}, which nobody had, ${seconds(gap.toUs - fromUs)} long${gap.next === undefined ? ', and nobody was granted it' : ''}; ${seconds(withinUs)} are enough.`,
      piece: piece(gap.first, gap.former, endOf(gap), gap.next),
    }
  }
}

function endOf({ former }: Gap): Logged<LeaseChange | HolderChange> | undefined {
  return former?.freed ?? former?.holder?.ended ?? former?.holder?.steps.at(-1)
}

/** Who waits hears of its grant, also when no notification comes through. */
function* notTold({ history, healedAtUs, withinUs, gone }: Judge): Generator<Violation> {
  for (const term of history.terms) {
    const client = term.holder?.client
    if (client === undefined || gone.has(client)) continue
    const fromUs = Math.max(term.grantedAtUs, healedAtUs)
    const untilUs = fromUs + withinUs
    if (untilUs > history.endUs || (term.told.length === 0 && overAtUs(term) <= untilUs)) continue
    const isOpen = ({ asked, answered }: Request): boolean =>
      asked.atUs <= fromUs && (answered === undefined || answered.atUs > untilUs)
    const request =
      term.told.length > 0 ? term.told.find(isOpen) : history.acquires(client, term.lease).find(isOpen)
    if (request === undefined) continue
    yield {
      kind: 'not-told',
      sentence: `${client} waited for ${term.lease}, was granted #${term.token}, and was not told within ${seconds(withinUs)}.`,
      piece: piece(request, term),
    }
  }
}

/** Nothing hangs. Who waits for a lease may do so for as long as others have it, but not longer than its client is open. */
function* neverAnswered({ history, healedAtUs, withinUs, gone }: Judge): Generator<Violation> {
  const closed = new Map<string, number>()
  for (const { asked } of history.requests) {
    if (asked.what === 'close') closed.set(asked.client, Math.max(asked.atUs, closed.get(asked.client) ?? 0))
  }
  for (const request of history.requests) {
    const { asked, answered } = request
    if (answered !== undefined || gone.has(asked.client)) continue
    const closedUs = closed.get(asked.client) ?? Number.NEGATIVE_INFINITY
    const fromUs =
      asked.what !== 'acquire' ? asked.atUs : closedUs >= asked.atUs ? closedUs : Number.POSITIVE_INFINITY
    if (history.endUs - Math.max(fromUs, healedAtUs) <= withinUs) continue
    yield {
      kind: 'never-answered',
      sentence: `${asked.client} asked to ${asked.what} ${asked.lease}, and never heard what came of it.`,
      piece: piece(request),
    }
  }
}

/** Who waits is not passed over for ever. */
function* starved({ history, healedAtUs, withinUs, gone }: Judge): Generator<Violation> {
  const grants = new Map<
    string,
    { readonly term: Term; readonly askedUs: number; readonly client: string }[]
  >()
  for (const term of history.terms) {
    const told = term.told[0]
    if (told === undefined) continue
    listIn(grants, term.lease).push({ term, askedUs: told.asked.atUs, client: told.asked.client })
  }
  for (const request of history.requests) {
    const { asked, answered } = request
    const fromUs = Math.max(asked.atUs, healedAtUs) + withinUs
    const toUs = answered?.atUs ?? history.endUs
    if (asked.what !== 'acquire' || toUs <= fromUs || gone.has(asked.client)) continue
    const overtakings = (grants.get(asked.lease) ?? []).filter(
      ({ term, askedUs, client }) => client !== asked.client && askedUs > fromUs && term.grantedAtUs < toUs,
    )
    if (overtakings.length <= mostOvertakings) continue
    yield {
      kind: 'waiter-starved',
      sentence: `${asked.client} waited for ${asked.lease} while ${overtakings.length} requests that came ${seconds(withinUs)} later and more were granted it, the first to ${nameOf(overtakings[0]!.term)}.`,
      piece: piece(request, ...overtakings.slice(0, 3).map(({ term }) => term)),
    }
  }
}

function seconds(us: number): string {
  return `${(us / 1e6).toFixed(1)} s`
}
