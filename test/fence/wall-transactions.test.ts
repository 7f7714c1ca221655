import type { Client } from 'pg'
import { beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { copyIn, levels } from './wall-attacks.ts'
import {
  type GrantedTerm,
  callFence,
  grant,
  refusalOf,
  sessionOfTest,
  setFence,
  waitsOrAnswers,
} from './wall-terms.ts'

// How a protected write and the change of terms meet in time: who waits, who is refused, who may finish.

const database = useDatabase()
const guard = 'account'
let session: Client
let term: GrantedTerm

/** Both ways in which the fence of a term reaches a transaction. The session's transaction has to be ended. */
const forms = [
  [
    'a session fence',
    async (client: Client, of: GrantedTerm) => {
      await setFence(client, of.fence)
      await client.query('begin')
    },
  ],
  [
    'fence()',
    async (client: Client, of: GrantedTerm) => {
      await client.query('begin')
      await callFence(client, of)
    },
  ],
] as const

beforeAll(async () => {
  await database.query(`
    create table account (id integer primary key, balance integer not null);
    select fencepost.protect('account', '${guard}')`)
})

beforeEach(async () => {
  await database.query(`
    begin;
    set local session_replication_role = replica;
    delete from account;
    insert into account values (1, 100), (2, 200);
    commit`)
  term = await grant(database, guard)
  session = await sessionOfTest(database)
})

const write = (amount: number, client = session) =>
  client.query('update account set balance = $1 where id = 1', [amount])

async function balance(): Promise<number> {
  const [row] = await database.query<{ balance: number }>('select balance from account where id = 1')
  return row!.balance
}

/** What somebody else's attempt at the lease finds, when the holder has expired. */
async function taking(): Promise<string> {
  await term.holder.expire()
  const taker = await SqlHolder.join(database.pool, 600_000)
  const [row] = await taker.acquire(guard)
  if (row!.token === null) return row!.reason!
  await taker.release(guard, BigInt(row!.token))
  return 'granted'
}

describe('a holder that expires', () => {
  test.for(forms)('finishes the transaction in which it has written: %s', async ([, begin]) => {
    await begin(session, term)
    await write(1)
    await term.holder.expire()
    await write(2)
    await session.query('insert into account values (3, 300)')
    await session.query('commit')
    expect(await balance()).toBe(2)
  })

  test('finishes the transaction that it began with fence(), when it has not written yet', async () => {
    await forms[1][1](session, term)
    await term.holder.expire()
    await write(1)
    await session.query('commit')
    expect(await balance()).toBe(1)
  })

  test.for(forms)('begins no other transaction: %s', async ([, begin]) => {
    await begin(session, term)
    await write(1)
    await term.holder.expire()
    await session.query('commit')
    expect(await refusalOf(begin(session, term).then(() => write(2)))).toBe('FP002')
    await session.query('rollback')
    expect(await balance()).toBe(1)
  })

  test('does not write for the first time in a transaction that a session fence covers', async () => {
    await setFence(session, term.fence)
    await session.query('begin')
    await session.query('select from account')
    await term.holder.expire()
    expect(await refusalOf(write(1))).toBe('FP002')
    await session.query('rollback')
  })

  test('goes on after a savepoint that it has released, and not after one that it has rolled back', async () => {
    await setFence(session, term.fence)
    await session.query('begin')
    await session.query('savepoint one')
    await write(1)
    await session.query('release one')
    await term.holder.expire()
    await write(2)
    await session.query('commit')
    expect(await balance()).toBe(2)

    term = await grant(database, guard)
    await setFence(session, term.fence)
    await session.query('begin')
    await session.query('savepoint one')
    await write(3)
    await session.query('rollback to one')
    await term.holder.expire()
    expect(await refusalOf(write(4))).toBe('FP002')
    await session.query('rollback')
    expect(await balance()).toBe(2)
  })

  test('finishes the multi-lease transaction that it has begun', async () => {
    const other = await grant(database, 'other')
    await session.query('begin')
    await callFence(session, other)
    await callFence(session, term)
    await term.holder.expire()
    await other.holder.expire()
    await write(1)
    await session.query('commit')
    expect(await balance()).toBe(1)
  })

  // An old snapshot does not show that the holder has ended, and need not: the lock on the lease is taken all the same.
  test.for(['repeatable read', 'serializable'])(
    'may write at %s under a snapshot from before its end, and is not succeeded meanwhile',
    async (level) => {
      await setFence(session, term.fence)
      await session.query(`begin isolation level ${level}`)
      await session.query('select from account')
      await term.holder.end()
      await write(1)
      expect(await taking()).toBe('draining')
      await session.query('commit')
      expect(await taking()).toBe('granted')
      expect(await balance()).toBe(1)
    },
  )
})

// The wall notes in fencepost.held which terms the transaction has locked. Nobody needs to set it.
describe('a session that claims to hold its term already', () => {
  const claim = async (fence: string): Promise<void> => {
    await session.query(`select set_config('fencepost.held', $1, false)`, [fence])
    await setFence(session, fence)
  }

  test('is refused when its term is stale', async () => {
    await claim(term.fence)
    await grant(database, guard)
    expect(await refusalOf(write(1))).toBe('FP001')
  })

  test('is refused when its term was succeeded by a later one of the same holder', async () => {
    await claim(term.fence)
    await term.holder.release(guard, term.token)
    await term.holder.take(guard)
    expect(await refusalOf(write(1))).toBe('FP001')
  })

  test('is refused when its holder is made up', async () => {
    await claim(`${term.token}:aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa:${guard}`)
    expect(await refusalOf(write(1))).toBe('FP001')
  })

  test('is refused when it is fenced by another lease', async () => {
    await claim((await grant(database, 'other')).fence)
    expect(await refusalOf(write(1))).toBe('FP006')
  })

  test('holds off the next term from then on', async () => {
    await claim(term.fence)
    await session.query('begin')
    await write(1)
    expect(await taking()).toBe('contended')
    await session.query('commit')
    expect(await taking()).toBe('granted')
  })
})

describe('while a protected write is not committed', () => {
  test.for(forms)('no newer term is granted, and the lease is draining: %s', async ([, begin]) => {
    await begin(session, term)
    await write(1)
    expect(await taking()).toBe('draining')
    await session.query('commit')
    expect(await taking()).toBe('granted')
    expect(await balance()).toBe(1)
  })

  test.for(forms)('its holder cannot release the lease: %s', async ([, begin]) => {
    await begin(session, term)
    await write(1)
    expect(await term.holder.release(guard, term.token)).toBe('draining')
    await session.query('rollback')
    expect(await term.holder.release(guard, term.token)).toBe('released')
  })

  test.for(forms)('its rollback frees the lease: %s', async ([, begin]) => {
    await begin(session, term)
    await write(1)
    await session.query('rollback')
    expect(await taking()).toBe('granted')
    expect(await balance()).toBe(100)
  })

  test('the rollback to a savepoint from before it frees the lease, and its transaction writes no more', async () => {
    await setFence(session, term.fence)
    await session.query('begin')
    await session.query('savepoint before')
    await write(1)
    expect(await taking()).toBe('draining')
    await session.query('rollback to before')
    expect(await taking()).toBe('granted')
    expect(await refusalOf(write(2))).toBe('FP001')
    await session.query('rollback')
    expect(await balance()).toBe(100)
  })

  test('a COPY that waits for its next row holds the lease', async ({ signal }) => {
    await setFence(session, term.fence)
    let found: string | undefined
    const { rows } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
    // Its triggers have been run when the server waits for rows.
    const isReady = (async () => {
      for (;;) {
        const waiting = await database.query(
          `select from pg_stat_activity
            where pid = $1 and state = 'active' and query like 'copy%' and wait_event = 'ClientRead'`,
          [rows[0]!.pid],
        )
        if (waiting.length > 0 || signal.aborted) break
      }
      found = await taking()
    })()
    await copyIn(session, 'copy account (id, balance) from stdin', '3\t300\n', isReady)
    expect(found).toBe('draining')
    expect(await taking()).toBe('granted')
    expect(await database.query('select from account')).toHaveLength(3)
  })

  test.for(
    forms.flatMap(([form, begin]) =>
      ['commit', 'rollback'].map((end) => [`${end} prepared, ${form}`, end, begin] as const),
    ),
  )('PREPARE TRANSACTION keeps the lease until the end: %s', async ([title, end, begin], { skip }) => {
    const [row] = await database.query<{ count: number }>(
      `select current_setting('max_prepared_transactions')::integer as count`,
    )
    skip(row!.count === 0, 'max_prepared_transactions is 0')
    const id = `${title} ${process.pid}`
    // Nothing could be written, nor the database be dropped, while one is left over.
    onTestFinished(async () => {
      await refusalOf(database.query(`rollback prepared '${id}'`))
    })
    await begin(session, term)
    await write(1)
    await session.query(`prepare transaction '${id}'`)
    // Not even the end of the session that prepared it frees the lease.
    await session.end()
    expect(await taking()).toBe('draining')
    await database.query(`${end} prepared '${id}'`)
    expect(await taking()).toBe('granted')
    expect(await balance()).toBe(end === 'commit' ? 1 : 100)
  })
})

describe('a write that was checked before, and is made after the take-over', () => {
  test.for(levels)('is refused at %s, although nothing had changed when it was worked out', async (level) => {
    await setFence(session, term.fence)
    await session.query(`begin isolation level ${level}`)
    const { rows } = await session.query<{ balance: number }>('select balance from account where id = 1')
    const next = await grant(database, guard)
    const other = await sessionOfTest(database)
    await setFence(other, next.fence)
    await write(50, other)
    expect(await refusalOf(write(rows[0]!.balance - 30))).toBe(level === 'read committed' ? 'FP001' : '40001')
    await session.query('commit')
    expect(await balance()).toBe(50)
  })

  test.for(levels)('is refused at %s when it has to wait for the grant to be committed', async (level) => {
    await term.holder.expire()
    const other = await sessionOfTest(database)
    const taker = await SqlHolder.join(database.pool)
    await setFence(session, term.fence)
    await session.query(`begin isolation level ${level}`)
    await session.query('select from account')
    await other.query('begin')
    await other.query('select from fencepost.acquire($1, $2, 1)', [[guard], taker.id])
    const writing = refusalOf(write(1))
    await waitsOrAnswers(database, writing)
    await other.query('commit')
    expect(await writing).toBe(level === 'read committed' ? 'FP001' : '40001')
    await session.query('commit')
    expect(await balance()).toBe(100)
    await taker.end()
  })

  test('is made when the grant that it waited for is rolled back', async () => {
    const other = await sessionOfTest(database)
    await other.query('begin')
    await other.query('select from fencepost.lease where name = $1 for update', [guard])
    await setFence(session, term.fence)
    const writing = write(1)
    await waitsOrAnswers(database, writing)
    await other.query('rollback')
    await writing
    expect(await balance()).toBe(1)
  })

  test("is refused without waiting for the row that its successor's open transaction has written", async () => {
    const next = await grant(database, guard)
    const other = await sessionOfTest(database)
    await setFence(other, next.fence)
    await other.query('begin')
    await write(50, other)
    await setFence(session, term.fence)
    expect(await refusalOf(write(1))).toBe('FP001')
    await other.query('commit')
    expect(await balance()).toBe(50)
  })

  test('is refused when it was sent in time, but waited for the table while the lease changed hands', async () => {
    const other = await sessionOfTest(database)
    await other.query('begin')
    await other.query('lock table account in exclusive mode')
    await setFence(session, term.fence)
    const writing = refusalOf(write(1))
    await waitsOrAnswers(database, writing)
    expect(await taking()).toBe('granted')
    await other.query('commit')
    expect(await writing).toBe('FP001')
    expect(await balance()).toBe(100)
  })

  test('cannot be: when it waits for a row, the take-over waits for it', async () => {
    const other = await sessionOfTest(database)
    await other.query('begin')
    await other.query('select from account where id = 1 for update')
    await setFence(session, term.fence)
    const writing = write(1)
    await waitsOrAnswers(database, writing)
    expect(await taking()).toBe('draining')
    await other.query('rollback')
    await writing
    expect(await taking()).toBe('granted')
    expect(await balance()).toBe(1)
  })

  test('is refused for every statement of a function that was under way', async () => {
    await database.query(`create or replace function slow_write() returns void language plpgsql as $$
      begin
        perform pg_advisory_xact_lock(77);
        update account set balance = 1 where id = 1;
      end $$`)
    const other = await sessionOfTest(database)
    await other.query('select pg_advisory_lock(77)')
    await setFence(session, term.fence)
    const writing = refusalOf(session.query('select slow_write()'))
    await waitsOrAnswers(database, writing)
    expect(await taking()).toBe('granted')
    await other.end()
    expect(await writing).toBe('FP001')
    expect(await balance()).toBe(100)
  })
})

describe('a procedure that commits in its middle', () => {
  test('is refused after the lease has changed hands, and keeps what it had committed', async () => {
    await database.query(`create or replace procedure write_twice() language plpgsql as $$
      begin
        update account set balance = 1 where id = 1;
        commit;
        perform pg_advisory_xact_lock(78);
        update account set balance = 2 where id = 1;
      end $$`)
    const other = await sessionOfTest(database)
    await other.query('select pg_advisory_lock(78)')
    await setFence(session, term.fence)
    const writing = refusalOf(session.query('call write_twice()'))
    await waitsOrAnswers(database, writing)
    expect(await taking()).toBe('granted')
    await other.end()
    expect(await writing).toBe('FP001')
    expect(await balance()).toBe(1)
  })
})

describe('what else the transaction has written', () => {
  test('goes back when a protected write is refused, permitted protected writes included', async () => {
    await database.query(`
      create table book (id integer);
      create table diary (id integer);
      select fencepost.protect('book', 'book')`)
    onTestFinished(async () => {
      await database.query(`select fencepost.unprotect('book'); drop table book, diary`)
    })
    const book = await grant(database, 'book')
    for (const [, begin] of forms) {
      await begin(session, book)
      await session.query('insert into book values (1)')
      await session.query('insert into diary values (1)')
      expect(await refusalOf(write(1))).toBe('FP006')
      expect((await session.query('commit')).command).toBe('ROLLBACK')
    }
    expect(await database.query('select from book')).toEqual([])
    expect(await database.query('select from diary')).toEqual([])
  })

  test('reading and locking rows needs no fence', async () => {
    await session.query('begin')
    await session.query('select from account for update')
    await session.query('lock table account')
    await session.query('explain delete from account')
    expect((await session.query('commit')).command).toBe('COMMIT')
  })
})

describe('the session of a holder', () => {
  const idle = 'idle_in_transaction_session_timeout'

  async function bounds(): Promise<Record<string, string>> {
    const { rows } = await session.query<Record<string, string>>(
      `select current_setting('${idle}') as idle,
              current_setting(case when current_setting('server_version_num')::integer >= 170000
                then 'transaction_timeout' else 'statement_timeout' end) as whole`,
    )
    return rows[0]!
  }

  beforeEach(async () => {
    term = await grant(database, guard, 90_000)
  })

  test('that is fenced by a setting may be idle for one TTL, once it has written and until it commits', async () => {
    await setFence(session, term.fence)
    await session.query('begin')
    await session.query('select from account')
    expect(await bounds()).toEqual({ idle: '0', whole: '0' })
    await write(1)
    expect(await bounds()).toEqual({ idle: '90s', whole: '0' })
    await session.query('commit')
    expect(await bounds()).toEqual({ idle: '0', whole: '0' })
  })

  test.for([
    ['5s', '5s'],
    ['5min', '90s'],
  ] as const)('that has set a bound of %s of its own has one of %s then', async ([own, then]) => {
    await setFence(session, term.fence)
    await session.query(`set ${idle} = '${own}'`)
    await session.query('begin')
    await write(1)
    expect((await bounds())['idle']).toBe(then)
    await session.query('commit')
  })

  test('that was fenced without a bound keeps none, under every kind of guard', async () => {
    await database.query(`
      create table wide (id integer);
      create table narrow (id text);
      select fencepost.protect('wide', 'acc*'), fencepost.protect('narrow', 'acc{id}')`)
    onTestFinished(async () => {
      await database.query(`select fencepost.unprotect(t) from unnest('{wide,narrow}'::regclass[]) t;
        drop table wide, narrow`)
    })
    await session.query('begin')
    await callFence(session, term, term.holder.id, 0)
    await write(1)
    await session.query(`insert into wide values (1); insert into narrow values ('ount')`)
    expect(await bounds()).toEqual({ idle: '0', whole: '0' })
    await session.query('commit')
  })

  test('that was fenced with a bound keeps that bound', async () => {
    await session.query('begin')
    await callFence(session, term, term.holder.id, 7000)
    await write(1)
    expect((await bounds())['idle']).toBe('7s')
    await session.query('commit')
  })

  test('of a term with a hard end is bounded by it as a whole', async () => {
    await database.query(
      `update fencepost.lease set deadline = clock_timestamp() + interval '1 hour' where name = $1`,
      [guard],
    )
    await setFence(session, term.fence)
    await session.query(`set ${idle} = '5s'`)
    await session.query('begin')
    await write(1)
    const { idle: kept, whole } = await bounds()
    expect(kept).toBe('5s')
    expect(whole).toMatch(/^3[56]\d{5}ms$|^1h$|^3600s$/)
    await session.query('commit')
  })

  test('that falls silent after a protected write is ended after a TTL, and the lease moves on', async () => {
    term = await grant(database, guard, 1000)
    const ended = new Promise((resolve) => session.once('end', resolve))
    await setFence(session, term.fence)
    await session.query('begin')
    await write(1)
    expect(await taking()).toBe('draining')
    await ended
    expect(await taking()).toBe('granted')
    expect(await balance()).toBe(100)
  })
})

// The fence has to be the first statement of a transaction. That of a session is checked at the first protected write,
// under the snapshot of the transaction, which may be old by then: such a write can be refused without need.
describe.for(['repeatable read', 'serializable'])('a snapshot at %s that is older than', (level) => {
  test('the grant hides the grant, so a write is refused until it is repeated', async () => {
    await session.query(`begin isolation level ${level}`)
    await session.query('select from account')
    const next = await grant(database, guard)
    await setFence(session, next.fence)
    expect(await refusalOf(write(1))).toBe('FP003')
    await session.query('rollback')
    await setFence(session, next.fence)
    await session.query(`begin isolation level ${level}`)
    await write(1)
    await session.query('commit')
    expect(await balance()).toBe(1)
  })

  test('a grant to the same holder hides that grant, so a write is refused until it is repeated', async () => {
    await session.query(`begin isolation level ${level}`)
    await session.query('select from account')
    await term.holder.release(guard, term.token)
    const token = await term.holder.take(guard)
    await setFence(session, `${token}:${term.holder.id}:${guard}`)
    expect(await refusalOf(write(1))).toBe('FP001')
    await session.query('rollback')
  })

  test('the last heartbeat by a TTL hides the heartbeat, so a write is refused until it is repeated', async () => {
    await database.query(
      `update fencepost.holder set expires_at = clock_timestamp() + interval '30 ms' where id = $1`,
      [term.holder.id],
    )
    await setFence(session, term.fence)
    await session.query(`begin isolation level ${level}`)
    await session.query('select from account')
    expect(await term.holder.beat()).toBe(true)
    await session.query('select pg_sleep(0.03)')
    expect(await refusalOf(write(1))).toBe('40001')
    await session.query('rollback')
    await session.query(`begin isolation level ${level}`)
    await write(1)
    await session.query('commit')
    expect(await balance()).toBe(1)
  })
})
