import { expect, test } from 'vitest'
import { Missed } from '../../torture/faults/choose.ts'
import type { FaultKind, TortureClient, TortureServer } from '../../torture/faults/fault.ts'
import type { Fault } from '../../torture/history.ts'
import { Nemesis } from '../../torture/run/nemesis.ts'
import { type Planned, planOverlapping } from '../../torture/run/plan.ts'

const server = {} as TortureServer
const clients = ['c1', 'c2', 'c3', 'c4'].map((name) => ({ name }) as TortureClient)

/** A fault of one client, that does nothing else. */
function fault(name: string, heal: () => Promise<void> = async () => {}): FaultKind {
  return {
    name,
    lastsMs: [0, 20],
    async inflict(world) {
      const { name: target } = world.clients[Math.floor(world.random() * world.clients.length)]!
      return { target, heal }
    },
  }
}

const soon = (kind: FaultKind, lastsMs: number): Planned => ({ kind, atMs: 0, lastsMs, stream: 's' })

/** What is done to whom, until everything of the plan has begun. */
async function carriedOut(overlapping: readonly Planned[], seed: string): Promise<string[]> {
  const begun: string[] = []
  const all = Promise.withResolvers<void>()
  const nemesis = new Nemesis({
    ...{ seed, clients, server, overlapping, inTurn: [] },
    record: ({ phase, fault: name, target }: Fault) => {
      if (phase === 'begins' && begun.push(`${name} ${target}`) === overlapping.length) all.resolve()
    },
  })
  await all.promise
  await nemesis.end()
  return begun
}

test('the same seed does the same to the same clients', async () => {
  const plan = planOverlapping('s', [fault('a'), fault('b'), fault('c')], 6000)
    // As fast as they come.
    .map((planned, place) => ({ ...planned, atMs: place * 3 }))
  const first = await carriedOut(plan, 's')
  expect(first.length).toBeGreaterThan(8)
  expect(new Set(first.map((each) => each.split(' ')[1])).size).toBe(clients.length)
  expect(await carriedOut(plan, 's')).toEqual(first)
  expect(await carriedOut(plan, 't')).not.toEqual(first)
})

test('what has begun is healed at the end, without its time having passed, and nothing more begins', async () => {
  let healed = 0
  const begun = Promise.withResolvers<void>()
  const kind = fault('lasting', async () => void (healed += 1))
  const events: Fault[] = []
  const nemesis = new Nemesis({
    ...{ seed: 's', clients, server },
    overlapping: [soon(kind, 3_600_000), { ...soon(kind, 0), atMs: 3_600_000 }],
    inTurn: [],
    record: (event) => {
      events.push(event)
      begun.resolve()
    },
  })
  await begun.promise
  expect(healed).toBe(0)
  await nemesis.end()
  expect(healed).toBe(1)
  expect(events.map(({ phase }) => phase)).toEqual(['begins', 'ends'])
})

test('a fault that finds nobody is told of as such, and one that goes wrong is thrown at the end', async () => {
  const missing: FaultKind = {
    name: 'missing',
    lastsMs: [0, 0],
    inflict: async () => {
      throw new Missed('nobody was there')
    },
  }
  const events: Fault[] = []
  const record = (event: Fault): void => void events.push(event)
  const missed = new Nemesis({
    ...{ seed: 's', clients, server, record },
    overlapping: [soon(missing, 0)],
    inTurn: [],
  })
  await expect.poll(() => missed.missed).toEqual([{ fault: 'missing', why: 'nobody was there' }])
  await missed.end()
  expect(events).toEqual([])

  const failing = fault('failing', () => Promise.reject(new Error('it cannot be healed')))
  const done = fault('done')
  const failed = new Nemesis({
    ...{ seed: 's', clients, server, record },
    overlapping: [],
    inTurn: [soon(failing, 0), soon(done, 0)],
  })
  await expect.poll(() => events.at(-1)).toMatchObject({ fault: 'done', phase: 'ends' })
  await expect(failed.end()).rejects.toThrow(/failing could not be inflicted or healed/)
})
