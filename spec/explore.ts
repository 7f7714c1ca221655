import type { CompiledModel, Label } from './compiled-model.ts'

export interface Exploring<State> {
  readonly model: CompiledModel<State>
  readonly key: (state: State) => string
  readonly invariants: readonly string[]
  /** Definitions that must be true somewhere. */
  readonly witnesses?: readonly string[]
  /** Seen at a glance; only to save time. */
  readonly isSame?: (from: State, to: State) => boolean
  /** States for which this is false are looked at, but not left. */
  readonly isWithin?: (state: State) => boolean
  readonly maxDepth?: number
  readonly maxStates?: number
}

export interface Explored<State> {
  readonly states: number
  /** States and ways between them that were looked at. */
  readonly steps: number
  /** How many steps it takes to the farthest state. */
  readonly depth: number
  /** Whether there was no state left to go on from, within the bounds. */
  readonly isComplete: boolean
  readonly unseen: readonly string[]
  readonly violation: Violation<State> | undefined
}

interface Violation<State> {
  readonly invariant: string
  /** What was done, from the beginning: no shorter way leads to a violation. */
  readonly path: readonly { readonly label: Label; readonly state: State }[]
}

/** All states of the model, breadth first, each of those with one key once. Stops at the first that violates an invariant. */
export function explore<State>(exploring: Exploring<State>): Explored<State> {
  const { model, key, invariants, isSame = () => false, isWithin = () => true } = exploring
  const { maxDepth = Number.POSITIVE_INFINITY, maxStates = Number.POSITIVE_INFINITY } = exploring
  const first = model.init()
  const numbers = new Map([[key(first), 0]])
  const parents: number[] = [-1]
  const unseen = new Set(exploring.witnesses)
  let level: { readonly state: State; readonly number: number }[] = [{ state: first, number: 0 }]
  let steps = 0
  let depth = 0
  let broken: { readonly invariant: string; readonly number: number } | undefined
  while (level.length > 0 && depth < maxDepth && numbers.size < maxStates) {
    const next: typeof level = []
    for (const { state, number } of level) {
      model.step(state, (found) => {
        steps += 1
        // Of states with one key only one is kept, but what was answered on the way to them differs.
        for (const witness of unseen) if (model.holds(witness, found)) unseen.delete(witness)
        if (isSame(state, found)) return
        const foundKey = key(found)
        if (numbers.has(foundKey)) return
        const own = numbers.size
        numbers.set(foundKey, own)
        parents.push(number)
        const invariant = invariants.find((one) => !model.holds(one, found))
        if (invariant !== undefined) broken ??= { invariant, number: own }
        if (isWithin(found)) next.push({ state: found, number: own })
      })
      if (broken !== undefined) break
    }
    if (next.length > 0 || broken !== undefined) depth += 1
    level = next
    if (broken !== undefined) break
  }
  return {
    states: numbers.size,
    steps,
    depth,
    isComplete: level.length === 0 && broken === undefined,
    unseen: [...unseen],
    violation: broken && { invariant: broken.invariant, path: pathTo(broken.number) },
  }

  /** Goes the way once more, since of the states that were left behind only their keys are kept. */
  function pathTo(number: number): Violation<State>['path'] {
    const way: number[] = []
    for (let at = number; at > 0; at = parents[at]!) way.unshift(at)
    const path: { label: Label; state: State }[] = []
    let state = first
    for (const wanted of way) {
      let reached: { label: Label; state: State } | undefined
      model.step(state, (found, label) => {
        if (reached === undefined && numbers.get(key(found)) === wanted) reached = { label, state: found }
      })
      state = reached!.state
      path.push(reached!)
    }
    return path
  }
}
