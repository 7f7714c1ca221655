import { expect, test } from 'vitest'
import type { Connection } from '../../src/database/connection.ts'
import type { Protocol, ReleaseAnswer } from '../../src/lease/protocol.ts'
import { Seat } from '../../src/lease/seat.ts'
import type { Token } from '../../src/lease/term.ts'
import { silent } from '../../src/logger.ts'
import { ManualClock, settled } from '../support/manual-clock.ts'

test('a term that is being given back and is found to be a stray meanwhile is given back once', async () => {
  const clock = new ManualClock()
  // A fenced transaction is open when it is asked for first.
  const answers: ReleaseAnswer['outcome'][] = ['draining', 'released', 'not_held']
  const protocol = {
    join: async () => {},
    beat: async () => true,
    end: async () => {},
    release: async () => [{ outcome: answers.shift() ?? 'not_held', isHandedOver: false }],
  } as unknown as Protocol
  const identity = { id: 'holder', label: 'test', host: 'test', pid: 1, meta: {} }
  const seat = new Seat({
    identity,
    ttlMs: 9000,
    protocol,
    clock,
    logger: silent,
    beats: { isOpen: true, close: async () => {} } as unknown as Connection,
    retire: () => false,
    onSettled: () => {},
  })
  await seat.whenJoined
  const term = { lease: 'draining', token: 7n as Token, holderId: 'holder', sequence: 'default' }
  const released = seat.giveBack(term)
  await settled()
  const stray = seat.giveBack({ ...term })
  await settled()
  await clock.advance(1000)
  expect(await Promise.all([released, stray])).toEqual(['released', 'released'])
  await seat.close()
})
