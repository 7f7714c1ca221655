import { contenders } from '../contenders/contender-set.ts'
import type { Absent } from '../contenders/maker.ts'
import { type Figure, interleave } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

export interface LeaseFigures {
  readonly durability: Readonly<Record<string, string>>
  readonly absent: readonly Absent[]
  readonly figures: readonly Figure[]
}

export const lease: Measure<LeaseFigures> = {
  name: 'lease',
  group: 'throughput',
  what: 'acquire and release of a lease per worker, beside the floor and what others do; operations per second ÷ the floor, more is better',
  async run(effort) {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const { present, absent } = await contenders({ server, closing }, effort)
    const figures = await interleave(present, effort.isQuick ? [1, 8, 64] : [1, 8, 64, 512], effort)
    const durability = Object.fromEntries(present.map((each) => [each.name, each.durability ?? '']))
    console.log(figureTable(figures, durability))
    for (const each of absent) console.log(`absent: ${each.name}: ${each.absent}`)
    return { durability, absent, figures }
  },
}
