import type { Change, HistoryEvent } from '../history.ts'
import { type Summary, type Verdict, type Violation, type ViolationKind, meanings } from './verdict.ts'

const width = 100

/** A verdict for people, in lines of at most 100 columns: of each kind of violation the one with the shortest piece of history. */
export function renderVerdict({ violations, summary }: Verdict): string {
  const kinds = (Object.keys(meanings) as ViolationKind[])
    .map((kind) => ({ kind, found: violations.filter((violation) => violation.kind === kind) }))
    .filter(({ found }) => found.length > 0)
  const parts = kinds.map(({ kind, found }) => renderKind(kind, found))
  const count = violations.length
  const verdict = count === 0 ? 'No violation.' : `${several(count, 'violation')}.`
  return [...parts, `${verdict}\n${renderSummary(summary)}`].join('\n\n')
}

function renderKind(kind: ViolationKind, found: readonly Violation[]): string {
  const [shortest] = found.toSorted(
    (a, b) => a.piece.length - b.piece.length || durationUs(a.piece) - durationUs(b.piece),
  )
  const { sentence, piece } = shortest!
  const startUs = piece[0]?.atUs ?? 0
  return [
    ...wrap(`${kind}: ${meanings[kind]}`, ''),
    ...wrap(sentence, '  '),
    ...piece.flatMap((event) => renderEvent(event, startUs)),
    ...(found.length > 1 ? [`  and ${found.length - 1} more of this kind`] : []),
  ].join('\n')
}

function durationUs(events: readonly HistoryEvent[]): number {
  return (events.at(-1)?.atUs ?? 0) - (events[0]?.atUs ?? 0)
}

function renderEvent(event: HistoryEvent, startUs: number): string[] {
  const at = `${((event.atUs - startUs) / 1000).toFixed(3)} ms`.padStart(16)
  return wrap(describe(event, startUs), `${at}  `)
}

function describe(event: HistoryEvent, startUs: number): string {
  switch (event.kind) {
    case 'asked':
      return `${event.client} asks (${event.op}): ${event.what} ${named(event.lease, event.token)}${event.row === undefined ? '' : `, row ${event.row}`}`
    case 'answered':
      return `${event.client} is told (${event.op}): ${event.outcome}${event.token === undefined ? '' : ` #${event.token}`}${event.code === undefined ? '' : ` (${event.code})`}`
    case 'trusted':
      return `${event.client} says of ${named(event.lease, event.token)}: ${event.isHeld ? 'held' : 'not held'}`
    case 'committed':
      return `committed ${event.xid} at ${event.lsn}: ${event.changes.map((change) => describeChange(change, startUs)).join('; ')}`
    case 'fault':
      return `fault ${event.fault} ${event.phase}: ${event.target}`
  }
}

function describeChange(change: Change, startUs: number): string {
  const at = (us: number): string => `${((us - startUs) / 1000).toFixed(3)} ms`
  switch (change.table) {
    case 'lease': {
      if (change.how === 'delete') return `lease ${named(change.name, change.token)} is deleted`
      const holder = change.holderId === null ? 'nobody' : `holder ${change.holderId.slice(0, 8)}`
      return [
        `lease ${named(change.name, change.token)}: ${holder}`,
        ...(change.grantedAtUs === null ? [] : [`granted at ${at(change.grantedAtUs)}`]),
        ...(change.deadlineUs === null ? [] : [`until ${at(change.deadlineUs)}`]),
        ...(change.availableAtUs === null ? [] : [`not before ${at(change.availableAtUs)}`]),
      ].join(', ')
    }
    case 'holder':
      if (change.how === 'delete') return `holder ${change.id.slice(0, 8)} of ${change.label} is deleted`
      return [
        `holder ${change.id.slice(0, 8)} of ${change.label}: until ${at(change.expiresAtUs)}`,
        ...(change.endedAtUs === null ? [] : [`ended at ${at(change.endedAtUs)}`]),
      ].join(', ')
    case 'write':
      return `write under ${named(change.lease, change.token)} to row ${change.row} (${change.client}, ${change.op})`
    case 'row':
      return `row ${change.row} of ${change.lease} is stamped ${change.stamp ?? 'not at all'}`
  }
}

function named(lease: string, token: string | undefined): string {
  return token === undefined ? lease : `${lease} #${token}`
}

function renderSummary(summary: Summary): string {
  const { asked, unknown } = summary
  const openOf = (what: keyof typeof unknown): number => unknown[what].happened + unknown[what].hadNot
  const resolved = (['acquire', 'write', 'release', 'close'] as const)
    .filter((what) => openOf(what) > 0)
    .map((what) => `${what} ${unknown[what].happened} of ${openOf(what)}`)
  const faults = Object.entries(summary.faults)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, count]) => `${name} ${count}`)
  const takeOver = summary.worstTakeOverUs
  return [
    `${several(summary.events, 'event')} in ${(summary.durationUs / 1e6).toFixed(1)} s: ${several(summary.clients, 'client')}, ${several(summary.leases, 'lease')}, ${several(summary.transactions, 'transaction')}, ${several(summary.samples, 'sample')} of trust`,
    `asked: ${several(asked.acquire, 'acquire')}, ${several(asked.write, 'write')}, ${several(asked.release, 'release')}, ${several(asked.close, 'close')}`,
    `granted: ${summary.grants}, of them ${several(summary.takeOvers, 'take-over')}${takeOver === null ? '' : `, the slowest ${(takeOver / 1000).toFixed(1)} ms after the former holder's time`}`,
    `longest time without a holder while somebody asked: ${(summary.longestGapUs / 1000).toFixed(1)} ms`,
    `written: ${summary.writes}, refused: ${summary.refusedWrites}`,
    `without an answer, and found in the log: ${resolved.length === 0 ? 'none' : resolved.join(', ')}`,
    `faults: ${faults.length === 0 ? 'none' : faults.join(', ')}`,
  ]
    .flatMap((line) => wrap(line, ''))
    .join('\n')
}

function several(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** Lines of at most 100 columns. The first begins with the prefix, and the others are indented as far. */
function wrap(text: string, prefix: string): string[] {
  const lines: string[] = []
  let line = prefix
  let isEmpty = true
  for (const word of text.split(' ')) {
    if (!isEmpty && line.length + 1 + word.length > width) {
      lines.push(line)
      line = ' '.repeat(Math.max(prefix.length, 2))
      isEmpty = true
    }
    line += isEmpty ? word : ` ${word}`
    isEmpty = false
  }
  return [...lines, line]
}
