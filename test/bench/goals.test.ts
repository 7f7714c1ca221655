import { describe, expect, test } from 'vitest'
import { goalTable } from '../../bench/goal-table.ts'
import { goals, judge, told } from '../../bench/goals.ts'
import type { Results } from '../../bench/results.ts'
import type { Figure } from '../../bench/rounds.ts'

function figure(contender: string, workers: number, perSecond: readonly number[]): Figure {
  return {
    contender,
    workers,
    perSecond,
    ratio: { median: 1, min: 1, max: 1 },
    p50Ms: 1,
    p99Ms: 1,
    clientCpuUs: 1,
  }
}

/** With so many times the floor's throughput at 64 workers. */
function leases(times: number): Results {
  const figures = [
    figure('floor', 64, [100, 100, 100]),
    figure('fencepost', 64, [90 * times, 100 * times, 110 * times]),
    figure('etcd3', 64, [10, 10, 10]),
  ]
  return { lease: { durability: {}, absent: [], figures } }
}

function verdict(results: Results, what: string, isQuick = false) {
  return judge(results, isQuick).find(({ goal }) => goal.what.startsWith(what))
}

const atSixtyFour = 'acquire + release ÷ floor, 64 workers'

describe('a goal', () => {
  test('has one bound, and says what it is about once', () => {
    for (const { atLeast, atMost } of goals)
      expect([atLeast, atMost].filter((bound) => bound !== undefined)).toHaveLength(1)
    expect(new Set(goals.map(({ what }) => what)).size).toBe(goals.length)
    expect(new Set(goals.map(({ number }) => number))).toEqual(new Set([1, 2, 3, 4, 5, 6, 7, 8]))
  })

  test('is more lenient in the quick run', () => {
    for (const { atLeast, atMost, quick } of goals) {
      if (quick === undefined) continue
      if (atLeast === undefined) expect(quick).toBeGreaterThan(atMost!)
      else expect(quick).toBeLessThan(atLeast)
    }
  })

  test('is reached by the median, not by the best round', () => {
    expect(verdict(leases(7), atSixtyFour)).toMatchObject({ isReached: true, bound: 7 })
    expect(verdict(leases(6.9), atSixtyFour)).toMatchObject({ isReached: false })
    expect(verdict(leases(6.9), atSixtyFour)!.figure!.max).toBeGreaterThan(7)
  })

  test('with an upper bound is reached below it', () => {
    const takeOver = (ms: number): Results => {
      const lateMs = { median: ms, min: 1, max: 900 }
      return { 'take-over': { ttlMs: 1000, ratio: lateMs, lateMs, questionsPerTtl: lateMs } }
    }
    expect(verdict(takeOver(50), 'crash take-over')!.isReached).toBe(true)
    expect(verdict(takeOver(51), 'crash take-over')!.isReached).toBe(false)
  })

  test('compares with another contender round by round', () => {
    expect(verdict(leases(2), 'acquire + release ÷ etcd3')).toMatchObject({
      figure: { median: 20, min: 18, max: 22 },
      isReached: true,
    })
  })

  test('that was not measured is neither reached nor missed', () => {
    expect(verdict({}, atSixtyFour)).toMatchObject({ isReached: undefined, figure: undefined })
    const absent: Results = { lease: { ...leases(1).lease!, figures: [figure('fencepost', 64, [1])] } }
    expect(verdict(absent, atSixtyFour)!.isReached).toBeUndefined()
  })

  test('of the quick run is held against its own bound, and the others are left out', () => {
    expect(verdict(leases(2.5), atSixtyFour, true)).toMatchObject({ isReached: true, bound: 0.5 })
    expect(verdict(leases(0.4), atSixtyFour, true)).toMatchObject({ isReached: false })
    expect(verdict(leases(1), 'acquire + release ÷ etcd3', true)).toBeUndefined()
  })
})

test('the quick run tells by CPU time whether the workers still share their calls, and only that one does', () => {
  const cpu = (clientCpuUs: number, serverCpuUs?: number): Results => {
    const [floor, own] = ['floor', 'fencepost'].map((name) => figure(name, 64, [1]))
    const figures = [
      { ...floor!, clientCpuUs: 200, serverCpuUs: 300 },
      { ...own!, clientCpuUs, ...(serverCpuUs === undefined ? {} : { serverCpuUs }) },
    ]
    return { lease: { durability: {}, absent: [], figures } }
  }
  const what = 'acquire + release, CPU time'
  expect(verdict(cpu(50, 30), what, true)).toMatchObject({ figure: { median: 6.25 }, isReached: true })
  expect(verdict(cpu(200, 300), what, true)).toMatchObject({ figure: { median: 1 }, isReached: false })
  // Where it cannot be read.
  expect(verdict(cpu(50), what, true)).toMatchObject({ isReached: undefined })
  expect(verdict(cpu(50, 30), what)).toBeUndefined()
})

test('of what a run has left out on purpose only former figures are told', () => {
  const shown = (results: Results, measures: readonly string[]): Set<string> =>
    new Set(told(judge(results), measures).map(({ goal }) => goal.measure))
  expect(shown({}, ['crowd'])).toEqual(new Set(['crowd']))
  expect(shown(leases(7), ['crowd'])).toEqual(new Set(['lease', 'crowd']))
  // A contender that this machine does not have is missing all the same.
  const absent = told(judge(leases(7)), ['lease']).find(({ goal }) => goal.what.includes('÷ redlock, '))
  expect(absent).toMatchObject({ isReached: undefined })
})

test('the table says of every goal what was measured', () => {
  const lines = goalTable(judge(leases(6.9))).split('\n')
  expect(lines).toHaveLength(goals.length + 1)
  const line = (text: string): string => lines.find((each) => each.includes(text))!
  expect(line('floor, 64 workers')).toMatch(/^ +1 .*≥ 7\.00 +6\.90 \(6\.21 … 7\.59\) +NOT REACHED$/)
  expect(line('÷ etcd3')).toMatch(/≥ 20\.0 +69\.0 \(62\.1 … 75\.9\) +reached$/)
  expect(line('crash take-over')).toMatch(/≤ 50\.0 +- +not measured$/)
})
