import { expect, test } from 'vitest'
import { cut, fitted, harmlessText, terminalWidth, widthOf } from '../../src/cli/fit.ts'
import { asTable } from '../../src/cli/table.ts'

const rows = [
  ['LEASE', 'TOKEN', 'HOLDER'],
  ['a-lease-with-a-long-name', '7', 'short'],
  ['b', '12345', 'a-holder-with-a-very-long-label'],
]

test('a table that fits is not touched, and one without a width never is', () => {
  expect(fitted(rows, 200, 2)).toEqual(rows)
  expect(fitted(rows, undefined, 2)).toEqual(rows)
})

test('the widest columns give first, and every line fits', () => {
  for (const width of [60, 50, 40, 30]) {
    const table = asTable(rows[0]!, rows.slice(1), ['left', 'right', 'left'], width)
    for (const line of table.split('\n')) expect(widthOf(line)).toBeLessThanOrEqual(width)
    expect(table).toContain('12345')
  }
  expect(fitted(rows, 50, 2)[2]).toEqual(
    ['b', '12345', 'a-holder-with-a-very-…'].map((cell) => expect.stringContaining(cell.slice(0, 5))),
  )
})

test('no column is cut to nothing, however narrow the terminal is', () => {
  expect(fitted(rows, 1, 2)).toEqual([
    ['LEASE', 'TOKEN', 'HOLDER'],
    ['a-lea…', '7', 'short'],
    ['b', '12345', 'a-hol…'],
  ])
})

test('what is wide on a terminal counts twice, and what has no width does not count', () => {
  expect(widthOf('日本')).toBe(4)
  expect(widthOf('e\u0301')).toBe(1)
  expect(widthOf('🚀')).toBe(2)
  expect(cut('日本語日本語', 6)).toBe('日本…')
  expect(cut('abcdef', 6)).toBe('abcdef')
  expect(cut('abcdefg', 6)).toBe('abcde…')
})

test('control characters in what others have written cannot move the cursor', () => {
  expect(harmlessText('a\u001b[2Jb\nc')).toBe('a\ufffd[2Jb\ufffdc')
  expect(asTable(['LEASE'], [['a\u001b[2Jb']], ['left'])).toBe('LEASE\na\ufffd[2Jb')
})

test('only a terminal that tells its width has one', () => {
  expect(terminalWidth({ isTTY: true, columns: 80 })).toBe(80)
  expect(terminalWidth({ columns: 80 })).toBeUndefined()
  expect(terminalWidth({ isTTY: true, columns: 0 })).toBeUndefined()
  expect(terminalWidth({ isTTY: true })).toBeUndefined()
})
