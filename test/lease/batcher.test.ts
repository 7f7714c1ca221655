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
