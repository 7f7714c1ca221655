import type { World } from './world.ts'

/**
 * Which states are explored once for all. Two states with one key have the same future, step by step, as far as any invariant can tell;
 * so although time and tokens grow for ever, there is an end to the states that are different.
 */
export type Key = (world: World) => string

/** Of the constants of the instance. */
export interface PlainSameness {
  /** `TTL - MARGIN + SLOW`: how long after a beat was sent a process may trust its answer. */
  readonly trustWindow: number
  /** Tokens are read from the clock, so what time it is matters, and so does what was granted. */
  readonly isClock?: boolean
}

export interface ExactSameness extends PlainSameness {
  /** The servers that are asked, now or after a failover. */
  readonly servers: readonly number[]
}

/**
 * For every instance, also a weakened one. Times only matter by what is left of them: every guard compares one with `now`, and what has run
 * out stays so until it is set anew. What was answered is forgotten.
 */
export function plainKey({ trustWindow, isClock = false }: PlainSameness): Key {
  return (world) => {
    const left = (at: number): number => Math.max(at - world.now, 0)
    const servers = Object.values(world.servers).map(({ holders, leases, lastToken }) => [
      Object.values(holders).map(({ isThere, isEnded, expiresAt }) => [isThere, isEnded, left(expiresAt)]),
      Object.values(leases).map(({ token, holder, by }) => [token, holder, by]),
      lastToken,
    ])
    const processes = Object.values(world.processes).map(
      ({ phase, beat, confirmedAt, beatSentAt, told, held }) => [
        [phase, beat, left(confirmedAt + trustWindow), left(beatSentAt + trustWindow)],
        [told, held],
      ],
    )
    const clock = isClock ? world.now : 0
    return JSON.stringify([
      servers,
      processes,
      world.txs,
      world.isPromoted,
      world.isLossy,
      world.wrongs,
      world.granted,
      clock,
    ])
  }
}

/**
 * For the protocol as it is. Beside time:
 *
 * - Holders and leases can change their names. All that ties two holders together is in the leases, so the key is what each holder is to
 *   each lease, sorted; and of the orders of the leases the one with the least key counts.
 * - Of a token it matters which rows have it under the same holder, and how far it is above the lower of the two sequences, where
 *   it could be drawn once more. A term that is neither in a row of its holder nor above can only be refused, for ever. So can every
 *   term of a lease that nobody holds, and a row that was forgotten is as good as one that is free.
 * - Nothing comes of the rest that a process knows once it is gone; what it has sent still arrives, and its transactions go on.
 */
export function exactKey({ trustWindow, servers }: ExactSameness): Key {
  return (world) => {
    const { now, processes, txs } = world
    let floor = Number.POSITIVE_INFINITY
    for (const s of servers) floor = Math.min(floor, world.servers[s]!.lastToken)
    const left = (at: number): number => (at > now ? at - now : 0)
    /** Above the floor, or 0: then only where it is counts. */
    const above = (token: number): number => (token > floor ? token - floor : 0)

    /** What the holder is by itself. */
    const own = (h: string): string => {
      const { phase, beat, confirmedAt, beatSentAt } = processes[Number(h)]!
      const isUp = phase === 'up'
      let key = isUp ? `u${left(confirmedAt + trustWindow)}` : phase
      if (beat === 'sent' || (isUp && beat !== 'none'))
        key += beat + (isUp ? left(beatSentAt + trustWindow) : '')
      for (const s of servers) {
        const { isThere, isEnded, expiresAt } = world.servers[s]!.holders[Number(h)]!
        key += isThere ? (isEnded ? 'E' : `A${left(expiresAt)}`) : 'N'
      }
      return key
    }
    /** What it is to a lease. */
    const towards = (h: number, lease: number): string => {
      const { phase, told, held } = processes[h]!
      let sum = '|'
      for (const s of servers) {
        const row = world.servers[s]!.leases[lease]!
        if (row.holder === h) sum += `h${s}.${above(row.token)}`
      }
      const terms: string[] = []
      for (const { lease: name, token } of told) {
        if (name !== lease) continue
        let key = phase === 'up' && held.some((one) => one.lease === lease && one.token === token) ? 'H' : ''
        for (const s of servers) {
          const row = world.servers[s]!.leases[lease]!
          if (row.holder === h && row.token === token) key += s
        }
        if (key !== '' || token > floor) terms.push(`t${key}.${above(token)}`)
      }
      sum += terms.length > 1 ? terms.toSorted().join('') : (terms[0] ?? '')
      for (const tx of txs) {
        if (tx.holder !== h || tx.lease !== lease) continue
        const row = world.servers[tx.server]!.leases[lease]!
        sum += `x${tx.server}${row.token > tx.token || (row.token === tx.token && row.by !== h) ? '!' : ''}.${above(tx.token)}`
      }
      return sum
    }

    const leases = Object.keys(world.servers[0]!.leases).map(Number)
    const pieces = Object.keys(processes).map((h) => [
      own(h),
      ...leases.map((lease) => towards(Number(h), lease)),
    ])
    let least = ''
    for (const order of permutations(leases.length)) {
      const holders = pieces.map((piece) => order.reduce((key, i) => key + piece[i + 1]!, piece[0]!))
      const key = holders.toSorted().join(';')
      if (least === '' || key < least) least = key
    }
    // That numbers come twice is expected of a counter after a failover.
    const wrongs = world.wrongs.filter(
      (wrong) => !(world.isPromoted && wrong === 'a token was granted twice'),
    )
    for (const s of servers) least += `/${above(world.servers[s]!.lastToken)}`
    return `${least}${world.isPromoted ? 'P' : ''}${world.isLossy ? 'L' : ''}${wrongs.join()}`
  }
}

const permutationsOf = new Map<number, readonly (readonly number[])[]>()

/** Of the numbers from 0. */
function permutations(count: number): readonly (readonly number[])[] {
  let all = permutationsOf.get(count)
  if (all === undefined) {
    all =
      count === 0
        ? [[]]
        : permutations(count - 1).flatMap((rest) =>
            Array.from({ length: count }, (_, i) => rest.toSpliced(i, 0, count - 1)),
          )
    permutationsOf.set(count, all)
  }
  return all
}
