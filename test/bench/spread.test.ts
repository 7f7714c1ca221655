import { describe, expect, test } from 'vitest'
import { median, number, quantile, ratios, shown, spread } from '../../bench/spread.ts'

describe('what is told of many rounds', () => {
  test('the median is the middle value, whatever the order', () => {
    expect(median([9, 1, 5])).toBe(5)
    expect(median([10, 2, 9, 1])).toBe(5.5)
    expect(median([7])).toBe(7)
  })

  test('no value has no median', () => {
    expect(() => median([])).toThrow('nothing was measured')
    expect(() => quantile([], 0.5)).toThrow('nothing was measured')
  })

  test('a quantile is a value that was measured', () => {
    const values = Array.from({ length: 200 }, (_, index) => 200 - index)
    expect(quantile(values, 0.5)).toBe(100)
    expect(quantile(values, 0.99)).toBe(198)
    expect(quantile(values, 1)).toBe(200)
    expect(quantile([3], 0.99)).toBe(3)
  })

  test('the values are left in their order', () => {
    const values = [3, 1, 2]
    median(values)
    quantile(values, 0.5)
    expect(values).toEqual([3, 1, 2])
  })

  test('a ratio is one of the same round', () => {
    // The median of the ratios is not the ratio of the medians.
    const ratio = spread(ratios([10, 20, 90], [10, 40, 30]))
    expect(ratio).toEqual({ median: 1, min: 0.5, max: 3 })
    expect(shown(ratio)).toBe('1.00 (0.50 … 3.00)')
  })

  test.each([
    [0.123, '0.12'],
    [9.994, '9.99'],
    [12.34, '12.3'],
    [1234.5, '1235'],
    [-12.34, '-12.3'],
  ])('%d is shown as %s', (value, text) => {
    expect(number(value)).toBe(text)
  })
})
