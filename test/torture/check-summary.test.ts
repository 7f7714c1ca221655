import { stripVTControlCharacters } from 'node:util'
import { expect, test } from 'vitest'
import { check, renderVerdict } from '../../torture/check/check.ts'
import { Story } from './check-story.ts'

test('a history is summed up in numbers, and what nobody was told is looked up in the log', () => {
  const story = new Story()
  story.join('c1', 'c2')
  story.acquire('c1', 'L', 1)
  story.trust('c1', 'L', 1)
  const written = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
  story.commit(story.write('c1', written, 'L', 1))
  story.tell('c1', written, 'unknown')
  const unwritten = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
  story.tell('c1', unwritten, 'unknown')
  story.fault('kill', 'begins', 'c1')
  story.fault('kill', 'ends', 'c1')

  // Waits for the killed client's time to be up, and 200 ms longer.
  story.at(900).beat('c2')
  const waiting = story.ask('c2', 'acquire', 'L')
  story.at(1200).grant('L', 2, 'c2', 'c1')
  story.tell('c2', waiting, 'won', 2)
  const late = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
  story.tell('c1', late, 'lost')
  story.at(1300).release('c2', 'L', 2)

  // Nobody asks for a while, then somebody does, and its grant is never told.
  story.at(1400).ask('c2', 'acquire', 'L')
  story.at(1700).grant('L', 3, 'c2')
  story.at(1750).trust('c2', 'L', 2, false)
  story.commit(story.holder('c2', { endedMs: 1750 }))

  const { violations, summary } = check(story.events)
  expect(violations).toEqual([])
  expect(summary).toEqual({
    events: story.events.length,
    durationUs: 1_750_000,
    clients: 2,
    leases: 1,
    transactions: 9,
    asked: { acquire: 3, release: 1, write: 3, close: 0 },
    grants: 3,
    releases: 1,
    takeOvers: 1,
    worstTakeOverUs: 200_000,
    longestGapUs: 300_000,
    writes: 1,
    refusedWrites: 1,
    unknown: {
      acquire: { happened: 1, hadNot: 0 },
      release: { happened: 0, hadNot: 0 },
      write: { happened: 1, hadNot: 1 },
      close: { happened: 0, hadNot: 0 },
    },
    samples: 2,
    faults: { kill: 1 },
  })
  const text = renderVerdict({ violations, summary })
  expect(text).toMatch(/^No violation\.\n/)
  expect(text).toContain('granted: 3, of them 1 take-over')
})

test('an empty history is no reason to fail', () => {
  const verdict = check([])
  expect(verdict.violations).toEqual([])
  expect(verdict.summary).toMatchObject({ events: 0, durationUs: 0, longestGapUs: 0, worstTakeOverUs: null })
  expect(renderVerdict(verdict)).toContain('0 events in 0.0 s')
})

test('releases and closes without an answer are looked up too', () => {
  const story = new Story()
  story.join('c1', 'c2')
  story.acquire('c1', 'L', 1)
  story.acquire('c2', 'M', 2)
  story.ask('c1', 'release', 'L', { token: 1 })
  story.free('L')
  story.ask('c2', 'release', 'M', { token: 2 })
  story.ask('c1', 'close')
  story.commit(story.holder('c1', { endedMs: 0 }))
  story.ask('c2', 'close')
  expect(check(story.events).summary.unknown).toMatchObject({
    release: { happened: 1, hadNot: 1 },
    close: { happened: 1, hadNot: 1 },
  })
})

test('a verdict shows the shortest piece of history of each kind, for a terminal', () => {
  const story = new Story()
  story.join('c1')
  story.acquire('c1', 'L', 1)
  const ops = [1, 2].map(() => story.at(100).ask('c1', 'write', 'L', { token: 1, row: 'r' }))
  story.at(1300).join('c2')
  const waiting = story.ask('c2', 'acquire', 'L')
  story.at(1400).grant('L', 2, 'c2', 'c1')
  story.tell('c2', waiting, 'won', 2)
  story.at(1500).commit(story.write('c1', ops[0]!, 'L', 1))
  story.at(1600).commit(story.write('c1', ops[1]!, 'L', 1))
  const text = renderVerdict(check(story.events))
  expect(stripVTControlCharacters(text)).toBe(text)
  expect(text.split('\n').every((line) => line.length <= 100)).toBe(true)
  expect(text).toMatchInlineSnapshot(`
    "stale-write: a write was committed after a newer term of its lease had been granted
      c1 wrote row r under L #1, after #2 had been granted to c2.
            0.000 ms  committed 3 at 0/3: lease L #1: holder c1, granted at 0.000 ms
          100.000 ms  c1 asks (2): write L #1, row r
         1400.000 ms  committed 9 at 0/9: lease L #2: holder c2, granted at 1400.000 ms
         1500.000 ms  committed 11 at 0/b: write under L #1 to row r (c1, 2)
      and 1 more of this kind

    2 violations.
    12 events in 1.6 s: 2 clients, 1 lease, 6 transactions, 0 samples of trust
    asked: 2 acquires, 2 writes, 0 releases, 0 closes
    granted: 2, of them 1 take-over, the slowest 100.0 ms after the former holder's time
    longest time without a holder while somebody asked: 100.0 ms
    written: 2, refused: 0
    without an answer, and found in the log: write 2 of 2
    faults: none"
  `)
})
