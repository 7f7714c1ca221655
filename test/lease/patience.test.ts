import { describe, expect, test } from 'vitest'
import { Patience, PatienceOver } from '../../src/lease/patience.ts'
import { ManualClock } from '../support/manual-clock.ts'

const never = new AbortController().signal

function patience(clock: ManualClock, waitMs = Number.POSITIVE_INFINITY, signal = never): Patience {
  return new Patience(clock, waitMs, signal)
}

describe('patience', () => {
  test('ends with the signal’s reason when it aborts, also when it had aborted before', async () => {
    const abort = new AbortController()
    const waiting = patience(new ManualClock(), undefined, abort.signal)
    const sleeping = waiting.sleep(1000)
    abort.abort(new Error('stop'))
    await expect(sleeping).rejects.toThrow('stop')
    expect(waiting.isOver).toBe(true)
    await expect(patience(new ManualClock(), undefined, abort.signal).sleep(1)).rejects.toThrow('stop')
  })

  test('ends at its limit, and leaves no timer behind when it ends earlier', async () => {
    const clock = new ManualClock()
    const limited = patience(clock, 500)
    const sleeping = limited.sleep(10_000)
    sleeping.catch(() => {})
    await clock.advance(499)
    expect(limited.isOver).toBe(false)
    await clock.advance(1)
    await expect(sleeping).rejects.toThrow(PatienceOver)
    patience(clock, 500).done()
    expect(clock.timers).toBe(0)
  })
})
