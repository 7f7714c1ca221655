import { describe, expect, test } from 'vitest'
import { RequestFailure } from '../../src/database/failure.ts'
import { Batcher } from '../../src/lease/batcher.ts'
import { settled } from '../support/manual-clock.ts'

/** A wire whose answers come when the test says so. */
class Wire {
  readonly calls: { readonly requests: number[]; answer(): void; fail(error: unknown): void }[] = []

  readonly send = (requests: number[]): Promise<string[]> => {
    const { promise, resolve, reject } = Promise.withResolvers<string[]>()
    this.calls.push({
      requests,
      answer: () => resolve(requests.map((request) => `answer ${request}`)),
      fail: reject,
    })
    return promise
  }
}

const itself = (request: number): number => request

describe('natural batching', () => {
  test('sends a request on its own at once, and all that gathered meanwhile in the next call', async () => {
    const wire = new Wire()
    const batcher = new Batcher(wire.send, itself)
    const first = batcher.add(1)
    await settled()
    const rest = [batcher.add(2), batcher.add(3), batcher.add(4)]
    await settled()
    expect(wire.calls.map((call) => call.requests)).toEqual([[1]])
    wire.calls[0]!.answer()
    expect(await first).toBe('answer 1')
    await settled()
    expect(wire.calls.map((call) => call.requests)).toEqual([[1], [2, 3, 4]])
    wire.calls[1]!.answer()
    expect(await Promise.all(rest)).toEqual(['answer 2', 'answer 3', 'answer 4'])
  })

  test('never has two calls on the wire', async () => {
    const wire = new Wire()
    const batcher = new Batcher(wire.send, itself, { maxSize: 2 })
    const all = Promise.all(Array.from({ length: 7 }, (_, index) => batcher.add(index)))
    for (let call = 0; call < 4; call += 1) {
      await settled()
      expect(wire.calls).toHaveLength(call + 1)
      wire.calls[call]!.answer()
    }
    expect(await all).toHaveLength(7)
  })

  test('sends two requests about the same in two calls, in their order', async () => {
    const wire = new Wire()
    const batcher = new Batcher(wire.send, (request) => request % 10)
    const all = Promise.all([1, 2, 11, 3, 21, 12].map((request) => batcher.add(request)))
    for (let call = 0; call < 3; call += 1) {
      await settled()
      wire.calls[call]!.answer()
    }
    await all
    expect(wire.calls.map((call) => call.requests)).toEqual([[1, 2, 3], [11, 12], [21]])
  })

  test('one bad request does not fail its neighbours', async () => {
    const calls: number[][] = []
    const batcher = new Batcher(async (requests: number[]) => {
      calls.push(requests)
      if (requests.includes(13))
        throw new RequestFailure('refused', Object.assign(new Error('bad'), { code: '22003' }))
      return requests
    }, itself)
    const outcomes = await Promise.allSettled([11, 12, 13, 14].map((request) => batcher.add(request)))
    expect(outcomes.map((outcome) => outcome.status)).toEqual([
      'fulfilled',
      'fulfilled',
      'rejected',
      'fulfilled',
    ])
    expect(calls.length).toBeLessThanOrEqual(5)
  })

  test.each([
    ['an unknown outcome', new RequestFailure('unknown', new Error('silence'))],
    [
      'a refusal of the holder',
      new RequestFailure('refused', Object.assign(new Error('gone'), { code: 'FP002' })),
    ],
  ])('%s is not sent again behind the back of the callers', async (_, failure) => {
    let calls = 0
    const batcher = new Batcher(async (): Promise<never[]> => {
      calls += 1
      throw failure
    }, itself)
    const outcomes = await Promise.allSettled([1, 2, 3].map((request) => batcher.add(request)))
    expect(outcomes.every((outcome) => outcome.status === 'rejected')).toBe(true)
    expect(calls).toBe(1)
  })

  test('tells when nothing waits and nothing is on the wire any more, once for each time', async () => {
    const wire = new Wire()
    let idle = 0
    const batcher = new Batcher(wire.send, itself, { onIdle: () => (idle += 1) })
    for (let turn = 1; turn <= 3; turn += 1) {
      const all = Promise.all([batcher.add(1), batcher.add(2)])
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      await settled()
      expect(idle).toBe(turn - 1)
      wire.calls.at(-1)!.answer()
      // oxlint-disable-next-line no-await-in-loop
      await all
      // oxlint-disable-next-line no-await-in-loop
      await settled()
      expect(idle).toBe(turn)
    }
  })
})

describe('a second call', () => {
  const upTo = (from: number, to: number): number[] =>
    Array.from({ length: to - from }, (_, index) => from + index)

  /** Forty requests: 16 that leave at once, and 24 that come while those are on the wire. */
  async function twoSteps(options: {
    crowd: number
    overlaps?: boolean
    second?: number
    onIdle?: () => void
  }) {
    const { crowd, overlaps = true, second = 24, onIdle = () => {} } = options
    const wire = new Wire()
    const batcher = new Batcher(wire.send, itself, { crowd: () => crowd, overlaps: () => overlaps, onIdle })
    const first = Promise.all(upTo(0, 16).map((request) => batcher.add(request)))
    await settled()
    const rest = Promise.allSettled(upTo(16, 16 + second).map((request) => batcher.add(request)))
    await settled()
    return { wire, batcher, first, rest }
  }

  test('leaves before the first is answered, where hardly anybody could join it until then', async () => {
    let idle = 0
    const { wire, first, rest } = await twoSteps({ crowd: 40, onIdle: () => (idle += 1) })
    expect(wire.calls.map((call) => call.requests)).toEqual([upTo(0, 16), upTo(16, 40)])
    wire.calls[0]!.answer()
    expect(await first).toEqual(upTo(0, 16).map((request) => `answer ${request}`))
    await settled()
    expect(idle).toBe(0)
    wire.calls[1]!.answer()
    expect(await rest).toEqual(
      upTo(16, 40).map((request) => ({ status: 'fulfilled', value: `answer ${request}` })),
    )
    await settled()
    expect(idle).toBe(1)
  })

  test.each([
    ['the wire takes one call at a time', { crowd: 40, overlaps: false }],
    ['many others are under way', { crowd: 100 }],
    ['few wait', { crowd: 30, second: 15 }],
  ])('waits where %s', async (_, options) => {
    const { wire, rest } = await twoSteps(options)
    expect(wire.calls).toHaveLength(1)
    wire.calls[0]!.answer()
    await settled()
    expect(wire.calls).toHaveLength(2)
    wire.calls[1]!.answer()
    await rest
  })

  test('is not followed by a third', async () => {
    const { wire, batcher, rest } = await twoSteps({ crowd: 40 })
    const late = Promise.all(upTo(40, 80).map((request) => batcher.add(request)))
    await settled()
    expect(wire.calls).toHaveLength(2)
    wire.calls[0]!.answer()
    await settled()
    expect(wire.calls.map((call) => call.requests.length)).toEqual([16, 24, 20])
    for (let call = 1; call < wire.calls.length; call += 1) {
      wire.calls[call]!.answer()
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      await settled()
    }
    expect(await late).toHaveLength(40)
    await rest
  })

  test('that fails leaves the first alone, and the other way round', async () => {
    for (const failing of [0, 1]) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      const { wire, first, rest } = await twoSteps({ crowd: 40 })
      wire.calls[failing]!.fail(new RequestFailure('unknown', new Error('silence')))
      wire.calls[1 - failing]!.answer()
      // oxlint-disable-next-line no-await-in-loop
      const [ofFirst] = await Promise.allSettled([first])
      // oxlint-disable-next-line no-await-in-loop
      const [ofRest] = await rest
      expect([ofFirst.status, ofRest!.status]).toEqual(
        failing === 0 ? ['rejected', 'fulfilled'] : ['fulfilled', 'rejected'],
      )
    }
  })

  test('of a crowd that goes on in step is its other half', async () => {
    const wire = new Wire()
    const batcher = new Batcher(wire.send, itself, { crowd: () => 64, overlaps: () => true })
    const all = Promise.all(upTo(0, 64).map((request) => batcher.add(request)))
    await settled()
    expect(wire.calls.map((call) => call.requests)).toEqual([upTo(0, 32), upTo(32, 64)])
    for (const call of wire.calls) call.answer()
    expect(await all).toEqual(upTo(0, 64).map((request) => `answer ${request}`))
  })
})
