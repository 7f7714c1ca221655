import { InvalidArgumentError } from './errors.ts'

type Unit = 'ms' | 's' | 'm' | 'h' | 'd'

/**
 * A length of time: a number of milliseconds, a number with a unit (`'250ms'`, `'30s'`, `'5m'`, `'1.5h'`, `'1d'`),
 * or any object with `total('milliseconds')`, such as a `Temporal.Duration`.
 */
export type Duration =
  | number
  | `${number}${Unit}`
  | `${number} ${Unit}`
  | { total(unit: 'milliseconds'): number }

/** The shortest and the longest duration an option takes, in milliseconds. */
export interface DurationBounds {
  readonly minMs: number
  readonly maxMs: number
}

const unitsMs: Readonly<Record<Unit, number>> = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1000, ms: 1 }

const form = /^(\d{1,15}(?:\.\d{1,6})?) ?(ms|s|m|h|d)$/

/**
 * Checks a duration and returns whole milliseconds, rounded up. A bare string of digits is refused, because it
 * does not say its unit.
 *
 * @throws InvalidArgumentError naming the option, the value and the bound.
 */
export function durationMs(option: string, value: unknown, bounds: DurationBounds): number {
  const parsed = parse(value)
  if (parsed === undefined || !Number.isFinite(parsed)) {
    throw new InvalidArgumentError(
      option,
      value,
      `${option} must be a number of milliseconds or a number with a unit such as "30s", "5m" or "250ms"; got ${show(value)}`,
    )
  }
  const rounded = Math.ceil(parsed)
  if (rounded < bounds.minMs || rounded > bounds.maxMs) {
    throw new InvalidArgumentError(
      option,
      value,
      `${option} must be between ${formatMs(bounds.minMs)} and ${formatMs(bounds.maxMs)}; got ${show(value)}`,
    )
  }
  return rounded
}

/** A duration as people write it, in the largest unit that divides it: 90000 is "90s". */
export function formatMs(value: number): string {
  for (const [unit, size] of Object.entries(unitsMs)) {
    if (value >= size && value % size === 0) return `${value / size}${unit}`
  }
  return `${value}ms`
}

function parse(value: unknown): number | undefined {
  if (typeof value === 'number') return value
  if (typeof value === 'string') {
    const [, count, unit] = form.exec(value) ?? []
    return unit === undefined ? undefined : Number(count) * unitsMs[unit as Unit]
  }
  if (typeof value === 'object' && value !== null && 'total' in value && typeof value.total === 'function') {
    try {
      return Number(value.total('milliseconds'))
    } catch {
      return undefined
    }
  }
  return undefined
}

/** A value as an error message shows it: short, quoted, and never throwing, whatever its own methods do. */
export function show(value: unknown): string {
  let text: string
  try {
    text =
      typeof value === 'string'
        ? JSON.stringify(value)
        : // An import would make Node read all that its module may be asked for.
          process.getBuiltinModule('node:util').inspect(value, { depth: 1, breakLength: Infinity })
  } catch {
    text = `a value of type ${typeof value}`
  }
  return text.length > 80 ? `${text.slice(0, 77)}…` : text
}
