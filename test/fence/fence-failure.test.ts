import { expect, test } from 'vitest'
import { transactionFailure } from '../../src/fence/fence-failure.ts'
import type { Token } from '../../src/index.ts'

const term = { lease: 'a', token: 7n as Token, holderId: 'x', sequence: 'default' }

// Which of the two reaches the client is a matter of microseconds, so the answers are given as they come.
test.each([
  // The server says so before it carries out what it has read, and never after a COMMIT.
  ['25P03', 'TRANSACTION_CUT_OFF'],
  // These may come after the COMMIT was carried out, and before it was answered.
  ['25P04', 'OUTCOME_UNKNOWN'],
  ['57P01', 'OUTCOME_UNKNOWN'],
  ['08006', 'OUTCOME_UNKNOWN'],
  [undefined, 'OUTCOME_UNKNOWN'],
])('the answer %s to COMMIT is told as %s', (code, told) => {
  const answer = Object.assign(new Error('the session is over'), { code })
  expect(transactionFailure(answer, 'committing', term, true)).toMatchObject({ code: told, cause: answer })
})
