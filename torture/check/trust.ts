import type { HolderChange, LeaseChange, Trusted } from '../history.ts'
import { type HistoryIndex, type HolderLife, type Logged, type Term, listIn } from './history-index.ts'
import { ms, nameOf } from './overlap.ts'
import { piece } from './piece.ts'
import type { Settings } from './settings.ts'
import type { Violation } from './verdict.ts'

/** No client trusts its term at a time at which the database could already grant the lease to another. */
export function* checkTrust(history: HistoryIndex, settings: Settings): Generator<Violation> {
  const samples = new Map<Term, Trusted[]>()
  for (const sample of history.samples) {
    if (!sample.isHeld) continue
    const term = history.term(sample.lease, sample.token)
    // One that was never granted is noticed where it was told.
    if (term !== undefined) listIn(samples, term).push(sample)
  }
  const beats = new Map<HolderLife, Beats>()
  for (const [term, ofTerm] of samples) {
    if (term.holder === undefined) continue
    const known = beats.get(term.holder) ?? new Beats(term.holder)
    beats.set(term.holder, known)
    for (const sample of ofTerm.toSorted((a, b) => a.atUs - b.atUs)) {
      const end = endBefore(term, known, sample.atUs, settings)
      if (end === undefined) continue
      yield {
        kind: 'trust-outlived-term',
        sentence: `${sample.client} trusted ${term.lease} #${term.token} ${ms(sample.atUs - end.atUs)} after ${end.what}.`,
        piece: piece(term, ...term.told, end.shownBy, sample),
      }
      break
    }
  }
}

interface End {
  readonly atUs: number
  readonly what: string
  readonly shownBy: Term | Logged<HolderChange> | Logged<LeaseChange> | undefined
}

/** The end of the term that had come by then. */
function endBefore(term: Term, beats: Beats, thenUs: number, { slackUs }: Settings): End | undefined {
  const { next, freed, deadlineUs, holder } = term
  const ended = holder?.ended
  const beat = beats.best(thenUs + slackUs)
  const ends: (End | undefined)[] = [
    next && { atUs: next.grantedAtUs, what: `#${next.token} was granted to ${nameOf(next)}`, shownBy: next },
    freed && { atUs: freed.by.atUs, what: 'it was freed', shownBy: freed },
    ended && { atUs: ended.change.endedAtUs!, what: 'its holder ended', shownBy: ended },
    deadlineUs === null ? undefined : { atUs: deadlineUs, what: 'its end had come', shownBy: undefined },
    beat && { atUs: beat.change.expiresAtUs, what: 'the time of its holder was up', shownBy: beat },
  ]
  return ends
    .filter((end) => end !== undefined)
    .toSorted((a, b) => a.atUs - b.atUs)
    .find(({ atUs }) => atUs + slackUs < thenUs)
}

/** The heartbeats of a holder, in the order of time, each with the one up to it that gave the most. */
class Beats {
  readonly #steps: { readonly atUs: number; readonly best: Logged<HolderChange> }[] = []

  constructor({ steps }: HolderLife) {
    let best = steps[0]!
    for (const step of steps.toSorted((a, b) => a.by.atUs - b.by.atUs)) {
      if (step.change.expiresAtUs > best.change.expiresAtUs) best = step
      this.#steps.push({ atUs: step.by.atUs, best })
    }
  }

  /** What had been committed by then. */
  best(byUs: number): Logged<HolderChange> | undefined {
    let [from, to] = [0, this.#steps.length]
    while (from < to) {
      const middle = (from + to) >> 1
      if (this.#steps[middle]!.atUs <= byUs) from = middle + 1
      else to = middle
    }
    return this.#steps[from - 1]?.best
  }
}
