import type { Stream } from '../run/stream.ts'
import { rowsOf } from './settings.ts'

/** What a worker is going to do once, all of it chosen before, so that what happens in one round changes nothing of the next. */
export interface Round {
  readonly leases: readonly string[]
  readonly way: 'acquire' | 'try' | 'all'
  readonly ttlMs: number
  readonly waitMs: number
  readonly maxHoldMs: number | undefined
  readonly transactions: readonly WritePlan[]
  /** All of the transactions at once, which so overlap. */
  readonly isParallel: boolean
  readonly idleMs: number
  readonly ending: 'release' | 'hand over' | 'let expire' | 'close'
  /** Once more under the same term, when it is over. */
  readonly isSorry: boolean
  /** Again and again under the same term, until it is told that it is over, and in transactions that overlap. */
  readonly insists: boolean
  readonly restMs: number
}

/** One fenced transaction. */
export interface WritePlan {
  readonly way: WriteWay
  readonly lease: string
  readonly rows: readonly string[]
  readonly readsMuch: boolean
  /** How long the server lets the transaction be silent; undefined: a TTL. */
  readonly silenceMs: number | undefined
  readonly pauseMs: number
}

/**
 * `pool`, `kysely`: `lease.transaction`. `careless`: the same by a program that does not look at what its process knows of the lease.
 * `by hand`: begin, `lease.fence`, commit. `statement`: one fenced statement of a repository, which is its own transaction.
 */
type WriteWay = 'pool' | 'kysely' | 'careless' | 'by hand' | 'statement'

const ways: readonly WriteWay[] = [
  'pool',
  'pool',
  'kysely',
  'careless',
  'careless',
  'by hand',
  'by hand',
  'statement',
]
/** Longer than a TTL: what is silent for so long has lost its lease to somebody else, if its fence does not hold. */
export const longSilenceMs = 4000

/** Several leases, all or none, are waited for outside the line, where others may come first for as long as they like. */
const longestWaitOutsideMs = 3000

const ttlsMs = [300, 500, 500, 800, 1200, 2000]
const endings: readonly Round['ending'][] = [
  ...Array<'release'>(11).fill('release'),
  ...Array<'hand over'>(4).fill('hand over'),
  ...Array<'let expire'>(3).fill('let expire'),
  'close',
]

/** Whoever has given its lease back is refused at once. */
const insistentEndings: readonly Round['ending'][] = ['let expire', 'close']

export function drawRound(stream: Stream, leases: readonly string[], fixedTtlMs?: number): Round {
  const [first, second] = stream.shuffled(leases)
  const way = stream.pick(['acquire', 'acquire', 'acquire', 'try', 'all'] as const)
  const wanted = way === 'all' && second !== undefined ? [first!, second] : [first!]
  const drawnMs = stream.pick(ttlsMs)
  const ttlMs = fixedTtlMs ?? drawnMs
  const waitMs = stream.pick([300, 1000, 3000, 20_000])
  const insists = stream.chance(0.1)
  return {
    leases: wanted,
    way,
    ttlMs,
    waitMs: way === 'all' ? Math.min(longestWaitOutsideMs, waitMs) : waitMs,
    maxHoldMs: stream.chance(0.1) ? stream.whole(ttlMs, 2 * ttlMs) : undefined,
    transactions: Array.from({ length: stream.whole(1, 4) }, () => drawWrite(stream, stream.pick(wanted))),
    isParallel: stream.chance(0.25),
    idleMs: stream.chance(0.15) ? stream.whole(1, 400) : 0,
    ending: stream.pick(insists ? insistentEndings : endings),
    isSorry: stream.chance(0.3),
    insists,
    restMs: stream.chance(0.5) ? stream.whole(1, 60) : 0,
  }
}

/**
 * A round on a lease that nobody waits for, and that so is free between two terms: many ask for it at the same moment. Where somebody
 * waits, a lease goes from hand to hand and there is no race for it.
 */
export function drawQuickRound(stream: Stream, lease: string, fixedTtlMs?: number): Round {
  const drawnMs = stream.pick(ttlsMs)
  const { rows, way, ...write } = drawWrite(stream, lease)
  return {
    leases: [lease],
    way: 'try',
    ttlMs: fixedTtlMs ?? drawnMs,
    waitMs: 0,
    maxHoldMs: undefined,
    transactions: stream.chance(0.5)
      ? [{ ...write, way, rows: rows.slice(0, 1), readsMuch: false, pauseMs: 0 }]
      : [],
    isParallel: false,
    idleMs: 0,
    ending: stream.chance(0.03) ? 'let expire' : 'release',
    isSorry: stream.chance(0.1),
    insists: false,
    restMs: stream.whole(1, 20),
  }
}

function drawWrite(stream: Stream, lease: string): WritePlan {
  const rows = stream.shuffled(rowsOf(lease))
  return {
    way: stream.pick(ways),
    lease,
    rows: rows.slice(0, stream.whole(1, rows.length)).toSorted(),
    readsMuch: stream.chance(0.2),
    silenceMs: stream.chance(0.4) ? longSilenceMs : undefined,
    pauseMs: stream.chance(0.3) ? stream.whole(1, 40) : 0,
  }
}
