import { fc, test as property } from '@fast-check/vitest'
import { describe, expect, test } from 'vitest'
import { durationMs, formatMs } from '../src/duration.ts'
import { InvalidArgumentError } from '../src/errors.ts'

const bounds = { minMs: 1, maxMs: 86_400_000 }

describe('a duration', () => {
  test.each([
    [250, 250],
    ['250ms', 250],
    ['30s', 30_000],
    ['5 m', 300_000],
    ['1.5h', 5_400_000],
    ['1d', 86_400_000],
    [0.4, 1],
    [{ total: () => 1500 }, 1500],
  ])('%o is %i ms', (value, expected) => {
    expect(durationMs('ttl', value, bounds)).toBe(expected)
  })

  test.each([
    0,
    -1,
    Number.NaN,
    Number.POSITIVE_INFINITY,
    1e308,
    2 ** 53,
    '5',
    '',
    ' 5s',
    '5s ',
    '-5s',
    '0x10',
    '1e3',
    '1e3s',
    '1m30s',
    '5 years',
    '5sec',
    null,
    undefined,
    true,
    {},
    [],
    5n,
    '99999999d',
    Symbol('s'),
  ])('%o is refused with the option, the value and the way out', (value) => {
    const refused = (): number => durationMs('ttl', value, bounds)
    expect(refused).toThrow(InvalidArgumentError)
    expect(refused).toThrow(/^ttl must be/)
    expect(refused).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT', argument: 'ttl', value }))
  })

  test.each([
    { toString: {} },
    {
      toString() {
        throw new Error('no')
      },
    },
    {
      total() {
        throw new Error('no')
      },
    },
    { total: () => Symbol('no') },
    new Proxy(
      {},
      {
        get() {
          throw new Error('no')
        },
        ownKeys() {
          throw new Error('no')
        },
      },
    ),
    Object.create(null) as object,
  ])('an object that defends itself is refused all the same (%#)', (value) => {
    expect(() => durationMs('ttl', value, bounds)).toThrow(InvalidArgumentError)
  })

  property.prop([fc.anything()])('is within its bounds or refused, whatever it is', (value) => {
    try {
      const ms = durationMs('ttl', value, bounds)
      expect(Number.isInteger(ms)).toBe(true)
      expect(ms).toBeGreaterThanOrEqual(bounds.minMs)
      expect(ms).toBeLessThanOrEqual(bounds.maxMs)
    } catch (error) {
      expect(error).toBeInstanceOf(InvalidArgumentError)
    }
  })

  property.prop([fc.integer({ min: 1, max: 86_400_000 })])('survives being written and read', (ms) => {
    expect(durationMs('ttl', formatMs(ms), bounds)).toBe(ms)
  })
})
