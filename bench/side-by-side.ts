/** Work that many workers do for a while. Returns operations per second. */
export type Contender = (workers: number, forMs: number) => Promise<number>

export interface Comparison {
  readonly workers: number
  /** Operations per second of the floor, the median of all rounds: for orientation only. */
  readonly floorPerSecond: number
  readonly ratio: { readonly median: number; readonly min: number; readonly max: number }
}

/**
 * Runs floor and contender in turn, A B A B …, after one round that is not counted, and compares them round by round:
 * absolute times mean little on a machine that others use.
 */
export async function compare(
  floor: Contender,
  contender: Contender,
  workers: number,
  rounds: number,
  forMs: number,
): Promise<Comparison> {
  const floors: number[] = []
  const ratios: number[] = []
  for (let round = 0; round <= rounds; round += 1) {
    const base = await floor(workers, forMs)
    const rate = await contender(workers, forMs)
    if (round === 0) continue
    floors.push(base)
    ratios.push(rate / base)
  }
  return {
    workers,
    floorPerSecond: Math.round(median(floors)),
    ratio: { median: median(ratios), min: Math.min(...ratios), max: Math.max(...ratios) },
  }
}

/** Runs `step` in so many loops at once for `forMs`, and returns the steps per second. */
export async function throughput(
  workers: number,
  forMs: number,
  step: (worker: number) => Promise<unknown>,
): Promise<number> {
  let steps = 0
  const started = performance.now()
  const loop = async (worker: number): Promise<void> => {
    while (performance.now() - started < forMs) {
      await step(worker)
      steps += 1
    }
  }
  await Promise.all(Array.from({ length: workers }, (_, worker) => loop(worker)))
  return (steps / (performance.now() - started)) * 1000
}

/** The middle value, or the mean of the middle two. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}
