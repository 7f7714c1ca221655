import { setInterval } from 'node:timers/promises'
import { anyClient, between } from './choose.ts'
import type { FaultKind } from './fault.ts'

const hourMs = 3_600_000
const stepEveryMs = 150

/** Somebody sets the wall clock of a client far off. */
const off: FaultKind = {
  name: 'clock-off',
  lastsMs: [1000, 6000],
  async inflict(world) {
    const client = anyClient(world)
    client.tell({ order: 'clock', offsetMs: Math.round(between(world, -hourMs, hourMs)), rate: 1 })
    return {
      target: `clock of ${client.name}`,
      heal: async () => client.tell({ order: 'clock', offsetMs: 0, rate: 1 }),
    }
  },
}

/** It jumps to and fro, by about as much as leases last. */
const stepping: FaultKind = {
  name: 'clock-steps',
  lastsMs: [1000, 5000],
  async inflict(world) {
    const client = anyClient(world)
    const jumpsMs = Array.from({ length: 64 }, () => Math.round(between(world, -3000, 3000)))
    const over = new AbortController()
    const jumping = (async () => {
      try {
        for await (const _ of setInterval(stepEveryMs, undefined, { signal: over.signal })) {
          client.tell({ order: 'clock', offsetMs: jumpsMs.pop() ?? 0, rate: 1 })
        }
      } catch (error) {
        if (!over.signal.aborted) throw error
      }
    })()
    return {
      target: `clock of ${client.name}`,
      async heal() {
        over.abort()
        await jumping
        client.tell({ order: 'clock', offsetMs: 0, rate: 1 })
      },
    }
  },
}

function atRate(name: string, slowest: number, fastest: number): FaultKind {
  return {
    name,
    lastsMs: [1000, 6000],
    async inflict(world) {
      const client = anyClient(world)
      client.tell({ order: 'clock', offsetMs: 0, rate: between(world, slowest, fastest) })
      return {
        target: `clock of ${client.name}`,
        heal: async () => client.tell({ order: 'clock', offsetMs: 0, rate: 1 }),
      }
    },
  }
}

export const clockFaults: readonly FaultKind[] = [
  off,
  stepping,
  // All clocks of the process. Who trusts for too short a time does no harm, however short it is.
  atRate('clock-fast', 1.01, 3),
  // The margin of a TTL is a twentieth of it, and pays for this. A clock that is slower than the margin is beyond what a lease can promise: the
  // process trusts for longer than the database grants, and only the fence is left.
  atRate('clock-slow', 0.97, 0.99),
]
