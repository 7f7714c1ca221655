import { describe, expect, test } from 'vitest'
import { OpenTransaction } from '../../src/fence/open-transaction.ts'

describe('work in an open transaction', () => {
  test.each([
    'commit',
    'COMMIT;',
    '  \n\tEnd',
    'abort',
    'begin',
    'start transaction',
    'start /* now */ transaction',
    'rollback',
    'rollback work',
    'rollback and chain',
    'rollback;',
    "prepare transaction 'x'",
    "rollback prepared 'x'",
    '-- a\n-- b\ncommit',
    '-- a\rcommit',
    ';commit',
    ' ; -- a\n;/* b */;rollback',
    '/* a /* nested */ b */ commit',
    '/* a */ /* b */ -- c\n commit and chain',
  ])('may not send %j', (sql) => {
    expect(() => new OpenTransaction().assertMaySend(sql)).toThrow(
      expect.objectContaining({ code: 'TRANSACTION_ENDED' }),
    )
  })

  test.each([
    '',
    'select 1',
    'savepoint a',
    'release savepoint a',
    'rollback to a',
    'rollback to savepoint a',
    'ROLLBACK/**/TO SAVEPOINT a',
    'rollback work to a',
    'rollback transaction to savepoint a',
    '/* /* x */ commit */ select 1',
    '-- commit\nselect 1',
    '-- a\r-- commit\n\rselect 1',
    'select 1; commit',
    'prepare plan as select 1',
    'start_of_day()',
    'ending',
    'commit_log()',
    'begin$x',
    "comment on table a is 'commit'",
  ])('may send %j', (sql) => {
    expect(() => new OpenTransaction().assertMaySend(sql)).not.toThrow()
  })

  test('is looked at in no time, however many comments come first', () => {
    const sql = `${'/* a */\n-- b\n'.repeat(20_000)}commit`
    expect(() => new OpenTransaction().assertMaySend(sql)).toThrow(/ended by fencepost alone/)
  })
})
