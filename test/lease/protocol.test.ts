import { expect, test } from 'vitest'
import type { Connection, TextRow } from '../../src/database/connection.ts'
import { Protocol } from '../../src/lease/protocol.ts'
import type { Token } from '../../src/lease/term.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { Log } from '../support/line.ts'

const asking = {
  sequence: 'default',
  stands: true,
  barges: false,
  bounds: { minHoldMs: 0, maxHoldMs: Number.POSITIVE_INFINITY, graceMs: 0 },
} as const

function answeredWith(...rows: TextRow[]): Protocol {
  const grants: Pick<Connection, 'query'> = { query: () => Promise.resolve(rows) }
  return new Protocol({
    grants: grants as Connection,
    clock: new ManualClock(),
    logger: new Log(),
    timeoutMs: 1000,
    wakes: { deliver: () => true, ticketsOf: () => [] },
  })
}

test.each([
  ['a request for a lease', (protocol: Protocol) => protocol.acquire(['a'], 'holder', 1, asking)],
  ['a question', (protocol: Protocol) => protocol.askAgain(['a'], ['1'], 'holder', 'default')],
  ['a release', (protocol: Protocol) => protocol.release(['a'], [1n as Token], 'holder')],
  ['the leaving of a place', (protocol: Protocol) => protocol.leave('holder', ['a'], ['1'])],
])('an answer about another lease is none to %s: nobody knows what has come of it', async (_, ask) => {
  const other = answeredWith({ name: 'b', token: '7', outcome: 'left', wake: null })
  await expect(ask(other)).rejects.toMatchObject({
    effect: 'unknown',
    cause: { message: 'the database gave no answer for lease "a"' },
  })
  await expect(ask(answeredWith())).rejects.toMatchObject({ effect: 'unknown' })
})
