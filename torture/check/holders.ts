import type { HistoryIndex } from './history-index.ts'
import { nameOf } from './overlap.ts'
import { piece } from './piece.ts'
import type { Violation } from './verdict.ts'

/** A heartbeat gives a living holder time, and does nothing else: what has ended stays ended, and no time is taken away. */
export function* checkHolders(history: HistoryIndex): Generator<Violation> {
  for (const { client, steps } of history.holders) {
    for (const [place, step] of steps.entries()) {
      const before = steps[place - 1]
      if (before === undefined) continue
      const { endedAtUs, expiresAtUs } = before.change
      if (step.change.how === 'insert') {
        yield {
          kind: 'holder-revived',
          sentence: `A holder of ${client} was there before, and joined once more.`,
          piece: piece(before, step),
        }
      } else if (
        endedAtUs !== null &&
        (step.change.endedAtUs !== endedAtUs || step.change.expiresAtUs !== expiresAtUs)
      ) {
        yield {
          kind: 'holder-revived',
          sentence: `A holder of ${client} had ended, and was changed after that.`,
          piece: piece(before, step),
        }
      } else if (step.change.expiresAtUs < expiresAtUs) {
        yield {
          kind: 'expiry-fell',
          sentence: `The time of a holder of ${client} was to end earlier than before.`,
          piece: piece(before, step),
        }
      }
    }
  }
}

/** A lease gets another holder by a grant alone, which has a token of its own. */
export function* checkHands(history: HistoryIndex): Generator<Violation> {
  for (const step of history.changesOfHands) {
    yield {
      kind: 'term-changed-hands',
      sentence: `${step.change.name} #${step.change.token} went to ${step.holderThen?.label ?? 'somebody'} without a grant; it was a term of ${step.term === undefined ? 'somebody else' : nameOf(step.term)}.`,
      piece: piece(step.term, step),
    }
  }
}
