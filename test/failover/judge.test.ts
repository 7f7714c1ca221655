import { expect, test } from 'vitest'
import type { Term, Token } from '../../src/index.ts'
import { type Evidence, judge } from '../../torture/failover/judge.ts'
import type { Entry, WriteEntry } from '../../torture/failover/ledger.ts'
import type { Passed } from '../../torture/failover/outside.ts'
import type { Told } from '../../torture/failover/told.ts'

const old = 1
const server = 2

function granted(position: number, at: number, token: number, holderId: string, lease = 'l'): Entry {
  return { position: BigInt(position), server: at, lease, token: BigInt(token), holderId }
}

function written(position: number, token: number, holderId: string, writeId = 'w'): WriteEntry {
  return { ...granted(position, server, token, holderId), writeId }
}

function won(token: number, holderId: string, atMs = 0, lease = 'l'): Told {
  const term: Term = { lease, token: BigInt(token) as Token, holderId, sequence: 'default' }
  return { what: 'acquire', outcome: 'won', atMs, term }
}

function passed(token: number, holderId: string): Passed {
  return { lease: 'l', token: BigInt(token), holderId }
}

function judged(evidence: Partial<Evidence>): ReturnType<typeof judge> {
  const ledger = { granted: [], written: [] }
  return judge({ told: [], ledger, server, passed: [], refused: [], promotedAtMs: 100, ...evidence })
}

test('nothing is lost or stale where the new primary goes on from what was answered', () => {
  const ledger = {
    granted: [granted(1, old, 1, 'a'), granted(4, server, 2, 'b')],
    written: [written(2, 1, 'a', 'x'), written(3, 1, 'a'), written(5, 2, 'b')],
  }
  const told: Told[] = [
    won(1, 'a'),
    { what: 'write', outcome: 'won', atMs: 1, writeId: 'x' },
    { what: 'acquire', outcome: 'unknown', atMs: 90, code: 'OUTCOME_UNKNOWN' },
    { what: 'write', outcome: 'lost', atMs: 130, writeId: 'y', code: 'STALE_TERM' },
    won(2, 'b', 150),
  ]
  expect(judged({ ledger, told, passed: [passed(1, 'a'), passed(2, 'b')] })).toMatchObject({
    answered: 2,
    lostGrants: 0,
    lostWrites: 0,
    twice: 0,
    staleWrites: 0,
    refusedWrites: 1,
    passedTwice: 0,
    passedLate: 0,
    shutOut: 0,
    nextGrantMs: 50,
    acquires: { won: 2, busy: 0, lost: 0, failed: 0, unknown: 1 },
    writes: { won: 1, busy: 0, lost: 1, failed: 0, unknown: 0 },
  })
})

test('a grant and a write that were answered and are not there are lost', () => {
  const told: Told[] = [won(1, 'a'), { what: 'write', outcome: 'won', atMs: 1, writeId: 'x' }]
  expect(judged({ told })).toMatchObject({ lostGrants: 1, lostWrites: 1, twice: 0, nextGrantMs: undefined })
})

test('a grant with the number of a lost one of the same holder is not the next grant', () => {
  const told = [won(7, 'b', 90), won(7, 'b', 140)]
  const ledger = { granted: [granted(1, server, 7, 'b')], written: [] }
  expect(judged({ told, ledger })).toMatchObject({ nextGrantMs: 40 })
})

test('the number of a lost grant that another holder has is given twice', () => {
  const told = [won(7, 'a'), won(8, 'a', 0, 'other')]
  const ledger = { granted: [granted(1, server, 7, 'b'), granted(2, server, 8, 'b')], written: [] }
  expect(judged({ told, ledger })).toMatchObject({ lostGrants: 2, twice: 2, twiceForSameLease: 1 })
})

test('the number of a lost grant that the same holder has again is given twice as well: the time tells the two apart', () => {
  const ledger = { granted: [granted(1, server, 7, 'a')], written: [] }
  expect(judged({ told: [won(7, 'a', 150)], ledger })).toMatchObject({ lostGrants: 0, twice: 0 })
  expect(judged({ told: [won(7, 'a', 50), won(7, 'a', 150)], ledger })).toMatchObject({
    lostGrants: 1,
    twice: 1,
  })
})

test.each([
  ['an older term', written(5, 1, 'a')],
  ['a term with the same number and another holder', written(5, 2, 'a')],
  ['a term that was never granted', written(5, 3, 'c')],
  ['a term that is granted only later', written(3, 2, 'b')],
])('a write under %s is stale', (_, write) => {
  const ledger = { granted: [granted(1, old, 1, 'a'), granted(4, server, 2, 'b')], written: [write] }
  expect(judged({ ledger }).staleWrites).toBe(1)
})

test('the grants of other leases do not make a write stale', () => {
  const ledger = {
    granted: [granted(1, old, 1, 'a'), granted(2, server, 2, 'b', 'other')],
    written: [written(3, 1, 'a')],
  }
  expect(judged({ ledger }).staleWrites).toBe(0)
})

test('outside, what a term that is lost does after the new one is late, and under the same number it is let in twice', () => {
  const ledger = { granted: [granted(1, old, 1, 'a'), granted(2, server, 2, 'b')], written: [] }
  const those = [passed(1, 'a'), passed(2, 'c'), passed(2, 'b'), passed(2, 'c'), passed(3, 'c')]
  expect(judged({ ledger, passed: those })).toMatchObject({ passedTwice: 1, passedLate: 2 })
})

test('outside, a term of the new primary is shut out by a lost one only', () => {
  const ledger = { granted: [granted(1, server, 1, 'a'), granted(2, server, 2, 'b')], written: [] }
  const refused = [
    { ...passed(2, 'b'), over: passed(9, 'c') },
    { ...passed(1, 'a'), over: passed(2, 'b') },
    { ...passed(8, 'c'), over: passed(9, 'c') },
  ]
  expect(judged({ ledger, refused }).shutOut).toBe(1)
})
