// npm run failover [-- OPTIONS]: promotes a standby under working clients, again and again, and tells what was lost.
import { parseArgs } from 'node:util'
import { Fencepost } from '../../src/index.ts'
import { DebianFolder, debianBinaries } from '../../test/support/debian-server.ts'
import { keepLedger } from './ledger.ts'
import { Outside } from './outside.ts'
import { Pairs } from './pair.ts'
import { failOverOnce } from './round.ts'
import { scenarios, setupNames } from './scenarios.ts'

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', multiple: true, default: [] },
    rounds: { type: 'string', default: '20' },
  },
})
void setupNames
const binaries = debianBinaries()!
await using folder = await DebianFolder.make(binaries)
await using outside = await Outside.start(folder)
await using pairs = await Pairs.make(binaries, async (server) => {
  await Fencepost.migrate({ connectionString: server.url })
  await keepLedger(server)
})
for (const scenario of scenarios) {
  if (options.only.length > 0 && !options.only.includes(scenario.name)) continue
  for (let round = 0; round < Number(options.rounds); round += 1) {
    const t0 = performance.now()
    const outcome = await failOverOnce(pairs, outside, scenario)
    console.log(scenario.name, scenario.kind, JSON.stringify(outcome), Math.round(performance.now() - t0))
  }
}
