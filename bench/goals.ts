import { type MeasureName, type Results, against } from './results.ts'
import type { Figure } from './rounds.ts'
import type { Spread } from './spread.ts'

/** Something that fencepost is to reach, on two cores with everything on one machine. The median decides. */
export interface Goal {
  readonly number: number
  readonly what: string
  /** Where the figure comes from. */
  readonly measure: MeasureName
  readonly atLeast?: number
  readonly atMost?: number
  /** The bound of the quick run, which only tells that something has broken: wide enough for a busy machine. */
  readonly quick?: number
  /** Undefined where it was not measured. */
  readonly figure: (results: Results) => Spread | undefined
  /** The same figure of the least that does the work, written by hand for one case: what this machine allows. */
  readonly byHand?: (results: Results) => Spread | undefined
}

const overFloor = (workers: number, atLeast: number, quick?: number): Goal => ({
  number: 1,
  what: `acquire + release ÷ floor, ${workers} worker${workers === 1 ? '' : 's'}`,
  measure: 'lease',
  atLeast,
  ...(quick === undefined ? {} : { quick }),
  figure: ({ lease }) => against(lease?.figures, workers, 'fencepost', 'floor'),
  byHand: ({ lease }) => against(lease?.figures, workers, 'by hand', 'floor'),
})

const overPeer = (peer: string, atLeast: number): Goal => ({
  number: 2,
  what: `acquire + release ÷ ${peer}, 64 workers`,
  measure: 'lease',
  atLeast,
  figure: ({ lease }) => against(lease?.figures, 64, 'fencepost', peer),
})

const handOver = (waiters: number, quick?: number): Goal => ({
  number: 4,
  what: `hand-over ÷ blocking advisory lock, ${waiters.toLocaleString('en')} waiters`,
  measure: 'hand-over',
  atMost: 2,
  ...(quick === undefined ? {} : { quick }),
  figure: (results) => handOverOf(results, waiters)?.ratio,
  byHand(results) {
    const [own, hand] = (['advisory', 'notify'] as const).map((floor) => handOverOf(results, waiters, floor))
    return own && hand && only(hand.floorMs / own.floorMs)
  },
})

const tries = (waiters: number, quick?: number): Goal => ({
  number: 4,
  what: `questions to the database per hand-over, ${waiters.toLocaleString('en')} waiters`,
  measure: 'hand-over',
  atMost: 2,
  ...(quick === undefined ? {} : { quick }),
  figure: (results) => handOverOf(results, waiters)?.tries,
})

const fenced = (way: string, base: string, workers: number, quick?: number): Goal => ({
  number: 6,
  what: `transaction, ${way} ÷ ${base}, ${workers} worker${workers === 1 ? '' : 's'}`,
  measure: 'fence',
  atLeast: 0.95,
  ...(quick === undefined ? {} : { quick }),
  figure: ({ fence }) => against(fence, workers, way, base),
  byHand: ({ fence }) => against(fence, workers, way.replace('fenced', 'by hand'), base),
})

const written = (workers: number, quick: number): Goal => ({
  number: 6,
  what: `repository write ÷ plain autocommit write, ${workers} worker${workers === 1 ? '' : 's'}`,
  measure: 'repository',
  atLeast: 0.95,
  quick,
  figure: ({ repository }) => against(repository?.single, workers, 'repository', 'plain, Kysely'),
})

const walled = (workers: number, quick: number): Goal => ({
  number: 6,
  what: `fenced transaction, time on a protected table ÷ on a plain one, ${workers} worker${workers === 1 ? '' : 's'}`,
  measure: 'fence',
  atMost: 1.05,
  quick,
  figure: ({ fence }) => against(fence, workers, 'fenced', 'fenced, protected table'),
})

const bulk = (statement: string, quick: number): Goal => ({
  number: 6,
  what: `${statement} of 100,000 rows, time on a protected table ÷ on a plain one`,
  measure: 'bulk',
  atMost: 1.05,
  quick,
  figure: (results) => results.bulk?.[`${statement} checked`],
})

export const goals: readonly Goal[] = [
  overFloor(1, 1.2, 0.1),
  overFloor(8, 2, 0.1),
  overFloor(64, 7, 0.5),
  overFloor(512, 10),
  overPeer('redlock, fsync always', 1.1),
  overPeer('@sesamecare-oss/redlock, fsync always', 1.1),
  overPeer('redis-semaphore, fsync always', 1.1),
  overPeer('redlock', 0.95),
  overPeer('@sesamecare-oss/redlock', 0.95),
  overPeer('redis-semaphore', 0.95),
  overPeer('@medusajs/locking-postgres', 8),
  overPeer('npm advisory-lock', 40),
  overPeer('etcd3', 20),
  {
    number: 3,
    what: 'heartbeat of 100,000 leases ÷ of one, time',
    measure: 'heartbeat',
    atMost: 1.05,
    quick: 20,
    figure: ({ heartbeat }) => heartbeat?.time,
  },
  {
    number: 3,
    what: 'heartbeat of 100,000 leases ÷ of one, WAL bytes',
    measure: 'heartbeat',
    atMost: 1.05,
    quick: 10,
    figure: ({ heartbeat }) => heartbeat?.walBytes,
  },
  {
    number: 3,
    what: 'heap growth over 60 heartbeats, 100,000 leases ÷ one',
    measure: 'heartbeat',
    atMost: 1.05,
    quick: 1.5,
    figure: ({ heartbeat }) => heartbeat && only(heartbeat.heapGrowth),
  },
  handOver(2, 400),
  handOver(50, 400),
  handOver(1000),
  tries(2, 10),
  tries(50, 10),
  tries(1000),
  {
    number: 5,
    what: 'crash take-over, ms after the TTL has ended',
    measure: 'take-over',
    atMost: 50,
    figure: (results) => results['take-over']?.lateMs,
  },
  {
    number: 5,
    what: 'statements per waiter and TTL while waiting',
    measure: 'take-over',
    atMost: 2,
    figure: (results) => results['take-over']?.questionsPerTtl,
  },
  fenced('fenced', 'unfenced', 1, 0.2),
  fenced('fenced', 'unfenced', 8, 0.2),
  fenced('fenced', 'unfenced', 64, 0.2),
  fenced('fenced, with the first statement', 'unfenced', 1, 0.2),
  fenced('fenced, with the first statement', 'unfenced', 8, 0.2),
  fenced('fenced, with the first statement', 'unfenced', 64, 0.2),
  fenced('fenced, Kysely', 'unfenced, Kysely', 1, 0.2),
  fenced('fenced, Kysely', 'unfenced, Kysely', 8, 0.2),
  fenced('fenced, Kysely', 'unfenced, Kysely', 64, 0.2),
  fenced('fenced, Kysely, with the first statement', 'unfenced, Kysely', 1, 0.2),
  fenced('fenced, Kysely, with the first statement', 'unfenced, Kysely', 8, 0.2),
  fenced('fenced, Kysely, with the first statement', 'unfenced, Kysely', 64, 0.2),
  written(1, 0.2),
  written(8, 0.2),
  written(64, 0.2),
  {
    number: 6,
    what: 'repository, 10,000 rows in one statement, time ÷ plain',
    measure: 'repository',
    atMost: 1.05,
    quick: 6,
    figure: ({ repository }) => repository?.tenThousand,
  },
  walled(1, 4),
  walled(8, 4),
  walled(64, 4),
  bulk('update', 5),
  bulk('insert', 5),
  bulk('delete', 5),
  {
    number: 7,
    what: 'start of a service to its first lease ÷ bare script',
    measure: 'start-up',
    atMost: 1.2,
    quick: 5,
    figure: (results) => results['start-up']?.service,
  },
  {
    number: 7,
    what: 'fencepost run to the start of its command ÷ bare script',
    measure: 'start-up',
    atMost: 1.5,
    quick: 6,
    figure: (results) => results['start-up']?.run,
  },
  {
    number: 8,
    what: '1,000,000 lease rows ÷ 10,000, the workers use one each, 64 workers',
    measure: 'rows',
    atLeast: 0.9,
    figure: ({ rows }) => against(rows, 64, '1,000,000 leases', '10,000 leases'),
  },
  {
    number: 8,
    what: 'acquire p99 with 1,000 holders and 10,000 waiters ÷ idle',
    measure: 'crowd',
    atMost: 2,
    figure: ({ crowd }) => crowd?.p99,
  },
]

/**
 * No goal: for the quick run. Pairs per second depend on the disk, which one flush after the other feels more than many at once; CPU time
 * does not, and tells as well whether the workers still share their calls.
 */
const sharedCalls: Goal = {
  number: 1,
  what: 'acquire + release, CPU time of the floor ÷ that of fencepost, client and server, 64 workers',
  measure: 'lease',
  atLeast: 4,
  quick: 1.5,
  figure: ({ lease }) => {
    const [floor, own] = ['floor', 'fencepost'].map((name) => cpuUs(lease?.figures, name, 64))
    return floor === undefined || own === undefined ? undefined : only(floor / own)
  },
}

function cpuUs(figures: readonly Figure[] | undefined, name: string, workers: number): number | undefined {
  const found = figures?.find((each) => each.contender === name && each.workers === workers)
  return found?.serverCpuUs === undefined ? undefined : found.clientCpuUs + found.serverCpuUs
}

function handOverOf(results: Results, waiters: number, floor: 'advisory' | 'notify' = 'advisory') {
  return results['hand-over']?.find((each) => each.waiters === waiters && each.floor === floor)
}

function only(value: number): Spread {
  return { median: value, min: value, max: value }
}

export interface Verdict {
  readonly goal: Goal
  /** The bound that it is held against. */
  readonly bound: number
  readonly figure: Spread | undefined
  readonly byHand: Spread | undefined
  /** Undefined where it was not measured. */
  readonly isReached: boolean | undefined
}

/** Each goal with its figure. For the quick run, those that have a bound for it. */
export function judge(results: Results, isQuick = false): Verdict[] {
  return (isQuick ? [...goals, sharedCalls] : goals).flatMap((goal) => {
    const bound = isQuick ? goal.quick : (goal.atLeast ?? goal.atMost)
    if (bound === undefined) return []
    return [verdict(goal, bound, goal.figure(results), goal.byHand?.(results))]
  })
}

/** What `judge` says of one goal. */
export function verdict(goal: Goal, bound: number, figure: Spread | undefined, byHand?: Spread): Verdict {
  const isReached = figure && (goal.atLeast === undefined ? figure.median <= bound : figure.median >= bound)
  return { goal, bound, figure, byHand, isReached }
}

/** Without the goals that a run has left out on purpose. What it should have measured and has not stays, and so does what was known before. */
export function told(verdicts: readonly Verdict[], measures: readonly string[]): Verdict[] {
  return verdicts.filter(({ goal, figure }) => figure !== undefined || measures.includes(goal.measure))
}
