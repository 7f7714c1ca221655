import type { Outcome } from './round.ts'
import type { SequenceKind } from './scenarios.ts'
import type { Outcome as Answer } from './told.ts'

/** What many failovers of one scenario came to. JSON has no Infinity: null stands for it. */
export interface Summary {
  readonly setup: string
  readonly kinds: readonly SequenceKind[]
  readonly failovers: number
  readonly answered: number
  readonly lostGrants: number
  readonly committed: number
  readonly lostWrites: number
  readonly staleWrites: number
  readonly refusedWrites: number
  readonly twice: number
  readonly twiceForSameLease: number
  readonly passedTwice: number
  readonly passedLate: number
  readonly shutOut: number
  readonly stuck: number
  /** In how many failovers a client trusted a term that somebody else had been granted, and the longest time of it. */
  readonly overlaps: number
  readonly longestOverlapMs: number | null
  readonly writableMs: Spread
  readonly nextGrantMs: Spread
  readonly acquires: Readonly<Record<Answer, number>>
  readonly writes: Readonly<Record<Answer, number>>
}

export interface Spread {
  readonly median: number
  readonly worst: number
}

export function summarize(
  setup: string,
  kinds: readonly SequenceKind[],
  outcomes: readonly Outcome[],
): Summary {
  const sum = (of: (outcome: Outcome) => number): number => outcomes.reduce((all, one) => all + of(one), 0)
  const overlaps = outcomes.flatMap(({ overlapMs = 0 }) => (overlapMs > 0 ? [overlapMs] : []))
  const longest = Math.max(0, ...overlaps)
  const tally = (what: 'acquires' | 'writes'): Record<Answer, number> => ({
    won: sum((one) => one[what].won),
    busy: sum((one) => one[what].busy),
    lost: sum((one) => one[what].lost),
    failed: sum((one) => one[what].failed),
    unknown: sum((one) => one[what].unknown),
  })
  return {
    setup,
    kinds,
    failovers: outcomes.length,
    answered: sum((one) => one.answered),
    lostGrants: sum((one) => one.lostGrants),
    committed: sum((one) => one.writes.won),
    lostWrites: sum((one) => one.lostWrites),
    staleWrites: sum((one) => one.staleWrites),
    refusedWrites: sum((one) => one.refusedWrites),
    twice: sum((one) => one.twice),
    twiceForSameLease: sum((one) => one.twiceForSameLease),
    passedTwice: sum((one) => one.passedTwice),
    passedLate: sum((one) => one.passedLate),
    shutOut: sum((one) => one.shutOut),
    stuck: sum((one) => one.stuck),
    overlaps: overlaps.length,
    longestOverlapMs: longest === Infinity ? null : Math.round(longest),
    writableMs: spread(outcomes.map((one) => one.writableMs)),
    nextGrantMs: spread(
      outcomes.flatMap(({ nextGrantMs }) => (nextGrantMs === undefined ? [] : [nextGrantMs])),
    ),
    acquires: tally('acquires'),
    writes: tally('writes'),
  }
}

export function spread(values: readonly number[]): Spread {
  const sorted = values.toSorted((a, b) => a - b)
  return { median: Math.round(sorted[sorted.length >> 1]!), worst: Math.round(sorted.at(-1)!) }
}
