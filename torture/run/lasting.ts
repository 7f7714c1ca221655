import type { FaultKind } from '../faults/fault.ts'
import { clientFaults } from '../faults/kinds.ts'
import { serverFaults } from '../faults/server.ts'
import type { Stage } from './stage.ts'
import { Stream } from './stream.ts'

/** What may stay as it is for good, without keeping a lease from anybody else. A holder that is stopped while it reads a large result is not of
 * these: PostgreSQL waits for it, unless it is told not to by a `transaction_timeout`. */
const names = ['pause-after-acquire', 'pause-after-fence', 'pause-between-writes', 'black-hole', 'notify-off']

/** One fault that becomes permanent, by the seed; or none. */
export async function lasting(
  { crew, server, folder }: Stage,
  seed: string,
): Promise<{ heal(): Promise<void>; gone: string[] }> {
  const stream = new Stream(seed, 'the fault that lasts')
  const kinds: readonly (FaultKind | undefined)[] = [
    undefined,
    ...[...clientFaults, ...serverFaults].filter(({ name }) => names.includes(name)),
  ]
  const kind = stream.pick(kinds)
  if (kind === undefined) return { heal: async () => {}, gone: [] }
  const world = { clients: crew.clients, server, random: () => stream.next() }
  const affliction = await kind.inflict(world)
  const event = { kind: 'fault', fault: kind.name, target: affliction.target } as const
  folder.record({ ...event, phase: 'begins', atUs: Date.now() * 1000 })
  const gone = crew.clients
    .map(({ name }) => name)
    .filter((name) => affliction.target.split(' ').includes(name))
  return {
    gone,
    async heal() {
      await affliction.heal()
      folder.record({ ...event, phase: 'ends', atUs: Date.now() * 1000 })
    },
  }
}
