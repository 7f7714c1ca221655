import { afterEach, describe, expect, test, vi } from 'vitest'
import { systemClock } from '../src/clock.ts'

afterEach(() => {
  vi.restoreAllMocks()
  vi.useRealTimers()
})

describe('the system clock', () => {
  test('does not move when the wall clock is set', () => {
    const before = systemClock.monotonicMs()
    vi.spyOn(Date, 'now').mockReturnValue(Date.now() + 3_600_000)
    expect(systemClock.monotonicMs() - before).toBeLessThan(60_000)
    vi.spyOn(Date, 'now').mockReturnValue(Date.now() - 7_200_000)
    expect(systemClock.monotonicMs()).toBeGreaterThanOrEqual(before)
  })

  test('never fires a timer early, or at once because the delay is too long for one', () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
    const fired: string[] = []
    systemClock.after(2 ** 31 + 1000, () => fired.push('month'))
    const cancel = systemClock.after(10, () => fired.push('cancelled'))
    cancel()
    vi.advanceTimersByTime(1000)
    expect(fired).toEqual([])
    vi.clearAllTimers()
  })

  test('fires a timer when its time has passed, not a moment before', async () => {
    for (let turn = 0; turn < 30; turn += 1) {
      const due = systemClock.monotonicMs() + 3.3
      await new Promise<void>((resolve) => systemClock.after(3.3, resolve))
      expect(systemClock.monotonicMs()).toBeGreaterThanOrEqual(due)
    }
  })
})
