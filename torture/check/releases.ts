import type { HistoryIndex } from './history-index.ts'
import { isLetGo, overAtUs, suspects } from './over.ts'
import { nameOf } from './overlap.ts'
import { piece } from './piece.ts'
import type { Settings } from './settings.ts'
import type { Violation } from './verdict.ts'

/** A release frees no other term than its own: each that was freed while its holder lived was let go by its own client. */
export function* checkFreeings(history: HistoryIndex, settings: Settings): Generator<Violation> {
  for (const step of history.freeings) {
    const { change, before, by, term, holderThen } = step
    // Of a holder that has ended, or is not there any more, anybody may free the leases.
    if (
      term === undefined ||
      holderThen === undefined ||
      holderThen.endedAtUs !== null ||
      holderThen.how === 'delete'
    )
      continue
    if (change.how !== 'delete' && isLetGo(term, by.atUs, settings)) continue
    // Whoever purges leases forgets those whose end has passed.
    if (change.how === 'delete' && before.change.deadlineUs !== null && before.change.deadlineUs <= by.atUs)
      continue
    yield {
      kind: 'freed-by-another',
      sentence: `${change.name} #${before.change.token} of ${nameOf(term)} was ${change.how === 'delete' ? 'deleted' : 'freed'}, and ${nameOf(term)} had not asked for that.`,
      piece: piece(term, ...term.told, ...suspects(history, step), step),
    }
  }
}

/**
 * A client that was told that its term was released does not have it for much longer. It may have it for a while: such a commit
 * does not wait for the disk, so a crash can undo it, and then the holder, if it lives on, gives the term back once more.
 */
export function* checkReleased(history: HistoryIndex, { settleWithinUs }: Settings): Generator<Violation> {
  for (const term of history.terms) {
    for (const request of term.givenBack) {
      if (request.answered?.outcome !== 'won') continue
      const untilUs = Math.min(overAtUs(term), history.endUs)
      if (untilUs - request.answered.atUs <= settleWithinUs + 3 * (term.holder?.ttlUs ?? 0)) continue
      yield {
        kind: 'won-release-missing',
        sentence: `${nameOf(term)} was told that ${term.lease} #${term.token} was released, and had it for ${((untilUs - request.answered.atUs) / 1e6).toFixed(1)} s more.`,
        piece: piece(term, request, term.holder?.steps.at(-1)),
      }
    }
  }
}
