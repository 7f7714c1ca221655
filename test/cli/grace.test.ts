import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { graceFor, watchRunningOut } from '../../src/cli/grace.ts'

test.for([
  [86_400_000, 5000],
  [30_000, 5000],
  [3000, 500],
  [1000, 166],
] as const)('the grace for a TTL of %i ms is %i ms', ([ttlMs, graceMs]) => {
  expect(graceFor(ttlMs, undefined)).toBe(graceMs)
})

test('a grace may be a third of the TTL, and nothing more', () => {
  expect(graceFor(3000, '1s')).toBe(1000)
  expect(graceFor(3000, '0s')).toBe(0)
  expect(() => graceFor(3000, '1001ms')).toThrow('got --grace 1001ms with --ttl 3s, which allows 1s')
})

describe('a lease that is watched with a grace of 500 ms', () => {
  let endsAt: number
  let told: string[]
  const lease = {
    get expiresInMs(): number {
      return Math.max(0, endsAt - Date.now())
    },
  }
  const watch = (): (() => void) =>
    watchRunningOut(lease, 500, {
      onTermDue: () => told.push(`TERM at ${Date.now()}`),
      onKillDue: () => told.push(`KILL at ${Date.now()}`),
    })

  beforeEach(() => {
    vi.useFakeTimers({ now: 0 })
    endsAt = 2000
    told = []
  })
  afterEach(() => {
    vi.useRealTimers()
  })

  test('is due for TERM when the grace still fits, and for KILL before it ends', () => {
    watch()
    vi.advanceTimersByTime(10_000)
    expect(told).toEqual(['TERM at 1450', 'KILL at 1950'])
  })

  test('is due later by what a heartbeat has bought', () => {
    watch()
    vi.advanceTimersByTime(1449)
    endsAt = 3000
    vi.advanceTimersByTime(10_000)
    expect(told).toEqual(['TERM at 2450', 'KILL at 2950'])
  })

  test('is due for KILL later, but for TERM only once, when a heartbeat comes between the two', () => {
    watch()
    vi.advanceTimersByTime(1500)
    endsAt = 3000
    vi.advanceTimersByTime(10_000)
    expect(told).toEqual(['TERM at 1450', 'KILL at 2950'])
  })

  test('is due for both at once when nobody could look in time', () => {
    endsAt = 40
    watch()
    expect(told).toEqual(['TERM at 0', 'KILL at 0'])
  })

  test('is due for nothing once it is lost or the watch has stopped', () => {
    const stop = watch()
    endsAt = 0
    vi.advanceTimersByTime(10_000)
    endsAt = 30_000
    watch()
    stop()
    expect(told).toEqual([])
    expect(vi.getTimerCount()).toBe(1)
  })
})
