import { describe, expect, test } from 'vitest'
import type { Refusal } from '../../src/lease/protocol.ts'
import { Line, Patience, PatienceOver, nextTryMs } from '../../src/lease/waiting.ts'
import { ManualClock, settled } from '../support/manual-clock.ts'

const never = new AbortController().signal

function patience(clock: ManualClock, waitMs = Number.POSITIVE_INFINITY, signal = never): Patience {
  return new Patience(clock, waitMs, signal)
}

describe('the line of one process', () => {
  test('is first come, first served', async () => {
    const line = new Line()
    const clock = new ManualClock()
    const turn = line.tryEnter('a')!
    const order: number[] = []
    const waiting = [1, 2, 3].map(async (number) => {
      const mine = await line.enter('a', patience(clock))
      order.push(number)
      mine.leave()
    })
    await settled()
    expect(order).toEqual([])
    expect(line.tryEnter('a')).toBeUndefined()
    turn.leave()
    await Promise.all(waiting)
    expect(order).toEqual([1, 2, 3])
    expect(line.tryEnter('a')).toBeDefined()
  })

  test('does not let one name wait for another', () => {
    const line = new Line()
    line.tryEnter('a')
    expect(line.tryEnter('b')).toBeDefined()
  })

  test('leaving twice does not take the turn from the next one', async () => {
    const line = new Line()
    const turn = line.tryEnter('a')!
    const next = line.enter('a', patience(new ManualClock()))
    turn.leave()
    turn.leave()
    await next
    expect(line.tryEnter('a')).toBeUndefined()
  })

  test('a waiter that gives up leaves no gap', async () => {
    const line = new Line()
    const clock = new ManualClock()
    const turn = line.tryEnter('a')!
    const giving = line.enter('a', patience(clock, 100))
    const staying = line.enter('a', patience(clock))
    giving.catch(() => {})
    await clock.advance(100)
    await expect(giving).rejects.toThrow(PatienceOver)
    turn.leave()
    expect(await staying).toBeDefined()
  })

  test('a waiter that gives up in the moment its turn comes passes it on', async () => {
    const line = new Line()
    const turn = line.tryEnter('a')!
    const abort = new AbortController()
    const giving = line.enter('a', patience(new ManualClock(), undefined, abort.signal))
    const staying = line.enter('a', patience(new ManualClock()))
    giving.catch(() => {})
    abort.abort(new Error('enough'))
    turn.leave()
    await expect(giving).rejects.toThrow('enough')
    expect(await staying).toBeDefined()
  })
})

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

describe('the next try', () => {
  const refusal = (reason: Refusal['reason'], remainingMs?: number): Refusal => ({
    reason,
    contender: { label: undefined, host: undefined, pid: undefined, since: undefined, remainingMs },
  })

  test('is just after the holder’s time is up, when that is soon', () => {
    expect(nextTryMs(refusal('held', 400), 1, 0)).toBe(401)
    expect(nextTryMs(refusal('held', 400), 1, 0.99)).toBeLessThan(410)
  })

  test('is a bounded poll when the holder has long to live, with jitter', () => {
    expect(nextTryMs(refusal('held', 60_000), 1, 0)).toBe(750)
    expect(nextTryMs(refusal('held', 60_000), 1, 1)).toBe(1000)
  })

  test('is a moment later when the lease is between two terms, and backs off', () => {
    const pauses = [1, 2, 3, 4, 5, 6].map((tries) => nextTryMs(refusal('draining'), tries, 1))
    expect(pauses).toEqual([25, 50, 100, 200, 250, 250])
  })
})
