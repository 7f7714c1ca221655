import { readFile } from 'node:fs/promises'
import { describe, expect, test } from 'vitest'
import type { Curve } from '../../bench/curve.ts'
import { figuresOf, verdictsOf } from '../../bench/figures.ts'
import { goals } from '../../bench/goals.ts'
import { blocksOf, fill } from '../../bench/performance-page.ts'
import type { Results, Run } from '../../bench/results.ts'
import { scaleCharts } from '../../bench/scale-charts.ts'

const run: Run = { at: '2030-01-02', cores: 2, node: '24.0.0', postgres: '18.4', rounds: 9, forMs: 1000 }

function takeOver(ms: number): Results {
  const spread = { median: ms, min: 1, max: 900 }
  return {
    runs: { 'take-over': run },
    'take-over': { ttlMs: 1000, ratio: spread, lateMs: spread, questionsPerTtl: spread },
  }
}

function curve(serverCpu?: number): Curve {
  const spread = (median: number) => ({ median, min: median / 2, max: median * 2 })
  const point = (size: number, ratio: number) => ({
    size,
    wallUs: 100,
    wall: spread(2 * ratio),
    clientCpuUs: 10,
    ...(serverCpu === undefined ? {} : { serverCpuUs: 50, serverCpu: spread(ratio) }),
  })
  return { of: 'leases', series: [{ name: 'taken', points: [point(1, 1), point(10, serverCpu ?? 1)] }] }
}

function late(figures: ReturnType<typeof figuresOf>) {
  return verdictsOf(figures).find(({ goal }) => goal.what.startsWith('crash take-over'))!
}

describe('the figures that are kept', () => {
  test('are those of a run, and the former ones of what it has not measured', () => {
    const kept = figuresOf(takeOver(40))
    const fresh = figuresOf({ 'scale-leases': curve(3), runs: { 'scale-leases': run } }, kept)
    expect(late(fresh)).toMatchObject({ figure: { median: 40 }, isReached: true })
    expect(Object.keys(fresh.charts)).toEqual(['take-over'])
    expect(Object.keys(fresh.curves)).toEqual(['scale-leases'])
    expect(Object.keys(fresh.runs)).toEqual(['take-over', 'scale-leases'])
  })

  test('give way to those of a new run', () => {
    const fresh = figuresOf(takeOver(60), figuresOf(takeOver(40)))
    expect(late(fresh)).toMatchObject({ figure: { median: 60 }, isReached: false })
    expect(fresh.charts['take-over']!.groups[0]!.bars[0]!.value).toBe(60)
  })

  test('do not outlive their goal', () => {
    const kept = figuresOf(takeOver(40))
    const stale = { ...kept, goals: { ...kept.goals, 'what was wanted once': kept.goals[goals[0]!.what]! } }
    expect(Object.keys(figuresOf({}, stale).goals)).toEqual(Object.keys(kept.goals))
  })
})

describe('the charts of scale', () => {
  test('show the CPU time of the server, and the time that passed', () => {
    const charts = scaleCharts(figuresOf({ 'scale-leases': curve(3) }))
    expect(charts['scale-cpu']!.panels[0]!.lines[0]!.points[1]).toEqual({ x: 10, y: 3, min: 1.5, max: 6 })
    expect(charts['scale-wall']!.panels[0]!.lines[0]!.points[1]).toEqual({ x: 10, y: 6, min: 3, max: 12 })
  })

  test('leave the CPU time out where it could not be read, and are not drawn from nothing', () => {
    expect(Object.keys(scaleCharts(figuresOf({ 'scale-leases': curve() })))).toEqual(['scale-wall'])
    expect(scaleCharts(figuresOf({}))).toEqual({})
  })
})

describe('the page', () => {
  const block = (name: string, content: string): string =>
    `<!-- figures: ${name} -->\n${content}<!-- end of figures -->`

  test('gets its blocks written anew, and nothing else', () => {
    const page = `a\n${block('one', '')}\nb\n${block('two', 'old | figures\n')}\nc\n`
    const filled = `a\n${block('one', '\n1\n\n')}\nb\n${block('two', '\n2\n\n')}\nc\n`
    expect(fill(page, { one: '1', two: '2' })).toBe(filled)
    expect(fill(filled, { one: '1', two: '2' })).toBe(filled)
  })

  test('must have a place for every block, and none for others', () => {
    expect(() => fill(block('one', ''), { one: '1', two: '2' })).toThrow('no place for the figures "two"')
    expect(() => fill(block('one', '') + block('two', ''), { one: '1' })).toThrow('figures "two"')
  })

  test('has a place for every block there is', async () => {
    const page = await readFile(new URL('../../docs/performance.md', import.meta.url), 'utf8')
    const blocks = blocksOf(figuresOf({}), verdictsOf(figuresOf({})))
    expect(fill(page, blocks)).toContain('Not measured yet.')
  })

  test('tells of every goal what was measured, when and how', () => {
    const figures = figuresOf(takeOver(60))
    const { goals: table } = blocksOf(figures, verdictsOf(figures))
    expect(table).toContain(
      'Measured on 2030-01-02, 2 cores, Node 24.0.0, PostgreSQL 18.4, 9 rounds of 1000 ms.',
    )
    expect(table).toContain(
      '| 5 | crash take-over, ms after the TTL has ended | ≤ 50.0 | 60.0 (1.00 … 900) | **no** |',
    )
    expect(table).toMatch(/\| 7 \| start of a service .* \| – \| not measured \|/)
  })

  test('says which runs were not alike', () => {
    const results = { ...takeOver(1), runs: { 'take-over': run, crowd: { ...run, rounds: 3 } } }
    const figures = figuresOf(results)
    const { goals: table } = blocksOf(figures, verdictsOf(figures))
    expect(table).toContain('take-over: 2030-01-02, 2 cores')
    expect(table).toContain('crowd: 2030-01-02, 2 cores, Node 24.0.0, PostgreSQL 18.4, 3 rounds')
  })
})
