import { type Examination, advice } from './examination.ts'

/** One look at the database's clock, with this machine's before and after it. All in milliseconds. */
export interface Reading {
  readonly sentWallMs: number
  readonly sentMs: number
  readonly receivedMs: number
  readonly databaseMs: number
}

export interface ClockJudgement {
  /** How far the database's clock is ahead, when that is beyond doubt. */
  readonly offsetMs: number | undefined
  /** The largest step back between two readings. */
  readonly backMs: number
  /** How far the database's clock and this machine's have moved apart between two readings, beyond doubt. */
  readonly jumpMs: number
}

/** Below this, two clocks agree. */
const toleranceMs = 1000
/** Below this, the two machines' idea of a second may differ. */
const jitterMs = 100

/**
 * What readings say. The database read its clock at some time between sending and receiving; only what holds for each such
 * time counts.
 */
export function judgeClock(readings: readonly Reading[]): ClockJudgement {
  let offsetMs: number | undefined
  let backMs = 0
  let jumpMs = 0
  const [closest] = readings.toSorted((a, b) => roundTrip(a) - roundTrip(b))
  if (closest !== undefined) {
    const offset = closest.databaseMs - (closest.sentWallMs + roundTrip(closest) / 2)
    if (Math.abs(offset) - roundTrip(closest) / 2 > toleranceMs) offsetMs = offset
  }
  for (const [index, reading] of readings.entries()) {
    const before = readings[index - 1]
    if (before === undefined) continue
    const step = reading.databaseMs - before.databaseMs
    backMs = Math.max(backMs, -step)
    const longest = reading.receivedMs - before.sentMs
    const shortest = reading.sentMs - before.receivedMs
    jumpMs = Math.max(jumpMs, step - longest - jitterMs, shortest - step - jitterMs)
  }
  return { offsetMs, backMs, jumpMs: Math.max(0, jumpMs) }
}

function roundTrip(reading: Reading): number {
  return reading.receivedMs - reading.sentMs
}

/** Compares clocks. The promises rest on the database's alone, so a difference between two machines is worth a note. */
export async function checkClock(exam: Examination): Promise<void> {
  const readings: Reading[] = []
  for (let turn = 0; turn < 5; turn += 1) {
    const sentWallMs = Date.now()
    const sentMs = performance.now()
    // oxlint-disable-next-line no-await-in-loop -- One reading after the other is the point.
    const rows = await exam.look(
      { what: "the database's clock", needs: 'nothing' },
      '/* the clock */ select (extract(epoch from clock_timestamp()) * 1000)::text as now',
    )
    if (rows === undefined) return
    readings.push({
      sentWallMs,
      sentMs,
      receivedMs: performance.now(),
      databaseMs: Number(rows[0]?.['now']),
    })
  }
  reportClock(exam, judgeClock(readings))
}

function reportClock(exam: Examination, { offsetMs, backMs, jumpMs }: ClockJudgement): void {
  const steady = advice('Let the server slew its clock (chrony or ntpd without steps), and look at its host.')
  if (backMs > 0) {
    exam.found(
      'clock-backwards',
      'warning',
      "the database's clock",
      `The database's clock went back by ${Math.ceil(backMs)} ms between two readings: every term of that time ends so much later.`,
      steady,
    )
  }
  if (jumpMs > 0) {
    exam.found(
      'clock-jump',
      'warning',
      "the database's clock",
      `The database's clock jumped by ${Math.round(jumpMs)} ms between two readings: terms end so much earlier or later than their holders think.`,
      steady,
    )
  }
  if (offsetMs !== undefined) {
    exam.found(
      'clock-offset',
      'note',
      "the database's clock",
      `The database's clock is ${(Math.abs(offsetMs) / 1000).toFixed(1)} s ${offsetMs > 0 ? 'ahead of' : 'behind'} this machine's; leases go by the database's alone, but times in logs do not fit.`,
      advice('Set both by the same time server (chrony or ntpd).'),
    )
  }
}
