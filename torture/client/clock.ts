// Loaded before fencepost is, so that it reads the clocks that a fault has set.

const trueDate = Date.now.bind(Date)
const truePerformance = performance.now.bind(performance)
const trueHrtime = process.hrtime.bigint.bind(process.hrtime)

/** Where the clocks of this process were when they were set last. */
let set = { atNs: trueHrtime(), elapsedMs: 0 }
let rate = 1
let offsetMs = 0
const startWallMs = trueDate()
const startPerformanceMs = truePerformance()
const startNs = set.atNs

function elapsedMs(): number {
  return set.elapsedMs + (Number(trueHrtime() - set.atNs) / 1e6) * rate
}

function isTrue(): boolean {
  return rate === 1 && offsetMs === 0 && set.atNs === startNs
}

/**
 * From now on every clock of this process runs at this rate, and the wall clock is off by so much. The monotonic clock does not jump. The
 * uptime of the machine, timers and the database are as they were: as on a machine whose oscillator is off by little, and whose wall clock
 * is set by people.
 */
export function setClock(newOffsetMs: number, newRate: number): void {
  set = { elapsedMs: elapsedMs(), atNs: trueHrtime() }
  rate = newRate
  offsetMs = newOffsetMs
}

Date.now = () => (isTrue() ? trueDate() : Math.floor(startWallMs + elapsedMs() + offsetMs))
performance.now = () => (isTrue() ? truePerformance() : startPerformanceMs + elapsedMs())
const hrtimeNs = (): bigint => (isTrue() ? trueHrtime() : startNs + BigInt(Math.floor(elapsedMs() * 1e6)))
process.hrtime = Object.assign(
  ([seconds, nanoseconds]: [number, number] = [0, 0]): [number, number] => {
    const ns = hrtimeNs() - BigInt(seconds) * 1_000_000_000n - BigInt(nanoseconds)
    return [Number(ns / 1_000_000_000n), Number(ns % 1_000_000_000n)]
  },
  { bigint: hrtimeNs },
)

let anchor = { ns: startNs, us: startWallMs * 1000 }

/** Microseconds since 1970 by the machine's own clock, which the server has as well; never further off it than the millisecond it tells. */
export function trueUs(): number {
  const ns = trueHrtime()
  const floorUs = trueDate() * 1000
  const us = anchor.us + Number(ns - anchor.ns) / 1000
  if (us >= floorUs && us < floorUs + 1000) return Math.floor(us)
  anchor = { ns, us: us < floorUs ? floorUs : floorUs + 999 }
  return anchor.us
}
