/** The middle of some values and how far they reach: what is reported of every measure, never the best one. */
export interface Spread {
  readonly median: number
  readonly min: number
  readonly max: number
}

export function spread(values: readonly number[]): Spread {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) }
}

/** The middle value, or the mean of the middle two. */
export function median(values: readonly number[]): number {
  if (values.length === 0) throw new Error('nothing was measured')
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

/** The smallest value that at least this share of the values does not exceed. */
export function quantile(values: readonly number[], share: number): number {
  if (values.length === 0) throw new Error('nothing was measured')
  const sorted = Float64Array.from(values).toSorted()
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)]!
}

/** Each value ÷ the floor's of the same round. */
export function ratios(values: readonly number[], floors: readonly number[]): number[] {
  return values.map((value, round) => value / floors[round]!)
}

/** `1.21 (1.10 … 1.34)` */
export function shown({ median: middle, min, max }: Spread): string {
  return `${number(middle)} (${number(min)} … ${number(max)})`
}

/** Two decimals below 10, one below 100, none above. */
export function number(value: number): string {
  const size = Math.abs(value)
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)
}
