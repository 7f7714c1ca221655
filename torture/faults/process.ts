import { Missed, anyClient, between, inTime } from './choose.ts'
import { type Affliction, type FaultKind, type Step, type TortureClient, type World, steps } from './fault.ts'

function signal({ pid, isRunning }: TortureClient, name: NodeJS.Signals): void {
  if (!isRunning) return
  try {
    process.kill(pid, name)
  } catch (error) {
    // It has ended meanwhile.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

function freeze(client: TortureClient): Affliction {
  signal(client, 'SIGSTOP')
  return { target: client.name, heal: async () => signal(client, 'SIGCONT') }
}

/** SIGSTOP at exactly this step: everything of the process stands, and its connections stay open. */
function pauseAt(step: Step): FaultKind {
  return {
    name: `pause-${step.toLowerCase().replaceAll(' ', '-')}`,
    lastsMs: [100, 3000],
    async inflict(world) {
      const client = anyClient(world)
      const otherwise = `it did not come by ${step}`
      if ((await inTime(client.untilAt(step), otherwise)) === undefined) throw new Missed(otherwise)
      return freeze(client)
    },
  }
}

const pause: FaultKind = {
  name: 'pause',
  lastsMs: [100, 3000],
  inflict: async (world) => freeze(anyClient(world)),
}

const kill: FaultKind = {
  name: 'kill',
  lastsMs: [0, 0],
  async inflict(world) {
    const client = anyClient(world)
    signal(client, 'SIGKILL')
    return { target: client.name, heal: async () => {} }
  },
}

const block: FaultKind = {
  name: 'block',
  lastsMs: [0, 0],
  async inflict(world) {
    const client = anyClient(world)
    client.tell({ order: 'block', forMs: Math.round(between(world, 100, 3000)) })
    return { target: client.name, heal: async () => {} }
  },
}

/** Long fenced transactions of everybody, which overlap. */
const dawdle: FaultKind = {
  name: 'dawdle',
  lastsMs: [500, 3000],
  async inflict(world: World) {
    for (const client of world.clients) {
      if (client.isRunning) client.tell({ order: 'dawdle', forMs: Math.round(between(world, 300, 3000)) })
    }
    return { target: 'every client', heal: async () => {} }
  },
}

export const processFaults: readonly FaultKind[] = [pause, ...steps.map(pauseAt), kill, block, dawdle]
