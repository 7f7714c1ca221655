import { Child } from '../../child.ts'
import type { Order, Work } from '../../children/worker.ts'
import { type Curve, curve } from '../../curve.ts'
import type { Load } from '../../rounds.ts'
import { BenchServer } from '../../servers/bench-server.ts'
import type { Measure } from '../measure.ts'

const counts = [1, 3, 10, 32]

/** Real processes, all of them there all the time; those whose turn it is not only beat. */
export const scaleProcesses: Measure<Curve> = {
  name: 'scale-processes',
  group: 'scale',
  what: 'acquire and release of a lease of its own by each of 1 to 32 processes at once, cost ÷ that of one; less is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const children: Child[] = []
    while (children.length < counts.at(-1)!) {
      children.push(closing.use(await Child.start('worker', [server.url, children.length])))
    }
    const turn = (order: Order) =>
      counts.map((size) => ({
        size,
        workers: size,
        contender: {
          name: String(size),
          server,
          async run(workers: number, forMs: number): Promise<Load> {
            const startedMs = performance.now()
            const works = await Promise.all(
              children.slice(0, workers).map((child) => child.ask<Work>(`${order} ${forMs}`)),
            )
            const latenciesMs = works.flatMap((work) => work.latenciesMs)
            return {
              operations: latenciesMs.length,
              elapsedMs: performance.now() - startedMs,
              latenciesMs,
              clientCpuMs: works.reduce((sum, { cpuMs }) => sum + cpuMs, 0),
            }
          },
        },
      }))
    return await curve(
      'processes',
      { 'tokens from one sequence': turn('shared'), 'a sequence for each process': turn('own') },
      effort,
    )
  },
}
