import { describe, expect, test } from 'vitest'
import * as capacity from '../../bench/capacity.ts'
import type { Curve, Point } from '../../bench/curve.ts'

const costs: capacity.Costs = {
  call: 200e-6,
  lease: 10e-6,
  clientAlone: 300e-6,
  clientLease: 5e-6,
  beat: 100e-6,
  fenced: 200e-6,
  unfenced: 150e-6,
}

function curve(points: Readonly<Record<string, readonly (readonly [number, number])[]>>): Curve {
  const one = { median: 1, min: 1, max: 1 }
  const point = (size: number, serverCpuUs: number): Point => ({
    size,
    serverCpuUs,
    wallUs: 1,
    wall: one,
    clientCpuUs: size === 1 ? 300 : 5,
  })
  const series = Object.entries(points).map(([name, each]) => ({
    name,
    points: each.map(([size, cpu]) => point(size, cpu)),
  }))
  return { of: 'things', series }
}

const curves = {
  // 200 µs for the call and 10 µs for each lease.
  'scale-batch': curve({
    'acquire and release': [
      [1, 210],
      [1000, 10.2],
    ],
  }),
  'scale-holders': curve({ 'a heartbeat': [[1000, 100]] }),
  'scale-transactions': curve({ 'fenced by a lease each': [[16, 200]], 'not fenced': [[16, 150]] }),
}

describe('what one server carries', () => {
  test('begins with what was measured', () => {
    const found = capacity.costsOf(curves)!
    for (const [name, value] of Object.entries(costs)) {
      expect(found[name as keyof capacity.Costs]).toBeCloseTo(value, 9)
    }
  })

  test('is not told where something was not measured', () => {
    expect(capacity.costsOf({})).toBeUndefined()
    for (const name of Object.keys(curves)) {
      expect(capacity.costsOf({ ...curves, [name]: curve({}) })).toBeUndefined()
    }
  })

  test('of one sequence is a call per commit while the commit is slow, and as many grants as fit into the calls', () => {
    expect(capacity.grantsBySequence(costs, 1, 0.02)).toBeCloseTo(1 / 0.02021, 6)
    const [ten, hundred] = [10, 100].map((size) => capacity.grantsBySequence(costs, size, 0.02))
    expect(hundred! / ten!).toBeCloseTo(10, 0)
  })

  test('is what the CPU allows once the calls are large or the sequences many', () => {
    expect(capacity.grantsByCpu(costs, 1, 2)).toBeCloseTo(2 / 210e-6, 6)
    expect(capacity.grantsPerSecond(costs, 1, 0.02, 1, 2)).toBe(capacity.grantsBySequence(costs, 1, 0.02))
    expect(capacity.grantsPerSecond(costs, 1, 0.02, 1000, 2)).toBe(capacity.grantsByCpu(costs, 1, 2))
    expect(capacity.grantsPerSecond(costs, 2000, 1e-9, 1, 0.5)).toBe(capacity.grantsByCpu(costs, 2000, 0.5))
  })

  test('of one sequence is half a core or more from a batch on that takes as long as its commit', () => {
    const size = capacity.batchForCpu(costs, 0.005)
    const cores = (of: number): number =>
      capacity.grantsBySequence(costs, of, 0.005) * (capacity.batchCost(costs, of) / of)
    expect(cores(size)).toBeGreaterThanOrEqual(0.5)
    expect(cores(size - 1)).toBeLessThan(0.5)
    expect(capacity.batchForCpu(costs, 0.0001)).toBe(1)
  })

  test('of many sequences is all cores from a number on', () => {
    const enough = capacity.sequencesForCpu(costs, 0.005, 2)
    const grants = (sequences: number): number => capacity.grantsPerSecond(costs, 1, 0.005, sequences, 2)
    expect(grants(enough)).toBe(capacity.grantsByCpu(costs, 1, 2))
    expect(grants(enough - 1)).toBeLessThan(capacity.grantsByCpu(costs, 1, 2))
  })

  test('of holders is three heartbeats to a TTL', () => {
    expect(capacity.holdersByCpu(costs, 30, 2, 0.1)).toBeCloseTo((0.1 * 2 * 10) / 100e-6, 6)
    expect(capacity.holdersByFlush(30, 0.005)).toBeCloseTo(2000, 6)
  })

  test('of fenced transactions is bound by connections, then by the CPU', () => {
    expect(capacity.fencedPerSecond(costs, 1, 0.0048, 2)).toBeCloseTo(200, 6)
    expect(capacity.fencedPerSecond(costs, 16, 0.0048, 2)).toBeCloseTo(3200, 6)
    expect(capacity.fencedPerSecond(costs, 256, 0.0048, 2)).toBeCloseTo(2 / 200e-6, 6)
  })
})
