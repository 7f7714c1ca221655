import { describe, expect, test } from 'vitest'
import { tellsOfControl, transactionControl } from '../../src/fence/transaction-control.ts'

describe('transaction control', () => {
  test.each([
    ['begin', 'begin'],
    ['BEGIN;', 'begin'],
    ['-- first\nbegin work ;\n-- last', 'begin'],
    ['start transaction isolation level serializable, read only', 'begin'],
    ['COMMIT;', 'commit'],
    ['end', 'commit'],
    ['commit and no chain', 'commit'],
    ['/* a */ rollback', 'rollback'],
    ['abort work;', 'rollback'],
  ])('%j is a statement of its own', (sql, control) => {
    expect(transactionControl(sql)).toBe(control)
  })

  test.each([
    'begin; insert into notes values (1)',
    'commit; begin',
    'commit and chain',
    'rollback and chain',
    `prepare transaction 'x'`,
    `commit prepared 'x'`,
    'begin; -- \rdrop table notes',
    'commit /* a /* b */ ; drop table notes; */',
  ])('%j cannot be told', (sql) => {
    expect(transactionControl(sql)).toBe('unclear')
  })

  test.each([
    '',
    'select 1',
    'savepoint a',
    'rollback to savepoint a',
    'prepare p as select 1',
    'select 1; commit',
  ])('%j does not begin with any', (sql) => {
    expect(transactionControl(sql)).toBeUndefined()
  })

  test('in the middle of a text shows in the answers', () => {
    const answers = (...commands: string[]): unknown => commands.map((command) => ({ command }))
    expect(tellsOfControl('', answers('INSERT', 'COMMIT', 'BEGIN'))).toBe(true)
    expect(tellsOfControl('', answers('SELECT', 'START'))).toBe(true)
    expect(tellsOfControl('select 1; rollback and chain', answers('SELECT', 'ROLLBACK'))).toBe(true)
    expect(tellsOfControl('select 1; rollback to a', answers('SELECT', 'ROLLBACK'))).toBe(false)
    expect(tellsOfControl('', answers('SELECT', 'INSERT'))).toBe(false)
    expect(tellsOfControl('', { command: 'COMMIT' })).toBe(false)
  })
})
