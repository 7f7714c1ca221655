import { describe, expect, test } from 'vitest'
import { Line, type Turn } from '../../src/lease/line.ts'
import { Patience, PatienceOver } from '../../src/lease/patience.ts'
import { ManualClock, settled } from '../support/manual-clock.ts'

const never = new AbortController().signal

function patience(clock: ManualClock, waitMs = Number.POSITIVE_INFINITY, signal = never): Patience {
  return new Patience(clock, waitMs, signal)
}

function newLine(): Line<string> {
  return new Line()
}

describe('the line of one process', () => {
  test('is first come, first served', async () => {
    const line = newLine()
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
    const line = newLine()
    line.tryEnter('a')
    expect(line.tryEnter('b')).toBeDefined()
  })

  test('leaving twice does not take the turn from the next one', async () => {
    const line = newLine()
    const turn = line.tryEnter('a')!
    const next = line.enter('a', patience(new ManualClock()))
    turn.leave()
    turn.leave()
    await next
    expect(line.tryEnter('a')).toBeUndefined()
  })

  test('a waiter that gives up leaves no gap', async () => {
    const line = newLine()
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
    const line = newLine()
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

  test('is the next one’s turn when the first has been granted the lease, but not for who only tries', async () => {
    const line = newLine()
    const turn = line.tryEnter('a')!
    const over = line.hold('a')
    turn.leave()
    expect(line.tryEnter('a')).toBeUndefined()
    const next = await line.enter('a', patience(new ManualClock()))
    next.leave()
    expect(line.tryEnter('a')).toBeUndefined()
    expect(line.tryEnter('a', true)).toBeUndefined()
    over()
    over()
    expect(line.tryEnter('a')).toBeDefined()
  })

  test('lets who barges ask beside whoever has the turn, without taking it', async () => {
    const line = newLine()
    const turn = line.tryEnter('a')!
    line.tryEnter('a', true)!.leave()
    expect(line.tryEnter('a')).toBeUndefined()
    turn.leave()
    expect(line.tryEnter('a')).toBeDefined()
  })

  test('knows who stands in the way, until this process has the lease itself', () => {
    const line = newLine()
    const turn = line.tryEnter('a')!
    const contender = {
      isInLine: false,
      label: 'somebody',
      host: undefined,
      pid: undefined,
      since: undefined,
      remainingMs: 1,
    }
    expect(line.contender('a')).toBeUndefined()
    turn.isAnswered(contender)
    expect(line.contender('a')).toBe(contender)
    line.hold('a')
    expect(line.contender('a')).toBeUndefined()
  })

  test('hands what the first one leaves to the next, and keeps the turn when there is none', async () => {
    const line = newLine()
    const turn = line.tryEnter('a')!
    expect(turn.leaveTo('place')).toBe(false)
    expect(line.tryEnter('a')).toBeUndefined()
    const next = line.enter('a', patience(new ManualClock()))
    expect(turn.leaveTo('place')).toBe(true)
    expect((await next).legacy).toBe('place')
    expect(turn.leaveTo('again')).toBe(false)
  })

  test('gives the turn of one who gave up in the moment it came to whoever clears up', async () => {
    const left: Turn<string>[] = []
    const line = new Line<string>((turn) => void left.push(turn))
    const turn = line.tryEnter('a')!
    const abort = new AbortController()
    const giving = line.enter('a', patience(new ManualClock(), undefined, abort.signal))
    giving.catch(() => {})
    abort.abort(new Error('enough'))
    turn.leaveTo('place')
    await expect(giving).rejects.toThrow('enough')
    await settled()
    expect(left.map(({ legacy }) => legacy)).toEqual(['place'])
  })
})
