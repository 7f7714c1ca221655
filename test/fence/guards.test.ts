import type { Client } from 'pg'
import { beforeEach, describe, expect, test } from 'vitest'
import { TestDatabase, useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

// Each guard of the protocol against the attack it is there for, and the same attack with the guard taken out: a test
// that could not fail would prove nothing.

const guarded = useDatabase()
const unguarded = useDatabase()

/** Rewrites one installed function, and insists that there was something to take out. */
async function takeOut(database: TestDatabase, name: string, text: RegExp, instead: string): Promise<void> {
  const [row] = await database.query<{ source: string }>(
    `select pg_get_functiondef(oid) as source from pg_proc where proname = $1 and pronamespace = 'fencepost'::regnamespace`,
    [name],
  )
  const without = row!.source.replace(text, instead)
  expect(without).not.toBe(row!.source)
  await database.query(without)
}

/** Runs the attack on the protocol as it is, then without the guard. */
function guard(
  what: string,
  functionName: string,
  guardText: RegExp,
  instead: string,
  attack: (database: TestDatabase) => Promise<boolean>,
): void {
  // oxlint-disable-next-line vitest/valid-title -- The title names the guard.
  describe(what, () => {
    test('holds', async () => {
      expect(await attack(guarded)).toBe(false)
    })
    test('is what holds: without it the attack succeeds', async () => {
      const [before] = await unguarded.query<{ source: string }>(
        `select pg_get_functiondef(oid) as source from pg_proc where proname = $1 and pronamespace = 'fencepost'::regnamespace`,
        [functionName],
      )
      await takeOut(unguarded, functionName, guardText, instead)
      try {
        expect(await attack(unguarded)).toBe(true)
      } finally {
        await unguarded.query(before!.source)
      }
    })
  })
}

beforeEach(async () => {
  for (const database of [guarded, unguarded]) {
    await database.query('drop table if exists written')
    await database.query(
      'create table written (place bigserial primary key, token bigint not null, id integer not null default 0)',
    )
    await database.query('truncate fencepost.lease')
  }
})

const write = (client: Client, token: bigint) =>
  client.query('insert into written (token) values ($1)', [token.toString()])

/** True when a write of an older term was committed after one of a newer term. */
async function isOutOfOrder(database: TestDatabase): Promise<boolean> {
  const rows = await database.query<{ token: string }>('select token from written order by place')
  return rows.some((row, index) => index > 0 && BigInt(row.token) < BigInt(rows[index - 1]!.token))
}

guard(
  "the fence's lock on the lease row, against a take-over in mid-transaction",
  'hold_term',
  /\n\s*for share of l;/,
  ';',
  async (database) => {
    const [one, two] = [await database.session(), await database.session()]
    const a = await SqlHolder.join(database.pool)
    const tokenA = await a.take('lease')
    await one.query('begin')
    await a.fence(one, 'lease', tokenA)
    await a.expire()
    const b = await SqlHolder.join(database.pool)
    const [row] = await b.acquire('lease')
    if (row?.token != null) {
      await two.query('begin')
      await b.fence(two, 'lease', BigInt(row.token))
      await write(two, BigInt(row.token))
      await two.query('commit')
    }
    await write(one, tokenA)
    await one.query('commit')
    return isOutOfOrder(database)
  },
)

guard(
  "the fence's comparison of the token, against a term that was succeeded by the same holder's next",
  'hold_term',
  /and l\.token = p_token/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    const older = await a.take('lease')
    await a.release('lease', older)
    const newer = await a.take('lease')
    await write(session, newer)
    await session.query('begin')
    const isRefused = await a.fence(session, 'lease', older).then(
      () => false,
      (error: { code: string }) => error.code === 'FP001',
    )
    if (!isRefused) await write(session, older)
    await session.query('commit')
    return isOutOfOrder(database)
  },
)

guard(
  "the fence's comparison of the holder, against equal tokens after a failover that lost a grant",
  'hold_term',
  /and l\.holder_id = p_holder/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    // The new primary never saw the grant to A, and granted the same number to B.
    const b = await SqlHolder.join(database.pool)
    await database.query('update fencepost.lease set holder_id = $1', [b.id])
    await session.query('begin')
    const isAccepted = await a.fence(session, 'lease', token).then(
      () => true,
      () => false,
    )
    await session.query('rollback')
    return isAccepted
  },
)

guard(
  "the fence's look at the holder, against fenced transactions that follow each other for ever",
  'hold_term',
  /if not found or hold_term.deadline <= clock_timestamp\(\) then/,
  'if hold_term.deadline <= clock_timestamp() then',
  async (database) => {
    const [one, two] = [await database.session(), await database.session()]
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    await one.query('begin')
    await a.fence(one, 'lease', token)
    await a.expire()
    // Before one ends, the next begins: whoever wants the lease never finds its row unlocked.
    await two.query('begin')
    const began = await a.fence(two, 'lease', token).then(
      () => true,
      () => false,
    )
    await one.query('commit')
    await two.query('rollback')
    return began
  },
)

guard(
  "acquire's lock on the lease row, against two takers at once",
  'acquire',
  /for update of l skip locked/,
  '',
  async (database) => {
    const [one, two] = [await database.session(), await database.session()]
    const former = await SqlHolder.join(database.pool)
    await former.release('lease', await former.take('lease'))
    const [a, b] = [await SqlHolder.join(one), await SqlHolder.join(two)]
    await one.query('begin')
    const [first] = await a.acquire('lease')
    const second = b.acquire('lease')
    // The second one either answers at once, or waits for the first one's token.
    await waitsOrAnswers(database, second)
    await one.query('commit')
    return first?.token != null && (await second)[0]?.token != null
  },
)

guard(
  "the take-over's ending of an expired holder, against its late heartbeat",
  'acquire',
  /update holder h set ended_at = clock_timestamp\(\)\s+where/,
  'update holder h set label = h.label where',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    await a.take('lease')
    await a.expire()
    const b = await SqlHolder.join(database.pool)
    const [row] = await b.acquire('lease')
    // Without the ending nobody can take the lease at all, for "ended" is what makes it free. Freeing it on expiry
    // alone is the mistake this stands for.
    if (row?.token == null) {
      await database.query('update fencepost.lease set holder_id = $1', [b.id])
    }
    return a.beat()
  },
)

guard(
  "acquire's lock on its own holder row, against being ended before it commits",
  'acquire',
  /for key share;/,
  ';',
  async (database) => {
    const one = await database.session()
    const a = await SqlHolder.join(database.pool)
    await one.query('begin')
    await one.query('select from fencepost.acquire($1, $2, 1)', [['lease'], a.id])
    const ending = a.end()
    await waitsOrAnswers(database, ending)
    const [early] = await database.query<{ ended: boolean }>(
      'select ended_at is not null as ended from fencepost.holder where id = $1',
      [a.id],
    )
    await one.query('commit')
    await ending
    // A grant was committed to a holder that had already ended.
    return early!.ended
  },
)

guard(
  "release's comparison of the token, against the release of a term that is over",
  'release',
  /where l\.token = r\.token and l\.holder_id = p_holder\n\s+order/,
  'where l.holder_id = p_holder order',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const older = await a.take('lease')
    await a.release('lease', older)
    await a.take('lease')
    return (await a.release('lease', older)) === 'released'
  },
)

guard(
  "release's comparison of the holder, against a former holder with an equal token",
  'release',
  /where l\.token = r\.token and l\.holder_id = p_holder\n\s+order/,
  'where l.token = r.token order',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    await database.query('update fencepost.lease set holder_id = $1', [b.id])
    return (await a.release('lease', token)) === 'released'
  },
)

guard(
  'the mark of void attempts, against a lost attempt that is carried out late',
  'acquire',
  /if p_tickets is null and v_holder\.voided_attempt >= p_attempt then/,
  'if false then',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    await database.query(`select fencepost.void_attempts($1, 1)`, [a.id])
    return a.acquire('lease').then(
      ([row]) => row?.token != null,
      () => false,
    )
  },
)

guard(
  "the grant's own durability, against a session with synchronous_commit off",
  'acquire',
  /perform be_certain\(\);/g,
  'null;',
  async (database) => {
    const session = await database.session()
    await session.query('set synchronous_commit = off')
    const a = await SqlHolder.join(session)
    await session.query('begin')
    await a.acquire('lease')
    const { rows } = await session.query<{ synchronous_commit: string }>('show synchronous_commit')
    await session.query('commit')
    return rows[0]!.synchronous_commit === 'off'
  },
)

describe('a plain token predicate, which is what the fence is there instead of', () => {
  const predicate = `update written set token = $1 where id = 1
    and exists (select from fencepost.lease where name = 'lease' and token = $1)`

  test('lets a stale write through at read committed: it waits for the successor and lands on top of it', async () => {
    const database = guarded
    const [one, two] = [await database.session(), await database.session()]
    const a = await SqlHolder.join(database.pool)
    const tokenA = await a.take('lease')
    await database.query('insert into written (token, id) values ($1, 1)', [tokenA.toString()])
    await a.expire()
    const b = await SqlHolder.join(two)
    await two.query('begin')
    const tokenB = BigInt((await b.acquire('lease'))[0]!.token!)
    await two.query('update written set token = $1 where id = 1', [tokenB.toString()])
    const stale = one.query(predicate, [tokenA.toString()])
    await waitsOrAnswers(database, stale)
    await two.query('commit')
    expect((await stale).rowCount).toBe(1)
    expect(await database.query('select token from written where id = 1')).toEqual([
      { token: tokenA.toString() },
    ])
  })

  test('lets a stale write through at repeatable read: it looks at an old snapshot', async () => {
    const database = guarded
    const one = await database.session()
    const a = await SqlHolder.join(database.pool)
    const tokenA = await a.take('lease')
    await database.query('insert into written (token, id) values ($1, 1)', [tokenA.toString()])
    await one.query('begin isolation level repeatable read')
    await one.query('select from written')
    await a.expire()
    await (await SqlHolder.join(database.pool)).take('lease')
    expect((await one.query(predicate, [tokenA.toString()])).rowCount).toBe(1)
    await one.query('commit')
  })

  test.each([
    ['read committed', 'FP001'],
    ['repeatable read', '40001'],
    ['serializable', '40001'],
  ])('the fence refuses the same writer at %s', async (level, code) => {
    const database = guarded
    const one = await database.session()
    const a = await SqlHolder.join(database.pool)
    const tokenA = await a.take('lease')
    await one.query(`begin isolation level ${level}`)
    await one.query('select from written')
    await a.expire()
    await (await SqlHolder.join(database.pool)).take('lease')
    await expect(a.fence(one, 'lease', tokenA)).rejects.toMatchObject({ code })
    await one.query('rollback')
    await one.query(`begin isolation level ${level}`)
    await expect(a.fence(one, 'lease', tokenA)).rejects.toMatchObject({ code: 'FP001' })
    await one.query('rollback')
  })

  test('the fence refuses a writer that has to wait for the grant which makes it stale', async () => {
    const database = guarded
    const [one, two] = [await database.session(), await database.session()]
    const a = await SqlHolder.join(database.pool)
    const tokenA = await a.take('lease')
    await a.expire()
    const b = await SqlHolder.join(two)
    await two.query('begin')
    await b.acquire('lease')
    await one.query('begin')
    const fencing = a.fence(one, 'lease', tokenA)
    fencing.catch(() => {})
    await waitsOrAnswers(database, fencing)
    await two.query('commit')
    await expect(fencing).rejects.toMatchObject({ code: 'FP001' })
    await one.query('rollback')
  })
})

/** Until the query has been answered, or its backend waits for a lock: an event, not a length of time. */
async function waitsOrAnswers(database: TestDatabase, query: Promise<unknown>): Promise<void> {
  let isAnswered = false
  query.then(
    () => (isAnswered = true),
    () => (isAnswered = true),
  )
  for (;;) {
    const [row] = await database.query<{ waiting: number }>(
      `select count(*)::integer as waiting from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`,
    )
    if (isAnswered || row!.waiting > 0) return
  }
}
