import { type Curve, curve } from '../../curve.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import type { Measure } from '../measure.ts'
import { powers } from './sizes.ts'
import type { Load } from '../../rounds.ts'

/** An operation is one lease of the batch. */
export const scaleBatch: Measure<Curve> = {
  name: 'scale-batch',
  group: 'scale',
  what: 'acquire and release of 1 to 10,000 leases in one call, cost of each ÷ that of one alone; less is better',
  async run(effort) {
    await using server = await BenchServer.start()
    const fencepost = await server.open()
    const sized = powers(10_000).map((size) => {
      const names = Array.from({ length: size }, (_, n) => `batch-${size}-${n}`)
      const run = async (_workers: number, forMs: number): Promise<Load> => {
        const latenciesMs: number[] = []
        const startedMs = performance.now()
        for (let beganMs = startedMs; beganMs - startedMs < forMs;) {
          const granted = await fencepost.acquireMany(names)
          if (granted.size !== size) throw new Error(`${granted.size} of ${size} leases were granted`)
          await Promise.all([...granted.values()].map((lease) => lease.release()))
          const endedMs = performance.now()
          latenciesMs.push(endedMs - beganMs)
          beganMs = endedMs
        }
        return {
          operations: latenciesMs.length * size,
          elapsedMs: performance.now() - startedMs,
          latenciesMs,
        }
      }
      return { size, workers: 1, contender: { name: String(size), server, run } }
    })
    return await curve('leases in a batch', { 'acquire and release': sized }, effort)
  },
}
