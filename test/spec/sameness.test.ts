import { beforeAll, expect, test } from 'vitest'
import { type Compiled, compile, translate } from '../../spec/compiled-model.ts'
import { exactKey, type Key, plainKey } from '../../spec/sameness.ts'
import type { World } from '../../spec/world.ts'

// States that are explored once for all have the same future. Here many of them are met on random walks, and of those with one key it is
// compared which keys they lead to.

const file = new URL('../../spec/controls.qnt', import.meta.url).pathname
const invariants = ['oneHolder', 'noStaleWrite', 'trustIsBacked']
let compiled: Compiled

beforeAll(async () => {
  compiled = await compile(file, 'fencepost', 'sound')
})

/** The same numbers each time. */
function* random(): Generator<number, never> {
  for (let state = 1; ;) {
    state = (state * 48_271) % 2_147_483_647
    yield state
  }
}

interface Walk {
  readonly instance: string
  readonly step: string
  readonly key: Key
  readonly trustWindow: number
}

/** How many keys had several states, and how many of these had different futures. */
function walk({ instance, step, key, trustWindow }: Walk): {
  readonly shared: number
  readonly mistaken: number
} {
  const model = translate<World>(compiled, instance, step)
  const plain = plainKey({ trustWindow })
  const numbers = random()
  const seen = new Set<string>()
  const futures = new Map<string, Set<string>>()
  const shared = new Set<string>()
  for (let round = 0; round < 60; round += 1) {
    let world = model.init()
    for (let length = 0; length < 25; length += 1) {
      const next: World[] = []
      model.step(world, (found) => next.push(found))
      if (!seen.has(plain(world))) {
        seen.add(plain(world))
        const truths = invariants.map((invariant) => model.holds(invariant, world))
        const own = key(world)
        // A step that leads nowhere is none.
        const elsewhere = new Set(next.map(key).filter((one) => one !== own))
        const future = [...elsewhere].toSorted().join('\n') + truths.join()
        if (futures.has(own)) shared.add(own)
        futures.set(own, (futures.get(own) ?? new Set()).add(future))
      }
      world = next[numbers.next().value % next.length]!
    }
  }
  return { shared: shared.size, mistaken: [...shared].filter((own) => futures.get(own)!.size > 1).length }
}

test.for([
  { instance: 'exhaustive', step: 'lively', trustWindow: 1, servers: [0] },
  { instance: 'crowd', step: 'lively', trustWindow: 2, servers: [0] },
  { instance: 'exhaustive', step: 'livelyStep', trustWindow: 1, servers: [0, 1] },
  { instance: 'sound', step: 'livelyStep', trustWindow: 2, servers: [0, 1] },
])('states that are taken for the same have the same future: $instance, $step', ({ servers, ...walking }) => {
  const { shared, mistaken } = walk({
    ...walking,
    key: exactKey({ trustWindow: walking.trustWindow, servers }),
  })
  expect(shared).toBeGreaterThan(20)
  expect(mistaken).toBe(0)
})

test.for<{ what: string; forget: (world: World) => World }>([
  { what: 'open transactions', forget: (world) => ({ ...world, txs: [] }) },
  { what: 'time', forget: (world) => ({ ...world, now: 0 }) },
  {
    what: 'what processes were told',
    forget: (world) => ({
      ...world,
      processes: Object.fromEntries(
        Object.entries(world.processes).map(([h, one]) => [h, { ...one, told: [] }]),
      ),
    }),
  },
])('a key that forgets $what is found out', ({ forget }) => {
  const exact = exactKey({ trustWindow: 1, servers: [0, 1] })
  const { mistaken } = walk({
    instance: 'exhaustive',
    step: 'livelyStep',
    trustWindow: 1,
    key: (world) => exact(forget(world)),
  })
  expect(mistaken).toBeGreaterThan(0)
})
