import { describe, expect, test } from 'vitest'
import {
  changeOfModes,
  mayChain,
  mayEndItsOwn,
  resetsReadOnly,
  transactionControl,
} from '../../src/fence/transaction-control.ts'

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
    ';commit',
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
})

test.each([
  'select 1; rollback and chain',
  'select 1; ROLLBACK WORK AND CHAIN',
  'abort/* a /* b */ */transaction -- c\r and --\nchain',
  'rollback to a; rollback; rollback and chain',
])('%j may begin the next transaction with a rollback', (sql) => {
  expect(mayChain(sql)).toBe(true)
})

test.each([
  '',
  'rollback',
  'rollback to chain',
  'rollback and no chain',
  `insert into notes values ('a chain'); rollback to a`,
  'select rollback from the_chain',
])('%j does not', (sql) => {
  expect(mayChain(sql)).toBe(false)
})

test.each([
  ['set transaction isolation level serializable, read only;', 'modes'],
  ['SET LOCAL TRANSACTION READ WRITE -- so', 'modes'],
  [`/* a */ set session transaction_isolation = 'repeatable read'`, 'modes'],
  ['set transaction_deferrable to on', 'modes'],
  [`set transaction snapshot '00000003-0000001B-1'`, 'snapshot'],
  ['set transaction read write; insert into notes values (1)', undefined],
  [`set transaction_read_only = 'off'; select 'x'`, undefined],
  ['set transaction read write /* a /* b */ ; drop table notes; */', undefined],
  ['set session characteristics as transaction read only', undefined],
  ['set transaction_timeout = 1', undefined],
  [`set lock_timeout = 'transaction'`, undefined],
  ['select 1; set transaction read write', undefined],
])('%j makes a change of %j', (sql, change) => {
  expect(changeOfModes(sql)).toBe(change)
})

test.each([
  'reset transaction_read_only',
  'SET transaction_read_only /* so */ TO DEFAULT;',
  'set local transaction_read_only = default',
  'select 1; reset transaction_read_only',
  'do $$ begin reset transaction_read_only; end $$',
  'reset "transaction_read_only"',
  'RESET"transaction_read_only"',
  'set local "transaction_read_only" to default',
])('%j makes a transaction that only reads one that writes, before PostgreSQL 16', (sql) => {
  expect(resetsReadOnly(sql)).toBe(true)
})

test.each([
  'set transaction_read_only = off',
  'set default_transaction_read_only to default',
  'reset default_transaction_read_only',
  'set "default_transaction_read_only" to default',
  'reset all',
  'show transaction_read_only',
])('%j does not', (sql) => {
  expect(resetsReadOnly(sql)).toBe(false)
})

test.each([
  'call work()',
  '-- so\nCALL "Work"(1, $1);',
  'do $$ begin commit; end $$',
  'DO language plpgsql $a$ begin ROLLBACK AND CHAIN; end $a$;',
  `do $$ begin call work('$'); end $$ language plpgsql ;`,
  'do $$ plpy.commit() $$ language plpython3u',
])('%j may end the transaction that it runs in', (sql) => {
  expect(mayEndItsOwn(sql)).toBe(true)
})

test.each([
  '',
  'select 1',
  'vacuum',
  'call work(); insert into notes values (1)',
  'do $$ begin insert into notes values (1); end $$',
  `do $$ begin raise 'no commit here'; end $$`,
  'do $$ begin commit; end $$; insert into notes values ($$1$$)',
  'docall',
])('%j may not, or is not alone', (sql) => {
  expect(mayEndItsOwn(sql)).toBe(false)
})
