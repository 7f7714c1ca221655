import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { readOptions } from './options.ts'
import { reasonsFor, table } from './table.ts'

const pairs = (...args: string[]): string[] => {
  const options = readOptions(args)
  if (typeof options === 'string') throw new Error(options)
  return options.pairs.map(({ postgres, node }) => `${postgres}/${node}`)
}

test('without a choice, every PostgreSQL has its turn and every Node', () => {
  expect(pairs()).toEqual(['15/24', '16/24', '17/24', '18/24', '18/22', '18/26'])
})

test('one kind chosen, the other is what fencepost is developed with; both chosen, all their pairs', () => {
  expect(pairs('--postgres', '15,17')).toEqual(['15/24', '17/24'])
  expect(pairs('--node', '22')).toEqual(['18/22'])
  expect(pairs('--postgres', '15,16', '--node', '22,26')).toEqual(['15/22', '15/26', '16/22', '16/26'])
})

test('tests are named one after the other, and by no other way', () => {
  expect(readOptions(['--tests', 'test/lease', 'test/fence'])).toMatchObject({
    tests: ['test/lease', 'test/fence'],
  })
  expect(readOptions(['test/lease'])).toBe('what is "test/lease"?')
})

test.each([
  [['--postgres', '14'], 'PostgreSQL "14" is not in the matrix: 15, 16, 17, 18'],
  [['--node', '22,20'], 'Node "20" is not in the matrix: 22, 24, 26'],
  [['--bun', '1'], /Unknown option '--bun'/],
])('%j is refused', (args, why) => {
  expect(readOptions(args)).toEqual(typeof why === 'string' ? why : expect.stringMatching(why))
})

test('the table has a line for each pair', () => {
  const counts = { passed: 1200, failed: 0, skipped: 3, seconds: 61.4, reasons: [] }
  expect(
    table([
      { postgres: '15', node: '24', ...counts },
      { postgres: '18', node: '22', ...counts, passed: 7, failed: 11 },
    ]),
  ).toBe(
    [
      'PostgreSQL  Node  passed  failed  skipped  seconds',
      '        15    24    1200       0        3       61',
      '        18    22       7      11        3       61',
    ].join('\n'),
  )
})

test('why tests were skipped is told once for each reason', () => {
  const counts = { passed: 1, failed: 0, skipped: 2, seconds: 1 }
  expect(
    reasonsFor([
      { postgres: '15', node: '24', ...counts, reasons: ['no cron', 'too old'] },
      { postgres: '16', node: '24', ...counts, reasons: ['too old', 'too old'] },
    ]),
  ).toBe('\nskipped:\n  1 on 15/24: no cron\n  3 on 15/24, 16/24: too old')
  expect(reasonsFor([])).toBe('')
})

test('a pair on which no test has run has failed', async () => {
  const main = fileURLToPath(new URL('main.ts', import.meta.url))
  const args = [main, '--postgres', '18', '--tests', 'test/there/are/none']
  const env = { ...process.env, FENCEPOST_TEST_SUMMARY: '', FENCEPOST_TEST_FAILURES: '' }
  const run = promisify(execFile)(process.execPath, args, { env })
  await expect(run).rejects.toMatchObject({
    code: 1,
    stdout: expect.stringMatching(/18 +24 +0 +1 +0 +\d+\n$/),
  })
})
