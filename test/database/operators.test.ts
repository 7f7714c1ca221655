import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { SqlHolder, waitsOrAnswers } from '../support/sql-holder.ts'

const database = useDatabase()
const upgraded = useDatabase()

interface Row {
  readonly outcome: string
  readonly token: string | null
  readonly holder: string | null
  readonly next_token: string | null
  readonly next_holder: string | null
  readonly wakes: string[] | null
}

async function forceRelease(
  name: string,
  token: bigint,
  waitMs = 0,
  db: Pick<TestDatabase, 'query'> = database,
) {
  const [row] = await db.query<Row>('select * from fencepost.force_release($1, $2, $3, $4)', [
    name,
    token.toString(),
    'a test',
    waitMs,
  ])
  return row!
}

const records = (lease: string) =>
  database.query(
    'select token, holder, reason, released_by, cancelled from fencepost.forced_releases where lease = $1',
    [lease],
  )

/** A session in a fenced transaction of the term. */
async function openTransaction(holder: SqlHolder, name: string, token: bigint) {
  const session = await database.session()
  await session.query('begin')
  await holder.fence(session, name, token)
  const { rows } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
  return { session, pid: rows[0]!.pid }
}

describe('a forced release', () => {
  test('frees the lease, records who, why and whom, and the old holder’s write is refused', async () => {
    const holder = await SqlHolder.join(database.pool, 30_000, 'hanging')
    const token = await holder.take('freed')
    expect(await forceRelease('freed', token)).toMatchObject({
      outcome: 'released',
      token: token.toString(),
      holder: 'hanging',
      next_token: null,
      wakes: [],
    })
    await expect(holder.fence(await database.session(), 'freed', token)).rejects.toMatchObject({
      code: 'FP001',
    })
    expect(await holder.release('freed', token)).toBe('not_held')
    expect(await holder.beat()).toBe(true)
    const [{ role } = { role: '' }] = await database.query<{ role: string }>(
      'select session_user::text as role',
    )
    expect(await records('freed')).toEqual([
      { token: token.toString(), holder: 'hanging', reason: 'a test', released_by: role, cancelled: [] },
    ])
    const other = await SqlHolder.join(database.pool)
    expect(await other.take('freed')).toBeGreaterThan(token)
  })

  test('grants the lease to the first in line in the same transaction, and says whom to wake', async () => {
    const holder = await SqlHolder.join(database.pool)
    const [first, second] = [
      await SqlHolder.join(database.pool, 30_000, 'first'),
      await SqlHolder.join(database.pool),
    ]
    const token = await holder.take('waited for')
    const ticket = await first.stand('waited for')
    await second.stand('waited for')
    const released = await forceRelease('waited for', token)
    expect(released).toMatchObject({ outcome: 'released', next_holder: 'first' })
    expect(BigInt(released.next_token!)).toBeGreaterThan(token)
    expect(released.wakes).toEqual([expect.stringMatching(`^${ticket}:${released.next_token}:`)])
    await first.fence(await database.session(), 'waited for', BigInt(released.next_token!))
    await expect(holder.fence(await database.session(), 'waited for', token)).rejects.toMatchObject({
      code: 'FP001',
    })
  })

  test('with a wrong token changes nothing and tells the current one', async () => {
    const holder = await SqlHolder.join(database.pool, 30_000, 'current')
    const old = await holder.take('nonce')
    await holder.release('nonce', old)
    const token = await holder.take('nonce')
    for (const wrong of [old, token + 1n, 0n]) {
      expect(await forceRelease('nonce', wrong)).toMatchObject({
        outcome: 'wrong_token',
        token: token.toString(),
        holder: 'current',
        wakes: null,
      })
    }
    await holder.fence(await database.session(), 'nonce', token)
    expect(await records('nonce')).toEqual([])
  })

  test('of a lease that nobody holds, or that is unknown, changes nothing', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('given back')
    await holder.release('given back', token)
    expect(await forceRelease('given back', token)).toMatchObject({
      outcome: 'not_held',
      token: token.toString(),
    })
    expect(await forceRelease('never seen', 1n)).toMatchObject({ outcome: 'not_held', token: null })
    expect(await records('given back')).toEqual([])
  })

  test('without a reason is refused', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('why')
    for (const reason of ['', 'x'.repeat(4001), null]) {
      await expect(
        database.query('select * from fencepost.force_release($1, $2, $3)', [
          'why',
          token.toString(),
          reason,
        ]),
      ).rejects.toMatchObject({ code: '22023' })
    }
    await holder.fence(await database.session(), 'why', token)
  })

  test('leaves the holder’s other leases alone', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('one of two')
    const kept = await holder.take('the other')
    await forceRelease('one of two', token)
    await holder.fence(await database.session(), 'the other', kept)
    expect(await holder.release('the other', kept)).toBe('released')
  })

  test('ends the grace after a crash, and not the minimum hold', async () => {
    const holder = await SqlHolder.join(database.pool)
    const other = await SqlHolder.join(database.pool)
    const graced = await holder.take('graced', { graceMs: 3_600_000 })
    const minimal = await holder.take('minimal', { minHoldMs: 3_600_000 })
    await holder.expire()
    expect((await other.ask(['graced']))[0]).toMatchObject({ reason: 'not_yet' })
    expect(await forceRelease('graced', graced)).toMatchObject({ outcome: 'released' })
    expect(await other.take('graced')).toBeGreaterThan(graced)
    expect(await forceRelease('minimal', minimal)).toMatchObject({ outcome: 'released' })
    expect((await other.ask(['minimal']))[0]).toMatchObject({ reason: 'not_yet' })
  })
})

describe('while a fenced transaction is open', () => {
  test('a forced release is draining and changes nothing; the transaction commits', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('open')
    const { session } = await openTransaction(holder, 'open', token)
    expect(await forceRelease('open', token)).toMatchObject({ outcome: 'draining', token: token.toString() })
    expect(await forceRelease('open', token, 20)).toMatchObject({ outcome: 'draining' })
    await session.query('commit')
    await holder.fence(await database.session(), 'open', token)
    expect(await records('open')).toEqual([])
    expect(await forceRelease('open', token)).toMatchObject({ outcome: 'released' })
  })

  test('new fenced transactions queue behind a forced release that waits, and are refused', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('starved')
    const { session } = await openTransaction(holder, 'starved', token)
    const operator = await database.session()
    const released = operator.query<Row>('select * from fencepost.force_release($1, $2, $3, $4)', [
      'starved',
      token.toString(),
      'a test',
      30_000,
    ])
    expect(await waitsOrAnswers(database.pool, released)).toBe('waits')
    // The negative control of this: with the row lock alone, this one would begin.
    const late = holder.fence(await database.session(), 'starved', token)
    const refused = late.catch((error: unknown) => error)
    expect(await waitsOrAnswers(database.pool, refused, 2)).toBe('waits')
    await holder.fence(session, 'starved', token)
    await session.query('commit')
    expect((await released).rows[0]).toMatchObject({ outcome: 'released' })
    expect(await refused).toMatchObject({ code: 'FP001' })
  })

  test('lock_timeout of the session is as it was, whatever came of it', async () => {
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('settings')
    const { session } = await openTransaction(holder, 'settings', token)
    const operator = await database.session()
    await operator.query(`begin; set local lock_timeout = '7s'`)
    const ask = async (): Promise<unknown> => {
      const { rows } = await operator.query<Row>(
        `select f.outcome, current_setting('lock_timeout') as setting from fencepost.force_release($1, $2, 'a test', 10) f`,
        ['settings', token.toString()],
      )
      return rows[0]
    }
    expect(await ask()).toEqual({ outcome: 'draining', setting: '7s' })
    await session.query('commit')
    expect(await ask()).toEqual({ outcome: 'released', setting: '7s' })
    await operator.query('commit')
  })

  test('the sessions that keep it are told, those of another lease with the same key are not', async () => {
    const holder = await SqlHolder.join(database.pool)
    const [name, twin] = await twins()
    const [token, other] = [await holder.take(name), await holder.take(twin)]
    const mine = await openTransaction(holder, name, token)
    const also = await openTransaction(holder, name, token)
    const theirs = await openTransaction(holder, twin, other)
    const sessions = async (lease: string, of: bigint): Promise<number[]> => {
      const rows = await database.query<{ pid: number }>(
        'select fenced_sessions as pid from fencepost.fenced_sessions($1, $2)',
        [lease, of.toString()],
      )
      return rows.map(({ pid }) => pid).toSorted((a, b) => a - b)
    }
    expect(await sessions(name, token)).toEqual([mine.pid, also.pid].toSorted((a, b) => a - b))
    expect(await sessions(twin, other)).toEqual([theirs.pid])
    expect(await sessions(name, token + 1n)).toEqual([])
    for (const { session } of [mine, also, theirs]) await session.query('rollback')
    expect(await sessions(name, token)).toEqual([])
  })
})

/** Two names whose fence keys are the same. */
async function twins(): Promise<[string, string]> {
  const [row] = await database.query<{ one: string; two: string }>(
    `select min(n) as one, max(n) as two from (select 'twin ' || i as n from generate_series(1, 300000) i) s
      group by fencepost.fence_key(n) having count(*) = 2 limit 1`,
  )
  return [row!.one, row!.two]
}

describe('from the library', () => {
  test('a caller that waits is granted the lease, and the old holder’s lease is lost when it is given back', async () => {
    const old = await database.open({ label: 'old' })
    const next = await database.open({ label: 'next' })
    const operator = await database.open()
    const lease = await old.acquire('handed on')
    const waiting = next.acquire('handed on')
    await waits('handed on')
    const released = await operator.forceRelease('handed on', lease.token, { reason: 'it hangs' })
    const granted = await waiting
    expect(released).toMatchObject({
      outcome: 'released',
      token: lease.token,
      holder: 'old',
      next: { token: granted.token, holder: 'next' },
      cancelled: [],
    })
    expect(granted.token).toBeGreaterThan(lease.token)
    // It is not told: that is what the fence is for.
    expect(lease.isHeld).toBe(true)
    await expect(lease.transaction(database.pool, async () => {})).rejects.toMatchObject({
      code: 'STALE_TERM',
      currentToken: granted.token,
    })
    expect(lease).toMatchObject({
      isHeld: false,
      state: 'lost',
      loss: { reason: 'taken', token: lease.token },
    })
    expect(lease.signal.aborted).toBe(true)
    expect(await lease.release()).toBe('not-held')
    expect(granted.isHeld).toBe(true)
    expect(await operator.describe('handed on')).toMatchObject({
      state: 'held',
      holder: 'next',
      forcedReleases: [{ token: lease.token, holder: 'old', reason: 'it hangs' }],
    })
  })

  test('of several leases the one that was taken away is lost, and the others are not', async () => {
    const old = await database.open()
    const operator = await database.open()
    const leases = await old.acquireAll(['several/kept', 'several/taken'])
    const taken = leases.get('several/taken')
    await operator.forceRelease(taken.name, taken.token, { reason: 'a test' })
    expect(leases.isHeld).toBe(true)
    await expect(leases.transaction(database.pool, async () => {})).rejects.toMatchObject({
      code: 'STALE_TERM',
      lease: 'several/taken',
      by: 'lease',
    })
    expect(taken.state).toBe('lost')
    expect(taken.loss).toMatchObject({ reason: 'taken', token: taken.token })
    expect(leases.get('several/kept').state).toBe('held')
    expect(leases.signal.reason).toBe(taken.loss)
    await leases.release()
  })

  test('a lease that was taken away and is only given back says not-held', async () => {
    const fencepost = await database.open()
    const lease = await fencepost.acquire('given back late')
    await fencepost.forceRelease('given back late', lease.token, { reason: 'a test' })
    const next = await (await database.open()).acquire('given back late')
    expect(await lease.release()).toBe('not-held')
    expect(next.isHeld).toBe(true)
    await next.transaction(database.pool, async () => {})
  })

  test('work under a lease that was taken away ends with LeaseLostError, although it went well', async () => {
    const fencepost = await database.open()
    const worked = fencepost.withLease('worked', async (lease) => {
      await fencepost.forceRelease('worked', lease.token, { reason: 'a test' })
      return 'done'
    })
    await expect(worked).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'ended' })
  })

  test('cancel ends the open transactions, whose writes are rolled back; without it they keep the lease', async () => {
    await database.query('create table written (id integer)')
    const fencepost = await database.open()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('cancelled')
    const { session, pid } = await openTransaction(holder, 'cancelled', token)
    await session.query('insert into written values (1)')
    const kept = await fencepost.forceRelease('cancelled', token, { reason: 'a test', wait: '50ms' })
    expect(kept).toMatchObject({ outcome: 'draining', token, cancelled: [] })
    expect(await fencepost.describe('cancelled')).toMatchObject({
      transactions: [{ pid, state: 'idle in transaction' }],
    })
    const released = await fencepost.forceRelease('cancelled', token, { reason: 'a test', cancel: true })
    expect(released).toMatchObject({ outcome: 'released', token, cancelled: [pid] })
    await expect(session.query('commit')).rejects.toThrow()
    expect(await database.query('select from written')).toEqual([])
    expect(await records('cancelled')).toMatchObject([{ cancelled: [pid] }])
  })

  test('a prepared transaction keeps the lease, is shown, and has no session to end', async () => {
    const fencepost = await database.open()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('prepared')
    const { session } = await openTransaction(holder, 'prepared', token)
    await session.query(`prepare transaction 'kept by nobody'`)
    const options = { reason: 'a test', cancel: true }
    expect(await fencepost.forceRelease('prepared', token, options)).toMatchObject({
      outcome: 'draining',
      cancelled: [],
    })
    expect(await fencepost.describe('prepared')).toMatchObject({
      transactions: [{ pid: undefined, state: 'prepared' }],
    })
    await database.query(`rollback prepared 'kept by nobody'`)
    expect(await fencepost.forceRelease('prepared', token, options)).toMatchObject({ outcome: 'released' })
  })

  test('a holder that goes on beginning fenced transactions cannot keep the lease from a forced release', async () => {
    const fencepost = await database.open()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('busy')
    // Each of them overlaps with the others, so that there is hardly a moment in which none is open.
    const work = Array.from({ length: 8 }, async (): Promise<unknown> => {
      const session = await database.session()
      for (;;) {
        try {
          await session.query('begin')
          await holder.fence(session, 'busy', token)
          await session.query('select pg_sleep(0.02)')
          await session.query('commit')
        } catch (error) {
          return error
        }
      }
    })
    expect(await fencepost.forceRelease('busy', token, { reason: 'a test' })).toMatchObject({
      outcome: 'released',
    })
    for (const error of await Promise.all(work)) expect(error).toMatchObject({ code: 'FP001' })
  })

  test('cancel with a wrong token ends no session', async () => {
    const fencepost = await database.open()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('spared')
    const { session } = await openTransaction(holder, 'spared', token)
    expect(
      await fencepost.forceRelease('spared', token - 1n, { reason: 'a test', cancel: true }),
    ).toMatchObject({
      outcome: 'wrong-token',
      token,
      cancelled: [],
    })
    await session.query('commit')
  })

  test('wrong arguments are refused before anything is sent', async () => {
    const fencepost = await database.open()
    for (const [token, options] of [
      [1 as unknown as bigint, { reason: 'x' }],
      [-1n, { reason: 'x' }],
      [2n ** 63n, { reason: 'x' }],
      [1n, { reason: ' ' }],
      [1n, {} as { reason: string }],
      [1n, { reason: 'x'.repeat(4001) }],
      [1n, { reason: 'x', wait: '1h' as const }],
    ] as const) {
      await expect(fencepost.forceRelease('any', token, options)).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
      })
    }
  })

  test('holders lists who is alive and who has expired, with what they hold and wait for', async () => {
    const fencepost = await database.open()
    const one = await SqlHolder.join(database.pool, 60_000, 'holds two')
    const two = await SqlHolder.join(database.pool, 60_000, 'waits')
    const gone = await SqlHolder.join(database.pool, 60_000, 'has ended')
    await one.acquire('h/1', 'h/2')
    await two.stand('h/1')
    await gone.end()
    const late = await SqlHolder.join(database.pool, 60_000, 'has expired')
    await late.expire()
    const holders = await fencepost.holders()
    const of = (label: string): object | undefined => holders.find(({ holder }) => holder === label)
    expect(of('holds two')).toMatchObject({ state: 'alive', ttlMs: 60_000, leases: 2, waits: 0, meta: {} })
    expect(of('waits')).toMatchObject({ state: 'alive', leases: 0, waits: 1 })
    expect(of('has expired')).toMatchObject({ state: 'expired' })
    expect(of('has ended')).toBeUndefined()
    expect(Object.keys(holders[0]!)).not.toContain('id')
  })

  test('raiseTokenFloor lifts the next token, and never lowers it', async () => {
    const fencepost = await database.open()
    const sequence = 'floor'
    expect(await fencepost.raiseTokenFloor(2n ** 53n + 1n, { sequence })).toBe(2n ** 53n + 1n)
    expect(await fencepost.raiseTokenFloor(7n, { sequence })).toBe(2n ** 53n + 1n)
    expect((await fencepost.acquire('raised', { sequence })).token).toBe(2n ** 53n + 2n)
    await expect(fencepost.raiseTokenFloor(-1n)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    // What would leave no token is refused before it is asked for.
    await expect(fencepost.raiseTokenFloor(2n ** 62n + 1n, { sequence })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      argument: 'floor',
      message: expect.stringContaining('at most 4611686018427387904') as string,
    })
    expect((await fencepost.acquire('still', { sequence })).token).toBe(2n ** 53n + 3n)
    expect(await fencepost.raiseTokenFloor(2n ** 62n, { sequence: 'high' })).toBe(2n ** 62n)
  })
})

async function waits(lease: string): Promise<void> {
  for (;;) {
    // oxlint-disable-next-line no-await-in-loop -- Until it is known.
    if ((await database.query('select from fencepost.waiter where lease = $1', [lease])).length > 0) return
  }
}

describe('purge', () => {
  test('sweeps what was recorded of forced releases, and not what is younger', async () => {
    const fencepost = await database.open()
    const holder = await SqlHolder.join(database.pool)
    for (const name of ['old', 'young']) await forceRelease(name, await holder.take(name))
    await database.query(
      `update fencepost.forced_release set released_at = now() - interval '2 days' where lease = 'old'`,
    )
    await fencepost.purge({ olderThan: '1d' })
    expect(await records('old')).toEqual([])
    expect(await records('young')).toHaveLength(1)
  })

  test('works in steps, tells how far it is, and forgets no more than one call does', async () => {
    const fencepost = await database.open()
    await database.query(
      `insert into fencepost.lease (name, token, granted_at) select 'bulk/' || i, i, now() - interval '9 days' from generate_series(1, 20001) i`,
    )
    const progress: number[] = []
    const forgotten = await fencepost.purge({ olderThan: '8d', onProgress: (count) => progress.push(count) })
    expect(forgotten).toBe(20_001)
    expect(progress).toEqual([10_000, 20_000])
    expect(await fencepost.purge({ olderThan: '8d' })).toBe(0)
  })
})

describe('rights', () => {
  const [app, operator] = [`app_${randomBytes(4).toString('hex')}`, `ops_${randomBytes(4).toString('hex')}`]

  beforeAll(async () => {
    for (const role of [app, operator])
      await database.query(`create role ${role} login password 'secret-of-${role}'`)
    await Fencepost.migrate({ connectionString: database.url, grantTo: [app, operator] })
    await database.query(
      `grant execute on function fencepost.force_release(text, bigint, text, bigint, integer[]), fencepost.fenced_sessions(text, bigint) to ${operator}`,
    )
  })
  afterAll(async () => {
    for (const role of [app, operator]) {
      await upgraded.query(`drop owned by ${role}`)
      await database.query(`drop owned by ${role}; drop role ${role}`)
    }
  })

  const openAs = (role: string) =>
    database.open({ connectionString: database.urlAs(role, `secret-of-${role}`) })

  test('an application’s role may look, and may neither force, purge nor raise tokens', async () => {
    const fencepost = await openAs(app)
    const lease = await fencepost.acquire('of the app')
    for (const refused of [
      () => fencepost.forceRelease('of the app', lease.token, { reason: 'mine' }),
      () => fencepost.purge({ olderThan: '1d' }),
      () => fencepost.raiseTokenFloor(1n),
    ]) {
      await expect(refused()).rejects.toMatchObject({
        code: 'PERMISSION_DENIED',
        message: expect.stringContaining('grant execute on function fencepost.') as string,
      })
    }
    const pool = database.newPool({ connectionString: database.urlAs(app, `secret-of-${app}`) })
    for (const statement of [
      `select fencepost.purge('0')`,
      `select fencepost.fenced_sessions('of the app', 1)`,
      'select * from fencepost.forced_release',
    ]) {
      await expect(pool.query(statement)).rejects.toMatchObject({ code: '42501' })
    }
    expect(lease.isHeld).toBe(true)
    expect(await fencepost.describe('of the app')).toMatchObject({ state: 'held', transactions: [] })
    expect((await fencepost.holders()).length).toBeGreaterThan(0)
  })

  test('a role without pg_read_all_stats sees which session of another role keeps the lease, and not since when', async () => {
    const holder = await SqlHolder.join(database.pool)
    const { session, pid } = await openTransaction(holder, 'unseen', await holder.take('unseen'))
    const [seen] = (await (await openAs(app)).describe('unseen'))!.transactions
    expect(seen).toMatchObject({ pid, state: undefined, since: undefined, ageMs: undefined })
    await session.query('commit')
  })

  test('a role that was given the functions may force, but ends only sessions that the server lets it end', async () => {
    const fencepost = await openAs(operator)
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('given')
    const { session } = await openTransaction(holder, 'given', token)
    await expect(
      fencepost.forceRelease('given', token, { reason: 'a test', cancel: true }),
    ).rejects.toMatchObject({ code: 'PERMISSION_DENIED' })
    await session.query('commit')
    expect(await fencepost.forceRelease('given', token, { reason: 'a test' })).toMatchObject({
      outcome: 'released',
    })
    expect(
      await database.query(`select released_by from fencepost.forced_releases where lease = 'given'`),
    ).toEqual([{ released_by: operator }])
  })

  test('who could use leases before the upgrade can look at the new views', async () => {
    await Fencepost.migrate({ connectionString: upgraded.url, grantTo: [app] })
    await downTo(6, upgraded)
    await Fencepost.migrate({ connectionString: upgraded.url })
    const pool = upgraded.newPool({ connectionString: upgraded.urlAs(app, `secret-of-${app}`) })
    for (const view of ['holders', 'fenced_transactions', 'forced_releases']) {
      await pool.query(`select * from fencepost.${view}`)
    }
    await expect(pool.query(`select * from fencepost.force_release('x', 1, 'y')`)).rejects.toMatchObject({
      code: '42501',
    })
  })
})

async function downTo(version: number, { url }: TestDatabase): Promise<void> {
  for (;;) {
    const down = await Fencepost.migrate({ connectionString: url, direction: 'down' })
    if (down.schemaVersion === version) return
    expect(down.schemaVersion).toBeGreaterThan(version)
  }
}
