import { type Meter, ownCpuMs } from './meter.ts'
import { type Spread, median, quantile, ratios, spread } from './spread.ts'

/** What so many workers have done for a while. */
export interface Load {
  readonly operations: number
  readonly elapsedMs: number
  /** How long each operation took, in milliseconds. */
  readonly latenciesMs: readonly number[]
  /** CPU time of the client, where that is not this process. */
  readonly clientCpuMs?: number | undefined
}

/** One of those that are compared. */
export interface Contender {
  readonly name: string
  /** The server that does its work: its CPU time, and its WAL, are counted. */
  readonly server: Meter
  /** Whether a grant that was answered survives a crash of the server. Only where contenders differ in that. */
  readonly durability?: string
  /** The numbers of workers that it is measured with. Default: all of the measure's. */
  readonly counts?: readonly number[]
  run(workers: number, forMs: number): Promise<Load>
}

/** One contender in one round. */
export interface Round {
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly clientCpuUs: number
  readonly serverCpuUs: number | undefined
  readonly walBytes: number | undefined
}

/** One contender with one number of workers, over all rounds. Times and costs are medians of the rounds, per operation. */
export interface Figure {
  readonly contender: string
  readonly workers: number
  /** Operations per second, round by round, so that any two contenders can be compared. */
  readonly perSecond: readonly number[]
  /** Operations per second ÷ those of the first contender in the same round. */
  readonly ratio: Spread
  readonly p50Ms: number
  readonly p99Ms: number
  /** CPU time of the client, which is this process or pgbench, in microseconds. */
  readonly clientCpuUs: number
  /** CPU time of all processes of the server, in microseconds. Undefined where it cannot be read. */
  readonly serverCpuUs?: number | undefined
  readonly walBytes?: number | undefined
}

export interface Effort {
  readonly rounds: number
  /** The length of one contender's turn. */
  readonly forMs: number
  /** For CI: fewer cases, and none that needs much time. */
  readonly isQuick: boolean
}

/**
 * Runs the contenders in turn, A B C A B C …, and compares each with the first, round by round: absolute times mean little on a machine
 * that others use. One round before the others is not counted.
 */
export async function interleave(
  contenders: readonly Contender[],
  counts: readonly number[],
  effort: Effort,
): Promise<Figure[]> {
  const figures: Figure[] = []
  for (const workers of counts) {
    const present = contenders.filter((each) => each.counts?.includes(workers) ?? true)
    const taken = await turns(
      present.map((contender) => ({ contender, workers })),
      effort,
    )
    const floor = taken[0]!.map((round) => round.perSecond)
    figures.push(...present.map(({ name }, index) => figure(name, workers, taken[index]!, floor)))
  }
  return figures
}

/** A contender with so many workers. */
export interface Turn {
  readonly contender: Contender
  readonly workers: number
}

/** The rounds of each, which take turns; without the one before the others. */
export async function turns(
  all: readonly Turn[],
  { rounds, forMs }: Pick<Effort, 'rounds' | 'forMs'>,
): Promise<Round[][]> {
  const taken = all.map((): Round[] => [])
  for (let round = 0; round <= rounds; round += 1) {
    for (const [index, { contender, workers }] of all.entries()) {
      const result = await measured(contender, workers, forMs)
      if (round > 0) taken[index]!.push(result)
    }
  }
  return taken
}

async function measured(contender: Contender, workers: number, forMs: number): Promise<Round> {
  const { server } = contender
  const before = [ownCpuMs(), server.cpuMs(), await server.walBytes?.()] as const
  const { operations, elapsedMs, latenciesMs, clientCpuMs } = await contender.run(workers, forMs)
  const after = [ownCpuMs(), server.cpuMs(), await server.walBytes?.()] as const
  if (operations === 0) throw new Error(`${contender.name} did nothing in ${forMs} ms`)
  const each = (from: number | undefined, to: number | undefined, unit: number): number | undefined =>
    from === undefined || to === undefined ? undefined : ((to - from) * unit) / operations
  return {
    perSecond: (operations / elapsedMs) * 1000,
    p50Ms: quantile(latenciesMs, 0.5),
    p99Ms: quantile(latenciesMs, 0.99),
    clientCpuUs: each(0, clientCpuMs ?? after[0] - before[0], 1000)!,
    serverCpuUs: each(before[1], after[1], 1000),
    walBytes: each(before[2], after[2], 1),
  }
}

function figure(name: string, workers: number, rounds: readonly Round[], floor: readonly number[]): Figure {
  const perSecond = rounds.map((round) => round.perSecond)
  const middle = (of: (round: Round) => number): number => median(rounds.map(of))
  const known = (of: (round: Round) => number | undefined): number | undefined => {
    const values = rounds.map(of).filter((value) => value !== undefined)
    return values.length === 0 ? undefined : median(values)
  }
  return {
    contender: name,
    workers,
    perSecond,
    ratio: spread(ratios(perSecond, floor)),
    p50Ms: middle((round) => round.p50Ms),
    p99Ms: middle((round) => round.p99Ms),
    clientCpuUs: middle((round) => round.clientCpuUs),
    serverCpuUs: known((round) => round.serverCpuUs),
    walBytes: known((round) => round.walBytes),
  }
}

/** Runs `step` in so many loops at once for `forMs`. */
export async function load(
  workers: number,
  forMs: number,
  step: (worker: number) => Promise<unknown>,
): Promise<Load> {
  const latenciesMs: number[] = []
  const startedMs = performance.now()
  const loop = async (worker: number): Promise<void> => {
    for (let beganMs = performance.now(); beganMs - startedMs < forMs;) {
      await step(worker)
      const endedMs = performance.now()
      latenciesMs.push(endedMs - beganMs)
      beganMs = endedMs
    }
  }
  await Promise.all(Array.from({ length: workers }, (_, worker) => loop(worker)))
  return { operations: latenciesMs.length, elapsedMs: performance.now() - startedMs, latenciesMs }
}
