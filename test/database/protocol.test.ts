import { describe, expect, test } from 'vitest'
import { migrate } from '../../src/database/migrate.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()
const count = 50

describe('tokens', () => {
  test('rise after release, expiry, a dropped and re-added holder, purge, and removal and re-installation', async () => {
    const { pool } = database
    const tokens: bigint[] = []
    let holder = await SqlHolder.join(pool)
    const take = async (): Promise<void> => {
      tokens.push(await holder.take('rising'))
    }
    await take()
    await holder.release('rising', tokens.at(-1)!)
    await take()
    await holder.expire()
    holder = await SqlHolder.join(pool)
    await take()
    await pool.query('delete from fencepost.holder where id = $1', [holder.id])
    holder = await SqlHolder.join(pool)
    await take()
    await holder.release('rising', tokens.at(-1)!)
    await pool.query(`select fencepost.purge('0')`)
    expect(await database.query(`select from fencepost.lease where name = 'rising'`)).toHaveLength(0)
    await take()
    await pool.query(`delete from fencepost.lease`)
    await take()
    await pool.query(`truncate fencepost.lease`)
    await take()
    const down = () => migrate({ connectionString: database.url }, { direction: 'down' })
    await expect(down()).rejects.toMatchObject({ sqlState: '55006' })
    await pool.query('update fencepost.holder set ended_at = clock_timestamp()')
    while ((await down()).migrations.length > 0);
    expect(
      await database.query(`select from pg_proc where pronamespace = 'fencepost'::regnamespace`),
    ).toEqual([])
    await migrate({ connectionString: database.url }, {})
    holder = await SqlHolder.join(pool)
    await take()
    expect(tokens).toEqual(tokens.toSorted((a, b) => (a < b ? -1 : 1)))
    expect(new Set(tokens).size).toBe(tokens.length)
  })

  test('are distinct and rising in a batch', async () => {
    const holder = await SqlHolder.join(database.pool)
    const names = Array.from({ length: 500 }, (_, index) => `batch-${index}`)
    const rows = await holder.acquire(...names)
    expect(rows).toHaveLength(500)
    expect(new Set(rows.map((row) => row.token)).size).toBe(500)
  })

  test('end at 2^63 - 1 with an error, and nothing is granted', async () => {
    const holder = await SqlHolder.join(database.pool)
    await database.query(`select fencepost.raise_token_floor('huge', 9223372036854775806)`)
    const acquire = (name: string) =>
      database.query<{ token: string }>(`select token from fencepost.acquire($1, $2, 1, 'huge')`, [
        [name],
        holder.id,
      ])
    expect(await acquire('last')).toEqual([{ token: '9223372036854775807' }])
    await expect(acquire('beyond')).rejects.toMatchObject({ code: '22003' })
    expect(await database.query(`select from fencepost.lease where name = 'beyond'`)).toEqual([])
  })

  test('never go down, whatever floor is asked for', async () => {
    const floor = async (value: string): Promise<string> => {
      const sql = `select fencepost.raise_token_floor('floor', $1)::text as last`
      return (await database.query<{ last: string }>(sql, [value]))[0]!.last
    }
    expect(await floor('50')).toBe('50')
    expect(await floor('7')).toBe('50')
    expect(await floor('-9')).toBe('50')
  })
})

describe('one term at a time', () => {
  test('of 50 who ask for a brand-new name at once, one is granted it, 40 times over', async () => {
    const holders = await Promise.all(Array.from({ length: count }, () => SqlHolder.join(database.pool)))
    for (let round = 0; round < 40; round += 1) {
      const rows = (await Promise.all(holders.map((holder) => holder.acquire(`new-${round}`)))).flat()
      expect(rows).toHaveLength(count)
      expect(rows.filter((row) => row.token !== null)).toHaveLength(1)
    }
  })

  test('of 50 who ask for an expired lease at once, one is granted it and draws one token, 40 times over', async () => {
    const disturber = await database.session()
    for (let round = 0; round < 40; round += 1) {
      const name = `stale-${round}`
      const dead = await SqlHolder.join(database.pool)
      const before = await dead.take(name)
      await dead.expire()
      const holders = await Promise.all(Array.from({ length: count }, () => SqlHolder.join(database.pool)))
      if (round % 4 === 0) {
        await disturber.query('begin')
        await disturber.query('select from fencepost.lease where name = $1 for update', [name])
      }
      const asking = Promise.all(holders.map((holder) => holder.acquire(name)))
      if (round % 4 === 0) await disturber.query('commit')
      let rows = (await asking).flat()
      // While somebody else held the row, everybody was told "contended": asking again is the caller's part.
      if (rows.every((row) => row.token === null))
        rows = (await Promise.all(holders.map((h) => h.acquire(name)))).flat()
      const granted = rows.filter((row) => row.token !== null)
      expect(granted).toHaveLength(1)
      expect(BigInt(granted[0]!.token!)).toBe(before + 1n)
    }
  })

  test('two batches in opposite order neither deadlock nor share a lease', async () => {
    const names = Array.from({ length: 20 }, (_, index) => `order-${index}`)
    const one = await SqlHolder.join(await database.session())
    const two = await SqlHolder.join(await database.session())
    for (let round = 0; round < 30; round += 1) {
      const [ofOne, ofTwo] = await Promise.all([one.acquire(...names), two.acquire(...names.toReversed())])
      const granted = [...ofOne, ...ofTwo].filter((row) => row.token !== null)
      expect(granted).toHaveLength(20)
      expect(new Set(granted.map((row) => row.name)).size).toBe(20)
      const giveBack = async (holder: SqlHolder, rows: typeof ofOne): Promise<void> => {
        for (const row of rows) if (row.token !== null) await holder.release(row.name, BigInt(row.token))
      }
      await Promise.all([giveBack(one, ofOne), giveBack(two, ofTwo)])
    }
  })

  test('two holders that have both expired are both refused, and take nothing from each other', async () => {
    for (let round = 0; round < 5; round += 1) {
      const [a, b] = [await SqlHolder.join(database.pool), await SqlHolder.join(database.pool)]
      const [mineA, mineB] = [`mutual-a-${round}`, `mutual-b-${round}`]
      await a.take(mineA)
      await b.take(mineB)
      await a.expire()
      await b.expire()
      const outcomes = await Promise.allSettled([a.acquire(mineB), b.acquire(mineA)])
      for (const outcome of outcomes)
        expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'FP002' } })
    }
  })

  test('a beat in flight and a take-over never both win', async () => {
    const { pool } = database
    const session = await database.session()
    const holder = await SqlHolder.join(pool)
    await holder.take('beaten')
    await holder.expire()
    await session.query('begin')
    await session.query('select fencepost.beat($1)', [holder.id])
    const taker = await SqlHolder.join(pool)
    const taking = taker.acquire('beaten')
    await session.query('commit')
    expect((await taking)[0]).toMatchObject({ token: null, reason: 'held' })
    expect(await holder.beat()).toBe(true)

    await holder.expire()
    await session.query('begin')
    await session.query('select from fencepost.acquire($1, $2, 9)', [['beaten'], taker.id])
    const beating = holder.beat()
    await session.query('commit')
    expect(await beating).toBe(false)
  })

  test('a holder that is ended while it acquires is granted nothing', async () => {
    const session = await database.session()
    const holder = await SqlHolder.join(database.pool)
    await session.query('begin')
    await session.query('select fencepost.end_holder($1)', [holder.id])
    const acquiring = holder.acquire('too-late')
    acquiring.catch(() => {})
    await session.query('commit')
    await expect(acquiring).rejects.toMatchObject({ code: 'FP002' })
    expect(await database.query(`select from fencepost.lease where name = 'too-late'`)).toEqual([])
  })
})

describe('an expired holder', () => {
  test('that beats late lives on when nobody has ended it', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('late')
    await holder.expire()
    expect(await holder.beat()).toBe(true)
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'late', token)
    await session.query('commit')
  })

  test('that was ended by a taker stays ended, and its leases are free', async () => {
    const holder = await SqlHolder.join(database.pool)
    await holder.take('ended-1')
    await holder.take('ended-2')
    await holder.expire()
    const taker = await SqlHolder.join(database.pool)
    await taker.take('ended-1')
    expect(await holder.beat()).toBe(false)
    expect(await taker.take('ended-2')).toBeGreaterThan(0n)
  })

  test('may finish the fenced transaction it is in, but not begin another', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('finishing')
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'finishing', token)
    await holder.expire()
    const taker = await SqlHolder.join(database.pool)
    expect((await taker.acquire('finishing'))[0]).toMatchObject({ token: null, reason: 'draining' })
    await expect(holder.fence(database.pool, 'finishing', token)).rejects.toMatchObject({ code: 'FP002' })
    await session.query('commit')
    // The server tells an error, here that of the other fence, before it lets go of the failed transaction's locks.
    await expect
      .poll(async () => (await taker.acquire('finishing'))[0]!.token, { interval: 5 })
      .not.toBeNull()
  })
})

describe('release', () => {
  test('frees nothing without the right token or the right holder', async () => {
    const holder = await SqlHolder.join(database.pool)
    const other = await SqlHolder.join(database.pool)
    const token = await holder.take('mine')
    expect(await holder.release('mine', token - 1n)).toBe('not_held')
    expect(await holder.release('mine', token + 1n)).toBe('not_held')
    expect(await other.release('mine', token)).toBe('not_held')
    expect((await other.acquire('mine'))[0]).toMatchObject({ token: null, reason: 'held' })
    expect(await holder.release('mine', token)).toBe('released')
    expect(await holder.release('mine', token)).toBe('not_held')
  })

  test('by a former holder, 100 times over, leaves the successor alone', async () => {
    const former = await SqlHolder.join(database.pool)
    const token = await former.take('succeeded')
    await former.expire()
    const successor = await SqlHolder.join(database.pool)
    const newer = await successor.take('succeeded')
    for (let turn = 0; turn < 100; turn += 1)
      expect(await former.release('succeeded', token)).toBe('not_held')
    expect(await successor.release('succeeded', newer)).toBe('released')
  })

  test('waits for no open fenced transaction: it says "draining"', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('busy')
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'busy', token)
    expect(await holder.release('busy', token)).toBe('draining')
    await session.query('commit')
    expect(await holder.release('busy', token)).toBe('released')
  })
})

describe('an acquire whose answer was lost', () => {
  const attempt = (holder: SqlHolder, number: number, name: string) =>
    database.query<{ token: string | null }>('select token from fencepost.acquire($1, $2, $3)', [
      [name],
      holder.id,
      number,
    ])
  const voidAttempts = (holder: SqlHolder, number: number) =>
    database.query('select fencepost.void_attempts($1, $2)', [holder.id, number])
  const giveBack = (holder: SqlHolder, number: number, ...names: string[]) =>
    database.query('select fencepost.give_back($1, $2, $3)', [holder.id, names, names.map(() => number)])

  test('is given back, and grants nothing when it is carried out later', async () => {
    const holder = await SqlHolder.join(database.pool)
    await attempt(holder, 1, 'lost')
    await voidAttempts(holder, 2)
    await database.query('select fencepost.give_back($1, $2, $3)', [holder.id, ['lost', 'later'], [1, 2]])
    const other = await SqlHolder.join(database.pool)
    expect(await other.take('lost')).toBeGreaterThan(0n)
    await expect(attempt(holder, 2, 'later')).rejects.toMatchObject({ code: 'FP004' })
    expect(await other.take('later')).toBeGreaterThan(0n)
    expect((await attempt(holder, 3, 'third'))[0]!.token).not.toBeNull()
  })

  test('cannot slip through while it is just committing', async () => {
    const holder = await SqlHolder.join(database.pool)
    const late = await database.session()
    await late.query('begin')
    await late.query('select from fencepost.acquire($1, $2, 1)', [['slipping'], holder.id])
    const voiding = voidAttempts(holder, 1)
    await late.query('commit')
    await voiding
    await giveBack(holder, 1, 'slipping')
    const other = await SqlHolder.join(database.pool)
    expect(await other.take('slipping')).toBeGreaterThan(0n)
  })

  test('that is given back late, once more, does not free the grant of a later attempt', async () => {
    const holder = await SqlHolder.join(database.pool)
    await attempt(holder, 1, 'again')
    await voidAttempts(holder, 1)
    await giveBack(holder, 1, 'again')
    expect((await attempt(holder, 2, 'again'))[0]!.token).not.toBeNull()
    await voidAttempts(holder, 1)
    await giveBack(holder, 1, 'again')
    const other = await SqlHolder.join(database.pool)
    expect((await other.acquire('again'))[0]).toMatchObject({ token: null, reason: 'held' })
  })

  test('is given back name by name: what another attempt was granted stays, an earlier one as well as a later', async () => {
    const holder = await SqlHolder.join(database.pool)
    await attempt(holder, 1, 'known')
    await attempt(holder, 5, 'unheard')
    await attempt(holder, 9, 'late')
    await voidAttempts(holder, 9)
    const names = ['known', 'unheard', 'late', 'late']
    await database.query('select fencepost.give_back($1, $2, $3)', [holder.id, names, [5, 5, 4, 7]])
    const other = await SqlHolder.join(database.pool)
    expect(await other.take('unheard')).toBeGreaterThan(0n)
    const refused = await other.acquire('known', 'late')
    expect(refused.map((row) => [row.token, row.reason])).toEqual([
      [null, 'held'],
      [null, 'held'],
    ])
  })

  test('is closed without a deadlock while somebody takes over from its holder', async () => {
    for (let round = 0; round < 10; round += 1) {
      const holder = await SqlHolder.join(database.pool)
      const names = [`cross-${round}-a`, `cross-${round}-b`]
      await attempt(holder, 1, names[0]!)
      await attempt(holder, 2, names[1]!)
      await holder.expire()
      const taker = await SqlHolder.join(database.pool)
      await Promise.all([
        taker.acquire(...names),
        voidAttempts(holder, 2).then(() => giveBack(holder, 2, ...names)),
      ])
      for (const row of await taker.acquire(...names)) expect(['held', null]).toContain(row.reason)
    }
  })
})

describe('an attempt that finds the lease held', () => {
  test('costs no transaction id and no WAL', async () => {
    const holder = await SqlHolder.join(database.pool)
    await holder.take('cheap')
    const loser = await SqlHolder.join(database.pool)
    const session = await database.session()
    await session.query('begin')
    const { rows } = await session.query<{ token: string | null }>(
      'select token from fencepost.acquire($1, $2, 1)',
      [['cheap'], loser.id],
    )
    expect(rows).toEqual([{ token: null }])
    const written = await session.query<{ xid: string | null }>(
      'select pg_current_xact_id_if_assigned()::text as xid',
    )
    expect(written.rows[0]!.xid).toBeNull()
    await session.query('commit')
  })

  test('is told who holds it and for how long', async () => {
    const holder = await SqlHolder.join(database.pool, 60_000, 'worker-7')
    await holder.take('informative')
    const loser = await SqlHolder.join(database.pool)
    const [row] = await loser.acquire('informative')
    expect(row).toMatchObject({ token: null, reason: 'held', label: 'worker-7' })
    expect(Number(row!.remaining_ms)).toBeGreaterThan(50_000)
    expect(Number(row!.remaining_ms)).toBeLessThanOrEqual(60_000)
  })

  test('of another sequence is told which one', async () => {
    const holder = await SqlHolder.join(database.pool)
    await database.query(`select from fencepost.acquire('{sequenced}', $1, 1, 'other')`, [holder.id])
    const loser = await SqlHolder.join(database.pool)
    expect((await loser.acquire('sequenced'))[0]).toMatchObject({
      token: null,
      reason: 'sequence',
      label: 'other',
    })
  })

  test('on a free lease whose row somebody has locked is told to ask again', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('locked')
    await holder.release('locked', token)
    const session = await database.session()
    await session.query('begin')
    await session.query(`select from fencepost.lease where name = 'locked' for update`)
    expect((await holder.acquire('locked'))[0]).toMatchObject({ token: null, reason: 'contended' })
    await session.query('rollback')
  })
})

describe('the session that a client brings', () => {
  test('keeps its durability for what else it writes in a transaction that joins or releases', async () => {
    const session = await database.session()
    await session.query('begin')
    await session.query('create temporary table mine () on commit drop')
    const holder = await SqlHolder.join(session)
    await holder.release('nothing', 1n)
    const { rows } = await session.query<{ synchronous_commit: string }>('show synchronous_commit')
    expect(rows[0]!.synchronous_commit).toBe('on')
    await session.query('rollback')
  })
})

describe('stricter sessions', () => {
  test.each(['repeatable read', 'serializable'])('acquire, beat and release work at %s', async (level) => {
    const session = await database.session({
      options: `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`,
    })
    const holder = await SqlHolder.join(session)
    const name = `strict-${level}`
    const token = await holder.take(name)
    expect(await holder.beat()).toBe(true)
    expect(await holder.release(name, token)).toBe('released')
  })

  test('what the client relies on is durable, and a doubt reaches it, although the session has synchronous_commit off', async () => {
    const session = await database.session()
    await session.query('set synchronous_commit = off')
    await session.query('set client_min_messages = error')
    const holder = await SqlHolder.join(session)
    for (const call of [
      () => session.query(`select fencepost.void_attempts($1, 0)`, [holder.id]),
      () => session.query(`select fencepost.give_back($1, '{}', '{}')`, [holder.id]),
      () => session.query('select from fencepost.acquire($1, $2, 1)', [['durable'], holder.id]),
      () => session.query('select fencepost.beat($1)', [holder.id]),
    ]) {
      await session.query('begin')
      await call()
      const { rows } = await session.query<Record<string, string>>(
        `select current_setting('synchronous_commit') as durable, current_setting('client_min_messages') as messages`,
      )
      expect(rows[0]).toEqual({ durable: 'on', messages: 'warning' })
      await session.query('commit')
    }
  })

  test('an expiry is noticed inside one long transaction', async () => {
    const session = await database.session()
    const holder = await SqlHolder.join(database.pool)
    await holder.take('inside')
    await session.query('begin')
    const taker = await SqlHolder.join(session)
    expect((await taker.acquire('inside'))[0]).toMatchObject({ token: null, reason: 'held' })
    await holder.expire()
    expect((await taker.acquire('inside'))[0]!.token).not.toBeNull()
    await session.query('commit')
  })

  test('expiry is counted from the moment, not from the start of a long transaction', async () => {
    const session = await database.session()
    await session.query('begin')
    await session.query('select pg_sleep(0.3)')
    const holder = await SqlHolder.join(session, 1000)
    const { rows } = await session.query<{ left: number }>(
      `select extract(epoch from expires_at - clock_timestamp())::float as left from fencepost.holder where id = $1`,
      [holder.id],
    )
    expect(rows[0]!.left).toBeGreaterThan(0.9)
    await session.query('rollback')
  })
})

describe('the view fencepost.leases', () => {
  test('tells held, draining, expired and free apart', async () => {
    const state = async (): Promise<string> => {
      const sql = `select state, holder, remaining from fencepost.leases where name = 'viewed'`
      return (await database.query<{ state: string }>(sql))[0]!.state
    }
    const holder = await SqlHolder.join(database.pool, 30_000, 'viewer')
    const token = await holder.take('viewed')
    expect(await state()).toBe('held')
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'viewed', token)
    expect(await state()).toBe('held')
    await holder.expire()
    expect(await state()).toBe('draining')
    await session.query('commit')
    expect(await state()).toBe('expired')
    const next = await SqlHolder.join(database.pool)
    const newer = await next.take('viewed')
    await next.release('viewed', newer)
    expect(await state()).toBe('free')
    await next.take('viewed')
    await next.end()
    expect(await state()).toBe('free')
  })

  test('does not show the holder ids, which are secrets', async () => {
    const rows = await database.query(
      `select column_name from information_schema.columns where table_schema = 'fencepost' and table_name = 'leases'`,
    )
    expect(rows.map((row) => row['column_name'])).toEqual([
      'name',
      'token',
      'holder',
      'host',
      'pid',
      'since',
      'remaining',
      'state',
      'sequence',
    ])
  })
})

describe('purge', () => {
  test('forgets neither a held lease nor a young one nor one with an open fenced transaction', async () => {
    const holder = await SqlHolder.join(database.pool)
    await holder.take('kept')
    const drained = await SqlHolder.join(database.pool)
    const token = await drained.take('kept-draining')
    const session = await database.session()
    await session.query('begin')
    await drained.fence(session, 'kept-draining', token)
    await drained.end()
    const young = await holder.take('kept-young')
    await holder.release('kept-young', young)
    await database.query(`select fencepost.purge('1 hour')`)
    const names = async (): Promise<unknown[]> =>
      (await database.query(`select name from fencepost.lease where name like 'kept%' order by name`)).map(
        (row) => row['name'],
      )
    expect(await names()).toEqual(['kept', 'kept-draining', 'kept-young'])
    await database.query(`select fencepost.purge('0')`)
    expect(await names()).toEqual(['kept', 'kept-draining'])
    await session.query('commit')
  })

  test('ends an expired holder before it forgets its leases, so that its late heartbeat fails', async () => {
    const holder = await SqlHolder.join(database.pool)
    await holder.take('forgotten')
    await holder.expire()
    await database.query(`select fencepost.purge('0')`)
    expect(await database.query(`select from fencepost.lease where name = 'forgotten'`)).toEqual([])
    expect(await holder.beat()).toBe(false)
  })

  test('loses to a heartbeat in flight', async () => {
    const holder = await SqlHolder.join(database.pool)
    await holder.take('beaten-purge')
    await holder.expire()
    const session = await database.session()
    await session.query('begin')
    await session.query('select fencepost.beat($1)', [holder.id])
    await database.query(`select fencepost.purge('0')`)
    await session.query('commit')
    expect(await database.query(`select from fencepost.lease where name = 'beaten-purge'`)).toHaveLength(1)
    expect(await holder.beat()).toBe(true)
  })

  test.each([null, '-1 second'])('refuses the age %s', async (age) => {
    await expect(database.query('select fencepost.purge($1)', [age])).rejects.toMatchObject({ code: '22023' })
  })
})
