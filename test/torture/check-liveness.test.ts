import { describe, expect, test } from 'vitest'
import { type LivenessBounds, type ViolationKind, checkLiveness } from '../../torture/check/check.ts'
import { Story, kindsOf } from './check-story.ts'

interface Case {
  readonly kind: ViolationKind
  readonly fact: string
  readonly tell: (story: Story, isBad: boolean) => void
  /** When the last fault was over. Default: at once. */
  readonly healedMs?: number
}

/** 2.5 s in all. */
const bounds = { ttlUs: 1_000_000, longestTransactionUs: 1_000_000, retryUs: 500_000 }

const cases: readonly Case[] = [
  {
    kind: 'not-granted',
    fact: 'a free lease is granted too late',
    tell(story, isBad) {
      story.join('c1', 'c2')
      const op = story.at(100).ask('c2', 'acquire', 'L')
      story.at(isBad ? 2601 : 2600).grant('L', 1, 'c2')
      story.tell('c2', op, 'won', 1)
    },
  },
  {
    kind: 'not-granted',
    fact: 'a lease that was given back is granted too late',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const op = story.at(100).ask('c2', 'acquire', 'L')
      story.at(200).release('c1', 'L', 1)
      story.at(isBad ? 2701 : 2700).grant('L', 2, 'c2')
      story.tell('c2', op, 'won', 2)
    },
  },
  {
    kind: 'not-granted',
    fact: 'a lease whose holder has died is granted too late',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.at(500).beat('c1')
      const op = story.at(600).ask('c2', 'acquire', 'L')
      story.at(isBad ? 4001 : 4000).grant('L', 2, 'c2', 'c1')
      story.tell('c2', op, 'won', 2)
    },
  },
  {
    kind: 'not-granted',
    fact: 'a lease is granted to nobody',
    tell(story, isBad) {
      story.join('c1', 'c2')
      const op = story.at(100).ask('c1', 'acquire', 'L')
      if (!isBad) {
        story.at(200).grant('L', 1, 'c1')
        story.tell('c1', op, 'won', 1)
      }
      for (let ms = 500; ms < 5000; ms += 500) story.at(ms).beat('c1')
    },
  },
  {
    kind: 'not-granted',
    fact: 'somebody tries again and again',
    tell(story, isBad) {
      story.join('c1')
      for (let ms = 100; ms <= (isBad ? 2900 : 2500); ms += 400) {
        const op = story.at(ms).ask('c1', 'acquire', 'L')
        story.tell('c1', op, 'busy')
      }
    },
  },
  {
    kind: 'not-granted',
    fact: 'it was asked for without longer pauses',
    tell(story, isBad) {
      story.join('c1')
      for (let ms = 100; ms <= 6000; ms += isBad ? 500 : 501) {
        const op = story.at(ms).ask('c1', 'acquire', 'L')
        story.tell('c1', op, 'busy')
      }
    },
  },
  {
    kind: 'not-granted',
    fact: 'the time counts from when the faults were over',
    healedMs: 5000,
    tell(story, isBad) {
      story.join('c1')
      const op = story.at(100).ask('c1', 'acquire', 'L')
      story.at(isBad ? 7501 : 7500).grant('L', 1, 'c1')
      story.tell('c1', op, 'won', 1)
    },
  },
  {
    kind: 'not-granted',
    fact: 'the time counts from when the lease was to be available',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.commit(story.lease('L', { availableMs: isBad ? 1999 : 2000 }))
      story.at(100).release('c1', 'L', 1)
      const op = story.ask('c2', 'acquire', 'L')
      story.at(4500).grant('L', 2, 'c2')
      story.tell('c2', op, 'won', 2)
    },
  },
  {
    kind: 'not-granted',
    fact: 'the only one who asks was killed',
    tell(story, isBad) {
      story.join('c1')
      story.ask('c1', 'acquire', 'L')
      story.at(1000).fault(isBad ? 'pause' : 'kill', 'begins', 'c1')
      story.fault(isBad ? 'pause' : 'kill', 'ends', 'c1')
      story.at(2600).join('c3')
    },
  },
  {
    kind: 'not-granted',
    fact: 'the only one who asks stays cut off',
    tell(story, isBad) {
      story.join('c1')
      story.ask('c1', 'acquire', 'L')
      story.at(1000).fault('black-hole', 'begins', 'c0 c1')
      if (isBad) story.fault('black-hole', 'ends', 'c0 c1')
      story.at(2600).fault('pause', 'begins', 'c7')
    },
  },
  {
    kind: 'not-told',
    fact: 'a waiter hears of its grant too late',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const op = story.at(100).ask('c2', 'acquire', 'L')
      story.at(200).ask('c1', 'release', 'L', { token: 1 })
      story.tell('c1', 2, 'won', 1)
      story.grant('L', 2, 'c2')
      story.at(isBad ? 2701 : 2700).tell('c2', op, 'won', 2)
    },
  },
  {
    kind: 'not-told',
    fact: 'a waiter keeps a term alive that it never hears of',
    tell(story, isBad) {
      story.join('c2')
      story.at(100).ask('c2', 'acquire', 'L')
      story.at(200).grant('L', 1, 'c2')
      for (let ms = 500; ms <= (isBad ? 2000 : 1500); ms += 500) story.at(ms).beat('c2')
      story.at(2701).join('c3')
    },
  },
  {
    kind: 'never-answered',
    fact: 'a write is not answered',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.at(100).ask('c1', 'write', 'L', { token: 1, row: 'r' })
      if (!isBad) story.at(2000).tell('c1', op, 'lost')
      story.at(2601).trust('c1', 'L', 1, false)
    },
  },
  {
    kind: 'never-answered',
    fact: 'the history goes on for long enough to tell',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(100).ask('c1', 'release', 'L', { token: 1 })
      story.at(isBad ? 2601 : 2600).trust('c1', 'L', 1, false)
    },
  },
  {
    kind: 'never-answered',
    fact: 'the client that asked was killed',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(100).ask('c1', 'release', 'L', { token: 1 })
      story.at(200).fault('kill', 'begins', isBad ? 'c2' : 'c1')
      story.at(2601).join('c3')
    },
  },
  {
    kind: 'never-answered',
    fact: 'a client closes, and who waits there is not told',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const waiting = story.at(100).ask('c2', 'acquire', 'L')
      const closing = story.at(200).ask('c2', 'close')
      story.tell('c2', closing, 'won')
      if (!isBad) story.tell('c2', waiting, 'unknown')
      for (let ms = 500; ms <= 5000; ms += 500) story.at(ms).beat('c1')
    },
  },
  {
    kind: 'waiter-starved',
    fact: 'others who came later are granted the lease again and again',
    tell(story, isBad) {
      story.join('c1', 'c2')
      const waiting = story.ask('c1', 'acquire', 'L')
      story.acquire('c2', 'L', 1)
      for (let ms = 500; ms <= 3000; ms += 500) story.at(ms).beat('c2')
      story.release('c2', 'L', 1)
      for (let token = 2; token <= (isBad ? 12 : 11); token += 1) {
        story.at(3000 + token).acquire('c2', 'L', token)
        story.release('c2', 'L', token)
      }
      story.at(3100).tell('c1', waiting, 'busy')
    },
  },
]

describe('what hangs is condemned for one fact:', () => {
  test.each(cases)('$kind: $fact', ({ kind, tell, healedMs = 0 }) => {
    for (const isBad of [false, true]) {
      const story = new Story()
      tell(story, isBad)
      const all: LivenessBounds = { ...bounds, healedAtUs: story.us(healedMs) }
      expect(checkLiveness(story.events, all).map((violation) => violation.kind)).toEqual(isBad ? [kind] : [])
      // Whatever hangs, it is safe.
      expect(kindsOf(story)).toEqual([])
    }
  })

  test('clients that are said to be gone need not go on', () => {
    const story = new Story()
    story.join('c1')
    story.acquire('c1', 'L', 1)
    story.at(100).ask('c1', 'release', 'L', { token: 1 })
    story.at(9000).trust('c1', 'L', 1, false)
    const all = { ...bounds, healedAtUs: story.us(0) }
    expect(checkLiveness(story.events, all)).toHaveLength(1)
    expect(checkLiveness(story.events, { ...all, gone: ['c1'] })).toEqual([])
  })

  test('what a client that is cut off has asked for does not count, also where it is told at the end', () => {
    const story = new Story()
    story.join('c1', 'c2')
    const [waiting, alone] = ['L', 'M'].map((lease) => story.ask('c1', 'acquire', lease))
    story.acquire('c2', 'L', 1)
    for (let ms = 500; ms <= 3000; ms += 500) story.at(ms).beat('c2')
    story.release('c2', 'L', 1)
    for (let token = 2; token <= 12; token += 1) {
      story.at(3000 + token).acquire('c2', 'L', token)
      story.release('c2', 'L', token)
    }
    for (const op of [waiting!, alone!]) story.at(3100).tell('c1', op, 'busy')
    const all = { ...bounds, healedAtUs: story.us(0) }
    expect(checkLiveness(story.events, all).map(({ kind }) => kind)).toEqual([
      'not-granted',
      'waiter-starved',
    ])
    expect(checkLiveness(story.events, { ...all, gone: ['c1'] })).toEqual([])
  })
})
