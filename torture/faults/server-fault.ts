import type { Affliction, FaultKind, TortureServer, World } from './fault.ts'

/** A fault of the server, which may need more than every machine has. */
export interface ServerFault extends FaultKind {
  /** Why it cannot be inflicted here; undefined when it can. */
  reason?(): Promise<string | undefined>
}

export const noHealing = async (): Promise<void> => {}

/** A fault that found nothing to do. */
export function nothing(why: string): Affliction {
  return { target: `nothing: ${why}`, heal: noHealing }
}

const afflicted = new WeakMap<TortureServer, string>()

/**
 * Whether the whole server runs is the business of one fault at a time: two would start and stop it under each other's hands. A fault that
 * comes second does nothing, rather than wait for one that may be healed only after it.
 */
export function alone(name: string, inflict: (world: World) => Promise<Affliction>): FaultKind['inflict'] {
  return async (world) => {
    const other = afflicted.get(world.server)
    if (other !== undefined) return nothing(`the server is in the hands of ${other}`)
    afflicted.set(world.server, name)
    try {
      const affliction = await inflict(world)
      return {
        target: affliction.target,
        async heal() {
          await affliction.heal()
          afflicted.delete(world.server)
        },
      }
    } catch (error) {
      afflicted.delete(world.server)
      throw error
    }
  }
}

/** Something that goes on until it is healed. `round` is told when it is to end. */
export function goingOn(target: string, run: (isOver: () => boolean) => Promise<void>): Affliction {
  let isOver = false
  const running = run(() => isOver)
  // Thrown to whoever heals it, not to nobody.
  running.catch(() => {})
  return {
    target,
    async heal() {
      isOver = true
      await running
    },
  }
}
