import { fc, test as property } from '@fast-check/vitest'
import { describe, expect, test } from 'vitest'
import {
  type Moment,
  beatEveryMs,
  beatRetryMs,
  isDoubtful,
  isTrusted,
  marginMs,
  trustFrom,
  trustLeftMs,
} from '../../src/lease/term.ts'

const at = (monotonicMs: number, wallMs = monotonicMs): Moment => ({ monotonicMs, wallMs })

describe('trust', () => {
  test('counts from before the request was sent and ends a margin before the TTL', () => {
    const trust = trustFrom(at(1000), 10_000)
    expect(trustLeftMs(trust, at(1000))).toBe(9500)
    expect(isTrusted(trust, at(10_499))).toBe(true)
    expect(isTrusted(trust, at(10_500))).toBe(false)
  })

  test('is in doubt, not lost, when only the wall clock has run past the window', () => {
    const trust = trustFrom(at(1000, 0), 10_000)
    expect(isDoubtful(trust, at(2000, 3_600_000))).toBe(true)
    expect(isTrusted(trust, at(2000, 3_600_000))).toBe(false)
    expect(trustLeftMs(trust, at(2000, 3_600_000))).toBe(8500)
  })

  test('does not mind a wall clock that is set back', () => {
    const trust = trustFrom(at(1000, 0), 10_000)
    expect(isTrusted(trust, at(2000, -3_600_000))).toBe(true)
    expect(isTrusted(trust, at(10_500, -3_600_000))).toBe(false)
  })

  const ttl = fc.integer({ min: 100, max: 86_400_000 })

  property.prop([ttl])('leaves room for two failed beats and ends before the TTL', (ttlMs) => {
    expect(marginMs(ttlMs)).toBeGreaterThanOrEqual(20)
    expect(marginMs(ttlMs)).toBeLessThanOrEqual(1000)
    expect(2 * beatEveryMs(ttlMs)).toBeLessThan(ttlMs - marginMs(ttlMs))
  })

  property.prop([ttl, fc.integer({ min: 1, max: 1000 }), fc.double({ min: 0, max: 0.999, noNaN: true })])(
    'is fought for with short pauses, never in a tight loop',
    (ttlMs, failures, random) => {
      const pause = beatRetryMs(ttlMs, failures, random)
      expect(pause).toBeGreaterThanOrEqual(10)
      expect(pause).toBeLessThanOrEqual(Math.max(10, Math.min(2000, ttlMs / 10)))
    },
  )
})
