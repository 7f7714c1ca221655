import { expect, test } from 'vitest'
import type { Fence } from '../../src/fence/fence.ts'
import { refusalOf } from '../../src/fence/refusal.ts'
import { DatabaseError, StaleTermError, type Token } from '../../src/index.ts'

// The errors of the real packages are in clients.test.ts.

const fence: Fence = {
  term: {
    lease: 'a',
    token: 7n as Token,
    holderId: '0b6e4b6c-6f4e-4d0e-9d6e-2f6d3c8f7a51',
    sequence: 'default',
  },
}
const stale = { code: 'FP001', detail: '{"by": "lease", "lease": "a", "current": "9"}' }

test('a refusal is found in whatever wraps it, and what was thrown is its cause', () => {
  const wrappers = [
    stale,
    new Error('outer', { cause: stale }),
    new Error('outer', { cause: new Error('inner', { cause: stale }) }),
    Object.assign(new Error('TypeORM'), { driverError: stale }),
    Object.assign(new Error('Prisma'), { code: 'P2010', meta: { driverAdapterError: { cause: stale } } }),
    Object.assign(new Error('Sequelize'), { original: stale, parent: stale }),
    new AggregateError([new Error('other'), stale]),
    Object.assign(new Error('sqlState'), { sqlState: 'FP001', detail: stale.detail }),
  ]
  for (const error of wrappers) {
    const refusal = refusalOf(error, fence)
    expect(refusal).toBeInstanceOf(StaleTermError)
    expect(refusal).toMatchObject({ lease: 'a', token: 7n, currentToken: 9n, by: 'lease' })
    expect(refusal?.cause).toBe(error)
  }
})

test('a refusal whose detail the client has dropped is one all the same', () => {
  expect(refusalOf({ code: 'FP001' }, fence)).toMatchObject({ code: 'STALE_TERM', currentToken: undefined })
  expect(refusalOf({ code: 'FP002' }, fence)).toMatchObject({ code: 'HOLDER_EXPIRED' })
  expect(refusalOf({ code: 'FP003' }, fence)).toMatchObject({ code: 'FOREIGN_LEASE' })
  expect(refusalOf({ code: 'FP005' }, fence)).toMatchObject({ code: 'UNFENCED' })
  expect(refusalOf({ code: 'FP006' }, fence)).toMatchObject({ code: 'WRONG_LEASE' })
})

test("fencepost's own refusals come back as they are, wherever they are", () => {
  const refusal = new StaleTermError('b', 3n, 4n)
  expect(refusalOf(refusal, fence)).toBe(refusal)
  expect(refusalOf(new Error('outer', { cause: refusal }), fence)).toBe(refusal)
})

test('nothing else is a refusal', () => {
  const circle = new Error('circle')
  circle.cause = Object.assign(new Error('inner'), { cause: circle, errors: [circle] })
  const others = [
    undefined,
    null,
    'FP001',
    new Error('token 7 of lease "a" is stale (FP001)'),
    { code: 'FP0010' },
    { code: 1 },
    { code: 'FP009' },
    { code: 'P2010', meta: { code: '23505' } },
    { detail: 'FP001' },
    circle,
    new DatabaseError('TRANSACTION_ABORTED', 'swallowed', { cause: undefined }),
  ]
  for (const error of others) expect(refusalOf(error, fence)).toBeUndefined()
})

test('without a fence the refusals of protected tables are recognised, and others are not', () => {
  const unfenced = { code: 'FP005', detail: '{"by": "wall", "what": "table public.accounts", "guard": "a"}' }
  const error = new Error('outer', { cause: unfenced })
  expect(refusalOf(error)).toMatchObject({
    code: 'UNFENCED',
    what: 'table public.accounts',
    guard: 'a',
    cause: error,
  })
  expect(refusalOf(stale)).toBeUndefined()
  expect(refusalOf(new Error('something else'))).toBeUndefined()
})
