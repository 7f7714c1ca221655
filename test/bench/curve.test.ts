import { expect, test, vi } from 'vitest'
import { curve } from '../../bench/curve.ts'
import type { Contender } from '../../bench/rounds.ts'

/** Takes so much CPU time, and wall-clock time, for an operation, in each of its turns; the first turn is not counted. */
function contender(order: string[], name: string, cpuMs: readonly number[]): Contender {
  let used = 0
  let turn = 0
  return {
    name,
    server: { cpuMs: () => used },
    run: () => {
      order.push(name)
      const its = cpuMs[turn]!
      turn += 1
      used += its
      const elapsedMs = 2 * its
      return Promise.resolve({ operations: 1, elapsedMs, latenciesMs: [elapsedMs] })
    },
  }
}

test('a curve compares each size with the smallest of the same round, and all sizes take turns', async () => {
  using _ = vi.spyOn(console, 'log').mockImplementation(() => {})
  const order: string[] = []
  const one = contender(order, 'one', [9, 1, 10, 100])
  const ten = contender(order, 'ten', [9, 2, 30, 400])
  const sized = [
    { size: 1, workers: 1, contender: one },
    { size: 10, workers: 1, contender: ten },
  ]
  const drawn = await curve('things', { taken: sized }, { rounds: 3, forMs: 1000, isQuick: false })
  expect(order.join(' ')).toBe('one ten one ten one ten one ten')
  const [first, second] = drawn.series[0]!.points
  expect(first!.serverCpu).toEqual({ median: 1, min: 1, max: 1 })
  const ratio = { median: expect.closeTo(3, 9), min: expect.closeTo(2, 9), max: expect.closeTo(4, 9) }
  expect(second).toMatchObject({ serverCpu: ratio, wall: ratio })
  expect(second!.serverCpuUs).toBeCloseTo(30_000, 3)
  expect(second!.wallUs).toBeCloseTo(60_000, 3)
})
