import type { Effort } from '../rounds.ts'

/** One thing that is measured, on servers of its own. It prints what it finds and returns it for the JSON. */
export interface Measure<T> {
  /** What `--only` calls it, and its name in the JSON. */
  readonly name: string
  /** Another name for it and its neighbours. */
  readonly group: string
  /** One line for people. */
  readonly what: string
  run(effort: Effort): Promise<T>
}
