import type { Curve, Point } from './curve.ts'

/** What the arithmetic of docs/performance.md begins with: CPU time in seconds, as it was measured. */
export interface Costs {
  /** The server's, of a grant and its release: for each call of the two, however many leases it carries, … */
  readonly call: number
  /** … and for each lease in it. */
  readonly lease: number
  /** The client's, of a grant and its release on its own, and of each lease in a large batch. */
  readonly clientAlone: number
  readonly clientLease: number
  /** The server's, of a heartbeat. */
  readonly beat: number
  /** The server's, of a fenced transaction with one update, and of one that is not fenced. */
  readonly fenced: number
  readonly unfenced: number
}

type Curves = Readonly<Record<string, Curve>>

/** Undefined where something was not measured. */
export function costsOf(curves: Curves): Costs | undefined {
  const alone = pointOf(curves, 'scale-batch', 'acquire and release', 1)
  const many = pointOf(curves, 'scale-batch', 'acquire and release', 1000)
  const beat = pointOf(curves, 'scale-holders', 'a heartbeat', 1000)
  const fenced = pointOf(curves, 'scale-transactions', 'fenced by a lease each', 16)
  const unfenced = pointOf(curves, 'scale-transactions', 'not fenced', 16)
  const [atOne, atMany, ofBeat, ofFenced, ofUnfenced] = [alone, many, beat, fenced, unfenced].map(
    (point) => point?.serverCpuUs,
  )
  if (
    atOne === undefined ||
    atMany === undefined ||
    ofBeat === undefined ||
    ofFenced === undefined ||
    ofUnfenced === undefined
  ) {
    return undefined
  }
  // Of n leases in a call: call + n × lease. Two sizes give the two.
  const lease = Math.max(0, (1000 * atMany - atOne) / 999)
  return {
    call: (atOne - lease) / 1e6,
    lease: lease / 1e6,
    clientAlone: alone!.clientCpuUs / 1e6,
    clientLease: many!.clientCpuUs / 1e6,
    beat: ofBeat / 1e6,
    fenced: ofFenced / 1e6,
    unfenced: ofUnfenced / 1e6,
  }
}

function pointOf(curves: Curves, name: string, series: string, size: number): Point | undefined {
  return curves[name]?.series.find((each) => each.name === series)?.points.find((each) => each.size === size)
}

/** The CPU time of so many leases that are granted in one call and released in another. */
export function batchCost({ call, lease }: Costs, size: number): number {
  return call + size * lease
}

/** Grants per second, with their releases, that so many cores of the server allow. */
export function grantsByCpu(costs: Costs, size: number, cores: number): number {
  return (cores * size) / batchCost(costs, size)
}

/**
 * Grants per second that one token sequence allows: its row is locked from the draw to the end of the commit, so its batches commit one
 * after the other. All of the call's CPU time is counted as if it came under the lock, although some of it comes before, or with the release.
 */
export function grantsBySequence(costs: Costs, size: number, commitSeconds: number): number {
  return size / (commitSeconds + batchCost(costs, size))
}

/** What one server carries, with so many sequences in use: what ends first. */
export function grantsPerSecond(
  costs: Costs,
  size: number,
  commitSeconds: number,
  sequences: number,
  cores: number,
): number {
  return Math.min(sequences * grantsBySequence(costs, size, commitSeconds), grantsByCpu(costs, size, cores))
}

/** The leases in a call from which on its CPU time is larger than its commit, so that one sequence keeps a core more than half busy. */
export function batchForCpu({ call, lease }: Costs, commitSeconds: number): number {
  return Math.max(1, Math.ceil((commitSeconds - call) / lease))
}

/** The sequences with which calls of one lease each can keep so many cores busy. */
export function sequencesForCpu(costs: Costs, commitSeconds: number, cores: number): number {
  return Math.ceil(grantsByCpu(costs, 1, cores) / grantsBySequence(costs, 1, commitSeconds))
}

/** Holders whose heartbeats, three to a TTL, take this share of the server's cores. */
export function holdersByCpu({ beat }: Costs, ttlSeconds: number, cores: number, share: number): number {
  return (share * cores * ttlSeconds) / (3 * beat)
}

/** The same where no two heartbeats share a flush, which is the worst that can be: heartbeats of different holders wait for nothing but that. */
export function holdersByFlush(ttlSeconds: number, commitSeconds: number): number {
  return ttlSeconds / (3 * commitSeconds)
}

/** Fenced transactions per second on so many connections: each waits for its own commit, which it shares with the others. */
export function fencedPerSecond(
  { fenced }: Costs,
  connections: number,
  commitSeconds: number,
  cores: number,
): number {
  return Math.min(connections / (commitSeconds + fenced), cores / fenced)
}
