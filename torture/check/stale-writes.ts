import type { HistoryIndex } from './history-index.ts'
import { piece } from './piece.ts'
import type { Violation } from './verdict.ts'

/**
 * No write of an older term is committed after a newer one was granted: by the order of the commits, which a client cannot be wrong about.
 * And none without a term of its client's own.
 */
export function* checkWrites(history: HistoryIndex): Generator<Violation> {
  for (const write of history.writes) {
    const { change, current, row } = write
    const token = BigInt(change.token)
    const request = history.request(change.client, change.op)
    const term = history.term(change.lease, change.token)
    const who = `${change.client} wrote row ${change.row} under ${change.lease} #${change.token}`
    if (current !== undefined && token < current.token) {
      yield {
        kind: 'stale-write',
        sentence: `${who}, after #${current.token} had been granted to ${current.holder?.client ?? 'another'}.`,
        piece: piece(term, current, request, write),
      }
    } else if (current === undefined || term === undefined || token > current.token) {
      yield {
        kind: 'write-without-term',
        sentence: `${who}, which had not been granted.`,
        piece: piece(current, request, write),
      }
    } else if (current.holder !== undefined && current.holder.client !== change.client) {
      yield {
        kind: 'write-without-term',
        sentence: `${who}, which is a term of ${current.holder.client}.`,
        piece: piece(current, request, write),
      }
    } else if (row?.holderId !== current.holderId) {
      yield {
        kind: 'write-without-term',
        sentence: `${who}, after the term had been given back.`,
        piece: piece(current, current.freed, request, write),
      }
    }
  }
}

/** The stamps of a row never go down, and none is older than the latest term of the lease under which it was written. */
export function* checkStamps(history: HistoryIndex): Generator<Violation> {
  const last = new Map<string, (typeof history.rowChanges)[number]>()
  for (const written of history.rowChanges) {
    const { change, current } = written
    const before = last.get(change.row)
    last.set(change.row, written)
    const stamp = change.stamp === null ? null : BigInt(change.stamp)
    if (before !== undefined && before.change.stamp !== null) {
      if (stamp === null || stamp < BigInt(before.change.stamp)) {
        yield {
          kind: 'stamp-went-back',
          sentence: `Row ${change.row} was stamped ${before.change.stamp}, and then ${change.stamp ?? 'not at all'}.`,
          piece: piece(before, written),
        }
        continue
      }
    }
    if (stamp === null || current === undefined || stamp >= current.token) continue
    const term = history.term(change.lease, stamp.toString())
    // A row may have got its stamp under another lease.
    if (term === undefined) continue
    yield {
      kind: 'stale-write',
      sentence: `Row ${change.row} was stamped ${stamp} after ${change.lease} #${current.token} had been granted.`,
      piece: piece(term, current, written),
    }
  }
}
