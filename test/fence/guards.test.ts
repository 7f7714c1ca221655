import { createHash } from 'node:crypto'
import type { Client } from 'pg'
import { beforeEach, describe, expect, test } from 'vitest'
import { TestDatabase, useDatabase } from '../support/database.ts'
import { SqlHolder, waitsOrAnswers } from '../support/sql-holder.ts'

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
    await database.query('truncate fencepost.lease, fencepost.waiter')
  }
})

const write = (client: Client, token: bigint) =>
  client.query('insert into written (token) values ($1)', [token.toString()])

/** True when a write of an older term was committed after one of a newer term. */
async function isOutOfOrder(database: TestDatabase): Promise<boolean> {
  const rows = await database.query<{ token: string }>('select token from written order by place')
  return rows.some((row, index) => index > 0 && BigInt(row.token) < BigInt(rows[index - 1]!.token))
}

/** Fences the session's transaction by somebody else's lease. */
async function fenceByAnother(database: TestDatabase, session: Client): Promise<void> {
  const holder = await SqlHolder.join(database.pool)
  await holder.fence(session, 'another', await holder.take('another'))
}

// The first term of a transaction goes another way through the fence than those after it.
for (const { way, functionName, look, withoutLook, before } of [
  {
    way: 'the first term',
    functionName: 'fence',
    look: /h\.ended_at is null and h\.expires_at > clock_timestamp\(\) and /,
    withoutLook: '',
    before: async () => {},
  },
  {
    way: 'a further term',
    functionName: 'hold_term',
    look: /if not found or hold_term.deadline <= clock_timestamp\(\) then/,
    withoutLook: 'if hold_term.deadline <= clock_timestamp() then',
    before: fenceByAnother,
  },
]) {
  guard(
    `the fence's lock on the lease row, against a take-over in mid-transaction (${way})`,
    functionName,
    /\n\s*for share of l;/,
    ';',
    async (database) => {
      const [one, two] = [await database.session(), await database.session()]
      const a = await SqlHolder.join(database.pool)
      const tokenA = await a.take('lease')
      await one.query('begin')
      await before(database, one)
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
    `the fence's comparison of the token, against a term that was succeeded by the same holder's next (${way})`,
    functionName,
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
      await before(database, session)
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
    `the fence's comparison of the holder, against equal tokens after a failover that lost a grant (${way})`,
    functionName,
    /and l\.holder_id = p_holder/,
    '',
    async (database) => {
      const session = await database.session()
      const a = await SqlHolder.join(database.pool)
      const token = await a.take('lease')
      // The new primary never saw the grant to A, and granted the same number to B.
      const b = await SqlHolder.join(database.pool)
      await database.query(`update fencepost.lease set holder_id = $1 where name = 'lease'`, [b.id])
      await session.query('begin')
      await before(database, session)
      const isAccepted = await a.fence(session, 'lease', token).then(
        () => true,
        () => false,
      )
      await session.query('rollback')
      return isAccepted
    },
  )

  guard(
    `the fence's look at the holder, against fenced transactions that follow each other for ever (${way})`,
    functionName,
    look,
    withoutLook,
    async (database) => {
      const [one, two] = [await database.session(), await database.session()]
      const a = await SqlHolder.join(database.pool)
      const token = await a.take('lease')
      await one.query('begin')
      await a.fence(one, 'lease', token)
      await a.expire()
      // Before one ends, the next begins: whoever wants the lease never finds its row unlocked.
      await two.query('begin')
      await before(database, two)
      const began = await a.fence(two, 'lease', token).then(
        () => true,
        () => false,
      )
      await one.query('commit')
      await two.query('rollback')
      return began
    },
  )
}

guard(
  "the wall's own lock on the lease row, against a session that says of itself that it holds the term",
  'guard',
  /\n\s*for share;/,
  ';',
  async (database) => {
    const session = await database.session()
    await database.query(`select fencepost.protect('written', 'lease')`)
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    await session.query('begin')
    for (const setting of ['fencepost.fence', 'fencepost.held']) {
      await session.query('select set_config($1, $2, true)', [setting, `${token}:${a.id}:lease`])
    }
    await write(session, token)
    await a.expire()
    const b = await SqlHolder.join(database.pool)
    const [row] = await b.acquire('lease')
    await session.query('commit')
    return row?.token != null
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
    await waitsOrAnswers(database.pool, second)
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
    await waitsOrAnswers(database.pool, ending)
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

// One lease goes another way through release than several.
for (const others of [[], ['another']]) {
  const way = others.length === 0 ? 'one lease' : 'several'
  const release = async (holder: SqlHolder, token: bigint): Promise<boolean> => {
    const rows = await holder.letGoAll(['lease', ...others], [token, ...others.map(() => 1n)].map(String))
    return rows.find((row) => row.name === 'lease')!.outcome === 'released'
  }

  guard(
    `release's comparison of the token, against the release of a term that is over (${way})`,
    'release',
    /l\.token = (r\.token|p_tokens\[1\]) and (?=l\.holder_id = p_holder\s+(order|for update))/g,
    '',
    async (database) => {
      const a = await SqlHolder.join(database.pool)
      const older = await a.take('lease')
      await a.release('lease', older)
      await a.take('lease')
      return release(a, older)
    },
  )

  guard(
    `release's comparison of the holder, against a former holder with an equal token (${way})`,
    'release',
    / and l\.holder_id = p_holder(?=\s+(order|for update))/g,
    '',
    async (database) => {
      const a = await SqlHolder.join(database.pool)
      const token = await a.take('lease')
      const b = await SqlHolder.join(database.pool)
      await database.query('update fencepost.lease set holder_id = $1', [b.id])
      return release(a, token)
    },
  )
}

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

/** Somebody in line for a lease that nobody holds, and whom nobody has woken. */
async function isForgotten(
  database: TestDatabase,
  ticket: string,
  wakes: readonly (string | null)[],
): Promise<boolean> {
  const rows = await database.query(
    `select from fencepost.waiter w join fencepost.lease l on l.name = w.lease
       left join fencepost.holder h on h.id = l.holder_id
      where w.ticket = $1 and (h.id is null or h.ended_at is not null or h.expires_at <= clock_timestamp())`,
    [ticket],
  )
  return rows.length > 0 && !wakes.some((wake) => wake?.split(':')[0] === ticket)
}

guard(
  "standing's lock on the lease row, against a release that does not see who is just standing",
  'acquire',
  /for share skip locked/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    await session.query('begin')
    const ticket = await b.on(session).stand('lease')
    const { outcome, wake } = await a.letGo('lease', token)
    await session.query('commit')
    return outcome === 'released' && isForgotten(database, ticket, [wake])
  },
)

guard(
  "standing's lock on the holder of the lease, against its end which does not see who is just standing",
  'acquire',
  /(?<=where h\.id = any \(v_held\) order by h\.id )for key share skip locked/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    await session.query('begin')
    const ticket = await b.on(session).stand('lease')
    const wakes = a.end().then(() => a.handOn())
    await waitsOrAnswers(database.pool, wakes)
    await session.query('commit')
    return isForgotten(database, ticket, await wakes)
  },
)

guard(
  "standing's lock on who stands before, against his leaving a free lease without seeing who is just standing",
  'acquire',
  /for key share of w skip locked/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    await a.take('lease')
    const [b, c] = [await SqlHolder.join(database.pool), await SqlHolder.join(database.pool)]
    const before = await b.stand('lease')
    await a.expire()
    await session.query('begin')
    const ticket = await c.on(session).stand('lease')
    const leaving = b.leave(['lease'], [before])
    await waitsOrAnswers(database.pool, leaving)
    await session.query('commit')
    const rows = await leaving
    return isForgotten(
      database,
      ticket,
      rows.map((row) => row.wake),
    )
  },
)

guard(
  'the lock on whom it wakes, against two who leave a free lease at once',
  'next_after',
  /for key share of w skip locked/,
  '',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    await a.take('lease')
    const waiters = []
    for (let count = 0; count < 3; count += 1) {
      const holder = await SqlHolder.join(database.pool)
      waiters.push({ holder, ticket: await holder.stand('lease') })
    }
    await a.expire()
    const [one, two, three] = [waiters[0]!, waiters[1]!, waiters[2]!]
    await session.query('begin')
    const first = await one.holder.on(session).leave(['lease'], [one.ticket])
    const second = two.holder.leave(['lease'], [two.ticket])
    await waitsOrAnswers(database.pool, second)
    await session.query('commit')
    return isForgotten(
      database,
      three.ticket,
      [...first, ...(await second)].map((row) => row.wake),
    )
  },
)

guard(
  'the waking of those who had to be passed over, against a lease that comes free while they are in line',
  'let_go',
  /select null::text, w\.ticket::text\s+from waiter w/,
  '$& join lease l on false',
  async (database) => {
    const session = await database.session()
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    const ticket = await b.stand('lease')
    await session.query('begin')
    await b.on(session).voidAttempts(0)
    const rows = await a.letGoAll(['lease'], [token.toString()])
    await session.query('commit')
    return isForgotten(
      database,
      ticket,
      rows.map((row) => row.wake),
    )
  },
)

guard(
  "acquire's second look, against taking what was granted to another between its first one and its lock",
  'acquire',
  /select array_agg\(l\.name\) into v_taken\s+from lease l left join holder h[^;]*;/,
  'v_taken := v_locked;',
  async (database) => {
    const [session, gate] = [await database.session(), await database.session()]
    const former = await SqlHolder.join(database.pool)
    await former.acquire('first', 'last')
    await former.end()
    await database.query(`update fencepost.lease set available_at = '2000-01-01' where name = 'first'`)
    const [original] = await database.query<{ source: string }>(
      `select pg_get_functiondef('fencepost.free_at'::regproc) as source`,
    )
    // Stops the batch in the middle of its first look.
    await database.query(
      `create or replace function fencepost.free_at(p_available_at timestamptz, p_deadline timestamptz, p_grace interval,
         p_expires_at timestamptz, p_ended_at timestamptz) returns timestamptz language plpgsql as $$
       begin
         if p_available_at = '2000-01-01' then
           perform pg_advisory_xact_lock_shared(7700078);
         end if;
         return case when p_expires_at is null then p_available_at
                     else greatest(p_available_at, least(p_deadline, p_expires_at, p_ended_at) + p_grace) end;
       end $$`,
    )
    try {
      await gate.query('select pg_advisory_lock(7700078)')
      const [a, b] = [await SqlHolder.join(session), await SqlHolder.join(database.pool)]
      const taking = a.acquire('first', 'last')
      expect(await waitsOrAnswers(database.pool, taking)).toBe('waits')
      await b.take('last')
      await gate.query('select pg_advisory_unlock(7700078)')
      const [row] = (await taking).filter(({ name }) => name === 'last')
      return row!.token !== null
    } finally {
      await database.query(original!.source)
    }
  },
)

guard(
  'the exact attempts of what is given back, against the loss of another live term',
  'give_back',
  /v\.attempt = l\.attempt/g,
  'l.attempt <= v.attempt',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease', { attempt: 5 })
    await a.voidAttempts(9)
    await a.giveBack(['lease'], [9])
    return (await a.release('lease', token)) === 'not_held'
  },
)

guard(
  'the exact attempts of the places that are given up, against the loss of another place in line',
  'give_back',
  /w\.attempt = v\.attempt/,
  'w.attempt <= v.attempt',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    const ticket = await b.stand('lease', { attempt: 5 })
    await b.voidAttempts(9)
    await b.giveBack(['lease'], [9])
    return (await b.askWithTicket('lease', ticket)).reason === 'gone'
  },
)

guard(
  "the holder's secret in the proof of a wake-up, against one who forges it from what everybody can hear",
  'wake_up',
  /p_holder \|\| ':' \|\|\s*/,
  '',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    const b = await SqlHolder.join(database.pool)
    await b.stand('lease')
    const [ticket, newer, proof] = (await a.letGo('lease', token)).wake!.split(':')
    const forged = createHash('sha256').update(`${ticket}:${newer}:lease`).digest('hex').slice(0, 24)
    return proof === forged
  },
)

guard(
  'what purge remembers of holders, against a grace that is cut short',
  'purge_some',
  /and not exists \(select from lease l[^;]*(?=;\s+return v_count)/,
  '',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    await a.take('lease', { graceMs: 60_000 })
    await a.expire()
    await database.query(`select fencepost.purge('0')`)
    const b = await SqlHolder.join(database.pool)
    return (await b.acquire('lease'))[0]!.token !== null
  },
)

guard(
  'the queue of a forced release, against a holder that always has another fenced transaction open',
  'force_release',
  /perform pg_advisory_xact_lock\(1178947139, fence_key\(p_name\)\);/,
  '',
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const token = await a.take('lease')
    const [one, two, operator] = await Promise.all([
      database.session(),
      database.session(),
      database.session(),
    ])
    await one.query('begin')
    await a.fence(one, 'lease', token)
    const released = operator.query(`select fencepost.force_release('lease', $1, 'a test', 30000)`, [
      token.toString(),
    ])
    await waitsOrAnswers(database.pool, released)
    await two.query('begin')
    const another = a.fence(two, 'lease', token).then(
      () => true,
      () => false,
    )
    await waitsOrAnswers(database.pool, another, 2)
    await one.query('commit')
    const hasBegun = await another
    await two.query('rollback')
    await released
    return hasBegun
  },
)

guard(
  'the token of a forced release, against an operator who has looked at an older term',
  'force_release',
  /when token = p_token then 'draining'\s+else 'wrong_token' end;([^]*?)l\.token = p_token and/,
  `else 'draining' end;$1`,
  async (database) => {
    const a = await SqlHolder.join(database.pool)
    const older = await a.take('lease')
    await a.release('lease', older)
    const b = await SqlHolder.join(database.pool)
    const token = await b.take('lease')
    await database.query(`select fencepost.force_release('lease', $1, 'a test')`, [older.toString()])
    const session = await database.session()
    await session.query('begin')
    const isGone = await b.fence(session, 'lease', token).then(
      () => false,
      () => true,
    )
    await session.query('rollback')
    return isGone
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
    await waitsOrAnswers(database.pool, stale)
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
    await waitsOrAnswers(database.pool, fencing)
    await two.query('commit')
    await expect(fencing).rejects.toMatchObject({ code: 'FP001' })
    await one.query('rollback')
  })
})
