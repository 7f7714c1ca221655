import { fc, test } from '@fast-check/vitest'
import { expect } from 'vitest'
import { check } from '../../torture/check/check.ts'
import type { Committed, HistoryEvent } from '../../torture/history.ts'
import { Story, kindsOf } from './check-story.ts'

interface Step {
  readonly does: 'beat' | 'acquire' | 'release' | 'write' | 'trust' | 'settle' | 'close' | 'kill'
  readonly who: number
  readonly lease: string
  readonly afterMs: number
  readonly isAnswered: boolean
}

const ttlMs = 1000
const marginMs = 50

interface Held {
  readonly lease: string
  readonly token: number
  /** The client was not told of it. */
  readonly isUntold: boolean
}

/** A client that does as fencepost does, on a server that does as it should. */
interface Client {
  name: string
  /** How many holders it has had. */
  joined: number
  holder: string
  expiresMs: number
  held: Held[]
}

/** A history in which everything is as it should be, whatever happens when. */
function tell(steps: readonly Step[]): Story {
  const story = new Story()
  const ends = new Map<string, number>()
  const leases = new Map<string, { token: number; holder: string | null }>()
  let lastToken = 0
  let names = 0
  let nowMs = 0

  function join(client: Client): void {
    client.joined += 1
    client.holder = `${client.name}/${client.joined}`
    client.expiresMs = nowMs + ttlMs
    client.held = []
    ends.set(client.holder, client.expiresMs)
    story.join(client.holder)
  }
  function arrive(): Client {
    names += 1
    const client = { name: `c${names}`, joined: 0, holder: '', expiresMs: 0, held: [] }
    join(client)
    return client
  }
  const clients = [arrive(), arrive(), arrive()]

  function act(client: Client, { does, lease, isAnswered }: Step): void {
    const { name } = client
    const row = leases.get(lease)
    // Its holder was ended by another, or its time is up: it begins anew, and knows of nothing any more.
    const isOver = nowMs >= client.expiresMs - marginMs
    if (isOver && does !== 'write' && does !== 'trust') return join(client)
    const held = client.held.find((each) => each.lease === lease)
    switch (does) {
      case 'beat':
        client.expiresMs = nowMs + ttlMs
        ends.set(client.holder, client.expiresMs)
        return story.beat(client.holder)
      case 'acquire': {
        const op = story.ask(name, 'acquire', lease)
        const former = row?.holder ?? null
        const isFree = former === null || ends.get(former)! <= nowMs
        if (!isFree) return story.tell(name, op, 'busy')
        lastToken += 1
        story.grant(
          lease,
          lastToken,
          client.holder,
          ...(former === null || ended.has(former) ? [] : [former]),
        )
        if (former !== null) ended.add(former)
        leases.set(lease, { token: lastToken, holder: client.holder })
        client.held = [
          ...client.held.filter((each) => each !== held),
          { lease, token: lastToken, isUntold: !isAnswered },
        ]
        return isAnswered ? story.tell(name, op, 'won', lastToken) : story.tell(name, op, 'unknown')
      }
      case 'release':
      case 'settle': {
        if (held === undefined || held.isUntold !== (does === 'settle')) return
        const op = does === 'release' ? story.ask(name, 'release', lease, { token: held.token }) : 0
        story.free(lease)
        leases.set(lease, { token: held.token, holder: null })
        client.held = client.held.filter((each) => each !== held)
        if (does === 'release' && isAnswered) story.tell(name, op, 'won', held.token)
        return
      }
      case 'write': {
        if (held === undefined || held.isUntold) return
        const op = story.ask(name, 'write', lease, { token: held.token, row: `${lease}/r` })
        const isCurrent =
          row!.token === held.token && row!.holder === client.holder && nowMs < client.expiresMs
        if (isCurrent) {
          story.commit(
            story.write(name, op, lease, held.token, `${lease}/r`),
            story.row(`${lease}/r`, lease, held.token),
          )
        }
        return story.tell(name, op, isAnswered ? (isCurrent ? 'won' : 'lost') : 'unknown')
      }
      case 'trust':
        if (held !== undefined && !held.isUntold) story.trust(name, lease, held.token, !isOver)
        return
      case 'close': {
        const op = story.ask(name, 'close')
        story.commit(story.holder(client.holder, { endedMs: nowMs }))
        ends.set(client.holder, nowMs)
        ended.add(client.holder)
        story.tell(name, op, 'won')
        return join(client)
      }
      case 'kill':
        story.fault('kill', 'begins', name)
        clients[clients.indexOf(client)] = arrive()
    }
  }
  const ended = new Set<string>()
  for (const step of steps) {
    nowMs += step.afterMs
    story.at(nowMs)
    act(clients[step.who]!, step)
  }
  return story
}

const histories = fc
  .array(
    fc.record({
      does: fc.constantFrom<Step['does'][]>(
        ...Array<'beat'>(3).fill('beat'),
        ...Array<'acquire'>(4).fill('acquire'),
        ...Array<'write'>(4).fill('write'),
        ...Array<'trust'>(2).fill('trust'),
        'release',
        'settle',
        'close',
        'kill',
      ),
      who: fc.nat(2),
      lease: fc.constantFrom('L', 'M'),
      afterMs: fc.oneof(fc.integer({ min: 1, max: 80 }), fc.integer({ min: 1, max: 1200 })),
      isAnswered: fc.boolean(),
    }),
    { minLength: 40, maxLength: 150 },
  )
  .map(tell)

test.prop([histories], { numRuns: 300 })('a history in which all is well is not condemned', (story) => {
  expect(kindsOf(story)).toEqual([])
})

/** Changes one thing. Undefined: there is nothing of that kind in the history. */
type Mutation = (events: readonly HistoryEvent[], chance: number) => HistoryEvent[] | undefined

function pick<T>(from: readonly T[], chance: number): T | undefined {
  return from[Math.floor(chance * from.length)]
}

function grantsIn(event: HistoryEvent): { lease: string; token: string }[] {
  if (event.kind !== 'committed') return []
  return event.changes.flatMap((change) =>
    change.table === 'lease' && change.holderId !== null ? [{ lease: change.name, token: change.token }] : [],
  )
}

function isCommitted(event: HistoryEvent): event is Committed {
  return event.kind === 'committed'
}

const mutations: Readonly<Record<string, Mutation>> = {
  'a write is committed after the next grant': (events, chance) => {
    const late = events.flatMap((event, place) => {
      if (!isCommitted(event)) return []
      const write = event.changes.find((change) => change.table === 'write')
      if (write === undefined) return []
      const next = events.findIndex(
        (other, at) => at > place && grantsIn(other).some(({ lease }) => lease === write.lease),
      )
      return next < 0 ? [] : [{ event, next }]
    })
    const chosen = pick(late, chance)
    return (
      chosen &&
      [...events.slice(0, chosen.next + 1), chosen.event, ...events.slice(chosen.next + 1)].filter(
        (event, place) => event !== chosen.event || place > chosen.next,
      )
    )
  },
  'two grants change places': (events, chance) => {
    const grants = events.filter((event) => grantsIn(event).length > 0)
    const first = pick(grants.slice(0, -1), chance)
    if (first === undefined) return undefined
    const second = grants[grants.indexOf(first) + 1]!
    return events.map((event) => (event === first ? second : event === second ? first : event))
  },
  'a grant that was told is not in the log': (events, chance) => {
    const told = events.flatMap((event) =>
      event.kind === 'answered' && event.token !== undefined ? [event.token] : [],
    )
    const chosen = pick(
      events.filter((event) => grantsIn(event).some(({ token }) => told.includes(token))),
      chance,
    )
    return chosen && events.filter((event) => event !== chosen)
  },
  'a write that was won is not in the log': (events, chance) => {
    const won = new Set(
      events.flatMap((event) =>
        event.kind === 'answered' && event.outcome === 'won' ? [`${event.client} ${event.op}`] : [],
      ),
    )
    const chosen = pick(
      events.filter(
        (event) =>
          isCommitted(event) &&
          event.changes.some(
            (change) => change.table === 'write' && won.has(`${change.client} ${change.op}`),
          ),
      ),
      chance,
    )
    return chosen && events.filter((event) => event !== chosen)
  },
  'a taker does not end the holder': (events, chance) => {
    const told = new Set(
      events.flatMap((event) =>
        event.kind === 'answered' && event.token !== undefined ? [event.token] : [],
      ),
    )
    const takeOvers = events.filter(isCommitted).filter((event, place, all) => {
      const [grant] = grantsIn(event)
      if (grant === undefined || !event.changes.some(({ table }) => table === 'holder')) return false
      const former = all
        .slice(0, place)
        .flatMap(grantsIn)
        .findLast(({ lease }) => lease === grant.lease)
      // One that its client did not know of may have been handed on by it, and nobody else would have heard.
      return former !== undefined && told.has(former.token)
    })
    const chosen = pick(takeOvers, chance)
    return (
      chosen &&
      events.map((event) =>
        event === chosen
          ? { ...chosen, changes: chosen.changes.filter(({ table }) => table === 'lease') }
          : event,
      )
    )
  },
  'a token is given once more': (events, chance) => {
    const grants = events.filter((event) => grantsIn(event).length > 0).filter(isCommitted)
    const chosen = pick(grants.slice(1), chance)
    if (chosen === undefined) return undefined
    const token = grantsIn(grants[grants.indexOf(chosen) - 1]!)[0]!.token
    return events.map((event) =>
      event === chosen
        ? {
            ...chosen,
            changes: chosen.changes.map((change) =>
              change.table === 'lease' ? { ...change, token } : change,
            ),
          }
        : event,
    )
  },
  'a committed write is told to be refused': (events, chance) => {
    const written = new Set(
      events
        .filter(isCommitted)
        .flatMap(({ changes }) =>
          changes.flatMap((change) => (change.table === 'write' ? [`${change.client} ${change.op}`] : [])),
        ),
    )
    const chosen = pick(
      events.flatMap((event) =>
        event.kind === 'answered' && written.has(`${event.client} ${event.op}`) ? [event] : [],
      ),
      chance,
    )
    return (
      chosen && events.map((event) => (event === chosen ? { ...chosen, outcome: 'lost' as const } : event))
    )
  },
  'a client trusts its term for a TTL longer': (events, chance) => {
    const samples = events.flatMap((event) => (event.kind === 'trusted' && event.isHeld ? [event] : []))
    const chosen = pick(samples, chance)
    if (chosen === undefined) return undefined
    const end = Math.max(
      ...events
        .filter(isCommitted)
        .flatMap(({ changes }) =>
          changes.flatMap((change) =>
            change.table === 'holder' && change.label === chosen.client ? [change.expiresAtUs] : [],
          ),
        ),
    )
    return [...events, { ...chosen, atUs: end + ttlMs * 1000 }]
  },
  'a term that was told is freed by itself': (events, chance) => {
    const released = new Set(
      events.flatMap((event) => (event.kind === 'asked' && event.what === 'release' ? [event.token] : [])),
    )
    const told = events.flatMap((event) =>
      event.kind === 'answered' && event.token !== undefined && !released.has(event.token)
        ? [event.token]
        : [],
    )
    const chosen = pick(
      events.filter((event) => grantsIn(event).some(({ token }) => told.includes(token))),
      chance,
    )
    if (chosen === undefined || !isCommitted(chosen)) return undefined
    const change = chosen.changes.find(({ table }) => table === 'lease')!
    const freed = { ...chosen, changes: [{ ...change, how: 'update', holderId: null }] } as Committed
    return events.flatMap((event) => (event === chosen ? [event, freed] : [event]))
  },
}

for (const [name, mutate] of Object.entries(mutations)) {
  test.prop([histories, fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })], { numRuns: 60 })(
    `a history is condemned when ${name}`,
    (story, chance) => {
      const events = mutate(story.events, chance)
      fc.pre(events !== undefined)
      expect(check(events).violations).not.toEqual([])
    },
  )
}
