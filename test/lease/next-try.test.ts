import { expect, test } from 'vitest'
import { nextTryMs } from '../../src/lease/next-try.ts'
import type { Refusal } from '../../src/lease/protocol.ts'

const refusal = (reason: Refusal['reason'], againMs: number, ticket?: string): Refusal => ({
  reason,
  againMs,
  ticket,
  contender: {
    isInLine: false,
    label: undefined,
    host: undefined,
    pid: undefined,
    since: undefined,
    remainingMs: againMs,
  },
})
const inLine = { ttlMs: 30_000, stands: true, isListening: true, tries: 1, random: 0, nowMs: undefined }
const deaf = { ...inLine, isListening: false }
const group = { ...deaf, stands: false }

test('is just after the time when it may come free by itself, when that is soon', () => {
  for (const situation of [inLine, deaf, group]) {
    expect(nextTryMs(refusal('held', 400, '7'), situation)).toBe(401)
    expect(nextTryMs(refusal('not_yet', 400, '7'), { ...situation, random: 0.99 })).toBeLessThan(410)
  }
})

test('is at most twice in a TTL for who is woken', () => {
  expect(nextTryMs(refusal('held', 3_600_000, '7'), inLine)).toBe(22_500)
  expect(nextTryMs(refusal('queued', 3_600_000, '7'), { ...inLine, random: 1 })).toBe(30_000)
})

test('is a bounded poll for who is not woken, with jitter', () => {
  for (const situation of [deaf, group]) {
    expect(nextTryMs(refusal('held', 60_000, '7'), situation)).toBe(750)
    expect(nextTryMs(refusal('held', 60_000, '7'), { ...situation, random: 1 })).toBe(1000)
  }
})

test('is a moment later when the lease is between two terms, and backs off', () => {
  const pauses = [1, 2, 3, 4, 5, 6].map((tries) =>
    nextTryMs(refusal('draining', 0, '7'), { ...inLine, tries, random: 1 }),
  )
  expect(pauses).toEqual([25, 50, 100, 200, 400, 800])
  expect(nextTryMs(refusal('draining', 0, '7'), { ...inLine, tries: 50, random: 1 })).toBe(1000)
})

test('is not a moment later for who stands behind somebody else', () => {
  expect(nextTryMs(refusal('draining', 9000, '7'), inLine)).toBe(9001)
})

test('is a moment later for who was not let into the line, because the lease was just changing hands', () => {
  expect(nextTryMs(refusal('held', 9000), { ...inLine, random: 1 })).toBe(25)
  expect(nextTryMs(refusal('held', 9000), { ...group, random: 1 })).toBe(1000)
})

test('is the same moment for all places of a process whose time comes at about the same time, never a later one', () => {
  const ends = (againMs: number, of: { isListening: boolean; stands: boolean; ttlMs: number }) =>
    [0, 111, 222.5, 90_333].map((nowMs) => {
      const random = (nowMs % 7) / 7
      const alone = nextTryMs(refusal('held', againMs, '7'), { ...inLine, ...of, random })
      const together = nextTryMs(refusal('held', againMs, '7'), { ...inLine, ...of, random, nowMs })
      return { ms: nowMs + together, earlierMs: alone - together }
    })
  for (const [againMs, of, stepMs] of [
    [25_000, inLine, 512],
    [3_600_000, inLine, 512],
    [60_000, deaf, 128],
  ] as const) {
    const [first, ...others] = ends(againMs, of)
    for (const { ms, earlierMs } of others) {
      const steps = (ms - first!.ms) / stepMs
      expect(steps).toBeCloseTo(Math.round(steps), 6)
      expect(earlierMs).toBeGreaterThanOrEqual(0)
      expect(earlierMs).toBeLessThan(stepMs)
    }
  }
})

test('is exact when the holder may be dead in a moment', () => {
  expect(nextTryMs(refusal('held', 1900, '7'), { ...inLine, nowMs: 12_345 })).toBe(1901)
  expect(nextTryMs(refusal('held', 400, '7'), { ...deaf, nowMs: 12_345 })).toBe(401)
})
