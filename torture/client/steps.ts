import type { Step } from '../faults/fault.ts'
import type { Word } from './settings.ts'

/** A client that is waited for at a step stays there for so long: whoever waits stops it, or whatever else, meanwhile. */
const heldForMs = 100

const armed = new Set<Step>()
const never = new Int32Array(new SharedArrayBuffer(4))

/** The client is waited for at this step, once. */
export function arm(step: Step): void {
  armed.add(step)
}

/** The client is at this step. Where it is waited for there, the whole process stands still, so that nothing else happens first. */
export function at(step: Step): void {
  if (!armed.delete(step)) return
  process.send?.({ say: 'at', step } satisfies Word)
  stand(heldForMs)
}

/** Blocks the event loop. */
export function stand(forMs: number): void {
  Atomics.wait(never, 0, 0, forMs)
}
