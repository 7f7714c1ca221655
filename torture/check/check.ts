import type { HistoryEvent } from '../history.ts'
import { checkAnswers, checkGrants, checkWriteAnswers } from './answers.ts'
import { HistoryIndex } from './history-index.ts'
import { checkHands, checkHolders } from './holders.ts'
import { checkEnds, checkOverlap } from './overlap.ts'
import { checkFreeings, checkReleased } from './releases.ts'
import { withDefaults } from './settings.ts'
import { checkStamps, checkWrites } from './stale-writes.ts'
import { summarize } from './summary.ts'
import { checkToldTokens, checkTokens } from './tokens.ts'
import { checkTrust } from './trust.ts'
import type { CheckOptions, Verdict } from './verdict.ts'

export { checkLiveness } from './liveness.ts'
export { renderVerdict } from './render.ts'
export type { CheckOptions, LivenessBounds, Verdict, ViolationKind } from './verdict.ts'

/** One for each property. */
const properties = [
  checkWrites,
  checkStamps,
  checkOverlap,
  checkEnds,
  checkHands,
  checkTokens,
  checkToldTokens,
  checkHolders,
  checkFreeings,
  checkReleased,
  checkTrust,
  checkGrants,
  checkWriteAnswers,
  checkAnswers,
] as const

/**
 * Judges whether a history keeps the promises. It must be complete: the log up to its end, and all that the clients were told. The
 * transactions come in the order of the commits; where the other events are between them does not matter.
 */
export function check(events: readonly HistoryEvent[], options: CheckOptions = {}): Verdict {
  const settings = withDefaults(options)
  const history = new HistoryIndex(events)
  return {
    violations: properties.flatMap((property) => [...property(history, settings)]),
    summary: summarize(history),
  }
}
