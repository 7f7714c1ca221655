import { describe, expect, test } from 'vitest'
import { type Contender, interleave, load } from '../../bench/rounds.ts'

/** Pretends to have done so many operations in a second, another number in each round. */
function pretender(name: string, perRound: readonly number[], log: string[], counts?: number[]): Contender {
  let round = 0
  return {
    name,
    server: { cpuMs: () => undefined },
    ...(counts === undefined ? {} : { counts }),
    async run(workers) {
      log.push(`${name}${workers}`)
      const operations = perRound[round++ % perRound.length]!
      return { operations, elapsedMs: 1000, latenciesMs: [1, 2, 3], clientCpuMs: operations / 10 }
    },
  }
}

const effort = { rounds: 3, forMs: 1, isQuick: false }

describe('contenders side by side', () => {
  test('take turns, and the first round does not count', async () => {
    const log: string[] = []
    const figures = await interleave(
      [pretender('a', [1, 10, 20, 40], log), pretender('b', [100, 20, 60, 40], log)],
      [8],
      effort,
    )
    expect(log.join(' ')).toBe('a8 b8 a8 b8 a8 b8 a8 b8')
    expect(figures.map(({ contender, perSecond, ratio }) => ({ contender, perSecond, ratio }))).toEqual([
      { contender: 'a', perSecond: [10, 20, 40], ratio: { median: 1, min: 1, max: 1 } },
      { contender: 'b', perSecond: [20, 60, 40], ratio: { median: 2, min: 1, max: 3 } },
    ])
  })

  test('costs are those of an operation, and unknown ones stay unknown', async () => {
    const [figure] = await interleave([pretender('a', [50], [])], [1], effort)
    expect(figure).toMatchObject({ p50Ms: 2, p99Ms: 3, clientCpuUs: 100 })
    expect(figure!.serverCpuUs).toBeUndefined()
    expect(figure!.walBytes).toBeUndefined()
  })

  test('one that is not measured with so many workers stands aside', async () => {
    const log: string[] = []
    await interleave([pretender('a', [1], log), pretender('b', [1], log, [1])], [1, 512], {
      ...effort,
      rounds: 1,
    })
    expect(log.join(' ')).toBe('a1 b1 a1 b1 a512 a512')
  })

  test('one that does nothing is no figure', async () => {
    await expect(interleave([pretender('a', [0], [])], [1], effort)).rejects.toThrow('a did nothing')
  })
})

test('every worker goes on until the time is over, and each of its steps is timed', async () => {
  const workers = new Set<number>()
  const { operations, latenciesMs, elapsedMs } = await load(3, 20, async (worker) => {
    workers.add(worker)
    await new Promise((resolve) => setImmediate(resolve))
  })
  expect(workers).toEqual(new Set([0, 1, 2]))
  expect(latenciesMs).toHaveLength(operations)
  expect(elapsedMs).toBeGreaterThanOrEqual(20)
  expect(operations).toBeGreaterThanOrEqual(3)
})
