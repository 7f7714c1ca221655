import type { Ledger } from './ledger.ts'
import type { Passed, Refused } from './outside.ts'
import type { Outcome, Told } from './told.ts'

/** What is known of one failover when it is over. */
export interface Evidence {
  readonly told: readonly Told[]
  /** Of the new primary, which is what remains. */
  readonly ledger: Ledger
  /** The port of the new primary. */
  readonly server: number
  /** By the service outside, in order. */
  readonly passed: readonly Passed[]
  readonly refused: readonly Refused[]
  /** When the standby was told to become a primary. */
  readonly promotedAtMs: number
}

export interface Verdict {
  /** Grants that were answered. */
  readonly answered: number
  /** Of them: not in the new primary. */
  readonly lostGrants: number
  /** Writes of which a client was told that they are committed, and that are not in the new primary. */
  readonly lostWrites: number
  /** Numbers that were answered for a term that is lost, and that the new primary has given to another: for any lease, for the same. */
  readonly twice: number
  readonly twiceForSameLease: number
  /** Writes in the new primary under another term than the one that its lease was last granted. */
  readonly staleWrites: number
  /** Writes refused because their term was over. */
  readonly refusedWrites: number
  /** Outside: numbers that were let in for two terms of one lease. */
  readonly passedTwice: number
  /** Outside: requests of a term that the new primary does not know, let in after one of a term that it granted itself. */
  readonly passedLate: number
  /** Outside: requests under a term of the new primary that were refused because of one that it does not know. */
  readonly shutOut: number
  /** From the order to promote until somebody was told of a grant of the new primary. Undefined: nobody was. */
  readonly nextGrantMs: number | undefined
  readonly acquires: Readonly<Record<Outcome, number>>
  readonly writes: Readonly<Record<Outcome, number>>
}

export function judge({ told, ledger, server, passed, refused, promotedAtMs }: Evidence): Verdict {
  const known = new Set(ledger.granted.map(termKey))
  const wins = told.filter(({ what, outcome }) => what === 'acquire' && outcome === 'won')
  const remaining = new Set(ledger.written.map(({ writeId }) => writeId))
  const fresh = ledger.granted.filter((grant) => grant.server === server)
  const freshKeys = new Set(fresh.map(termKey))
  // A counter can give the same holder the number of a lost grant once more: only the time tells the two apart.
  const kept = new Set(ledger.granted.filter((grant) => grant.server !== server).map(termKey))
  const lost = wins.flatMap(({ term, atMs }) =>
    term === undefined || (atMs < promotedAtMs ? kept : known).has(termKey(term)) ? [] : [term],
  )
  const given = new Map(fresh.map(({ token, lease }) => [token, lease]))
  const committed = told.filter(({ what, outcome }) => what === 'write' && outcome === 'won')
  const next = wins.find(({ term, atMs }) => atMs >= promotedAtMs && freshKeys.has(termKey(term!)))
  return {
    answered: wins.length,
    lostGrants: lost.length,
    lostWrites: committed.filter(({ writeId }) => !remaining.has(writeId!)).length,
    twice: lost.filter(({ token }) => given.has(token)).length,
    twiceForSameLease: lost.filter(({ token, lease }) => given.get(token) === lease).length,
    staleWrites: staleWrites(ledger),
    refusedWrites: told.filter(({ what, outcome }) => what === 'write' && outcome === 'lost').length,
    passedTwice: passedTwice(passed),
    passedLate: passedLate(passed, known, freshKeys),
    shutOut: refused.filter((one) => freshKeys.has(termKey(one)) && !known.has(termKey(one.over))).length,
    nextGrantMs: next === undefined ? undefined : next.atMs - promotedAtMs,
    acquires: tally(told, 'acquire'),
    writes: tally(told, 'write'),
  }
}

function termKey({ lease, token, holderId }: Passed): string {
  return `${token}:${holderId}:${lease}`
}

function staleWrites({ granted, written }: Ledger): number {
  return written.filter((write) => {
    const current = granted.findLast(
      ({ lease, position }) => lease === write.lease && position < write.position,
    )
    return current === undefined || termKey(current) !== termKey(write)
  }).length
}

function passedTwice(passed: readonly Passed[]): number {
  const holders = new Map<string, Set<string>>()
  for (const { lease, token, holderId } of passed) {
    const number = `${token}:${lease}`
    holders.set(number, (holders.get(number) ?? new Set()).add(holderId))
  }
  return [...holders.values()].filter((those) => those.size > 1).length
}

function passedLate(passed: readonly Passed[], known: Set<string>, fresh: Set<string>): number {
  const seen = new Set<string>()
  let late = 0
  for (const one of passed) {
    if (fresh.has(termKey(one))) seen.add(one.lease)
    else if (!known.has(termKey(one)) && seen.has(one.lease)) late += 1
  }
  return late
}

function tally(told: readonly Told[], what: Told['what']): Record<Outcome, number> {
  const counts: Record<Outcome, number> = { won: 0, busy: 0, lost: 0, failed: 0, unknown: 0 }
  for (const one of told) if (one.what === what) counts[one.outcome] += 1
  return counts
}
