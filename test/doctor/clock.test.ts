import { fc, test } from '@fast-check/vitest'
import { describe, expect } from 'vitest'
import { type Reading, judgeClock } from '../../src/doctor/clock.ts'

/** A reading of a database clock that is `aheadMs` ahead, in the middle of a round trip that begins at `atMs`. */
function reading(atMs: number, roundTripMs: number, aheadMs: number, share = 0.5): Reading {
  return {
    sentWallMs: 1_000_000 + atMs,
    sentMs: atMs,
    receivedMs: atMs + roundTripMs,
    databaseMs: 1_000_000 + atMs + roundTripMs * share + aheadMs,
  }
}

describe('judging the clock', () => {
  test.prop([
    fc.array(
      fc.record({
        pause: fc.nat(1000),
        roundTrip: fc.nat(5000),
        share: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
      { minLength: 1, maxLength: 6 },
    ),
  ])('two clocks that agree are never doubted, however slow the network', (steps) => {
    let at = 0
    const readings = steps.map(({ pause, roundTrip, share }) => {
      const one = reading(at + pause, roundTrip, 0, share)
      at = one.receivedMs
      return one
    })
    expect(judgeClock(readings)).toEqual({ offsetMs: undefined, backMs: 0, jumpMs: 0 })
  })

  test('an offset beyond doubt is told, by the quickest reading', () => {
    const { offsetMs } = judgeClock([
      reading(0, 9000, 3000),
      reading(9000, 10, 3000),
      reading(9100, 2000, 3000),
    ])
    expect(offsetMs).toBeCloseTo(3000)
    expect(judgeClock([reading(0, 9000, 3000)]).offsetMs).toBeUndefined()
    expect(judgeClock([reading(0, 10, -3000)]).offsetMs).toBeCloseTo(-3000)
  })

  test('a step back and a jump ahead are told', () => {
    const back = judgeClock([reading(0, 2, 0), reading(3, 2, -500)])
    expect(back.backMs).toBeCloseTo(497)
    expect(back.jumpMs).toBeGreaterThan(0)
    const ahead = judgeClock([reading(0, 2, 0), reading(3, 2, 5000)])
    expect(ahead.backMs).toBe(0)
    expect(ahead.jumpMs).toBeGreaterThan(4800)
  })
})
