import type { World } from './fault.ts'

/**
 * Chance of a fault's own, for one draw of the run's. What a fault finds, and how often it goes round, differs between two runs of one
 * seed; what is drawn for the faults after it does not.
 */
export function ownChance(world: World): () => number {
  // Mulberry32: good enough to choose by, and repeatable.
  let state = Math.floor(world.random() * 2 ** 32)
  return () => {
    state = (state + 0x6d_2b_79_f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** One of them. */
export function pick<T>(from: readonly T[], random: () => number): T {
  return from[Math.floor(random() * from.length)]!
}

/** A whole number between the two. */
export function between(least: number, most: number, random: () => number): number {
  return least + Math.floor(random() * (most - least + 1))
}
