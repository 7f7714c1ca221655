import type { FaultKind } from '../faults/fault.ts'
import { Stream } from './stream.ts'

/** A fault that is going to be inflicted. */
export interface Planned {
  readonly kind: FaultKind
  /** From the start of the run. It begins no earlier. */
  readonly atMs: number
  readonly lastsMs: number
  /** The name of the numbers by which it chooses its target. */
  readonly stream: string
}

/** How long after the beginning of one fault the next begins. Now and then everything gets time to recover. */
const gapMs: readonly [number, number] = [150, 1000]
const calmMs: readonly [number, number] = [1500, 3000]
const calmAfter = 12
/** One after the other: a server that has just come back is of use again only when everybody has found it. */
const serverGapMs: readonly [number, number] = [1500, 4500]

/** What is going to happen, from the seed alone: faults that overlap, each as often as the others, in an order of the seed's. */
export function planOverlapping(seed: string, kinds: readonly FaultKind[], untilMs: number): Planned[] {
  const stream = new Stream(seed, 'overlapping faults')
  return draw(stream, 'overlapping', kinds, untilMs, (number) => {
    const gap = number % calmAfter === calmAfter - 1 ? calmMs : gapMs
    return stream.whole(...gap)
  })
}

/** The same for faults of which there is one at a time: each begins when the one before is over. */
export function planInTurn(seed: string, kinds: readonly FaultKind[], untilMs: number): Planned[] {
  const stream = new Stream(seed, 'faults in turn')
  return draw(stream, 'in turn', kinds, untilMs, (_, lastsMs) => lastsMs + stream.whole(...serverGapMs))
}

function draw(
  stream: Stream,
  name: string,
  kinds: readonly FaultKind[],
  untilMs: number,
  toNextMs: (number: number, lastsMs: number) => number,
): Planned[] {
  const plan: Planned[] = []
  if (kinds.length === 0) return plan
  // Dealt like cards: in a short run, too, each has its turn.
  let deck: FaultKind[] = []
  for (let atMs = stream.whole(300, 800); atMs < untilMs;) {
    if (deck.length === 0) deck = stream.shuffled(kinds)
    const kind = deck.pop()!
    const lastsMs = stream.whole(...kind.lastsMs)
    plan.push({ kind, atMs, lastsMs, stream: `${name} ${plan.length}` })
    atMs += toNextMs(plan.length, lastsMs)
  }
  return plan
}
