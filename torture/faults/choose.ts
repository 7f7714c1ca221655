import type { TortureClient, World } from './fault.ts'

/** A client, by the numbers of the world. The place is chosen, so that it is the same one in each run of a seed. */
export function anyClient(world: World): TortureClient {
  const { clients } = world
  const client = clients[Math.floor(world.random() * clients.length)]
  if (client?.isRunning !== true) throw new Missed('the client was not there')
  return client
}

export function between(world: World, from: number, to: number): number {
  return from + world.random() * (to - from)
}

/** A fault waits for what it needs no longer than this. */
const patienceMs = 5000

/** What comes in time. Otherwise the fault is let go: it has found nobody. */
export async function inTime<T>(coming: Promise<T>, otherwise: string): Promise<T> {
  const { promise: late, resolve } = Promise.withResolvers<typeof isLate>()
  const timer = setTimeout(resolve, patienceMs, isLate)
  const came = await Promise.race([coming, late])
  clearTimeout(timer)
  if (came === isLate) throw new Missed(otherwise)
  return came
}

const isLate = Symbol('late')

/** A fault that found nobody to inflict itself upon. */
export class Missed extends Error {}
