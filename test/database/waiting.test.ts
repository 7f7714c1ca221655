import { createHash } from 'node:crypto'
import type { Client } from 'pg'
import { beforeAll, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { type AcquireRow, type ReleaseRow, SqlHolder, waitsOrAnswers } from '../support/sql-holder.ts'

const database = useDatabase()

const join = (label = 'sql') => SqlHolder.join(database.pool, 30_000, label)

const proofOf = (lease: string, holder: SqlHolder, ticket: string, token: bigint | string) =>
  createHash('sha256').update(`${holder.id}:${ticket}:${token}:${lease}`).digest('hex').slice(0, 24)

const ticketsInLine = async (name: string) => {
  const rows = await database.query<{ ticket: string }>(
    'select ticket from fencepost.waiter where lease = $1 order by ticket',
    [name],
  )
  return rows.map((row) => row.ticket)
}

const leaseRow = async (name: string) => {
  const [row] = await database.query<{ token: string; holder_id: string | null; ticket: string | null }>(
    'select token, holder_id, ticket from fencepost.lease where name = $1',
    [name],
  )
  return row
}

const isInTransaction = async (session: Client) => {
  const { rows } = await session.query<{ xid: string | null }>(
    'select pg_current_xact_id_if_assigned()::text as xid',
  )
  return rows[0]!.xid !== null
}

const show = async (session: Client, setting: string) =>
  (await session.query<{ value: string }>('select current_setting($1) as value', [setting])).rows[0]!.value

/** A lease that the first holder has, with the others in line for it. */
async function lineFor(name: string, ...labels: string[]) {
  const holder = await join('holder')
  const token = await holder.take(name)
  const waiters: { holder: SqlHolder; ticket: string }[] = []
  for (const label of labels) {
    const waiter = await join(label)
    waiters.push({ holder: waiter, ticket: await waiter.stand(name) })
  }
  return { holder, token, waiters }
}

/** One lease goes another way through release than several. */
const ways = [['alone'], ['with another']] as const

async function letGoThat(
  way: (typeof ways)[number][0],
  holder: SqlHolder,
  name: string,
  token: bigint,
  session?: Client,
): Promise<ReleaseRow[]> {
  const other = `${name}, another`
  const leases = [[name, token.toString()] as const]
  if (way === 'with another') leases.unshift([other, (await holder.take(other)).toString()])
  const rows = await (session === undefined ? holder : holder.on(session)).letGoAll(
    leases.map(([each]) => each),
    leases.map(([, each]) => each),
  )
  return rows.filter((row) => row.name !== other)
}

const wakesOf = (rows: readonly ReleaseRow[]) => rows.map((row) => row.wake)

const pauseKey = 7_700_077

/** A session that stops at every update of leases, in mid-statement, until the returned function lets it go on. */
async function pausedAtUpdates() {
  const [session, gate] = [await database.session(), await database.session()]
  await session.query(`set test.pauses = 'on'`)
  await gate.query('select pg_advisory_lock($1)', [pauseKey])
  return { session, goOn: () => gate.query('select pg_advisory_unlock($1)', [pauseKey]) }
}

beforeAll(async () => {
  await database.query(
    `create function public.pause() returns trigger language plpgsql as $$
     begin
       if current_setting('test.pauses', true) = 'on' then
         perform pg_advisory_xact_lock_shared(${pauseKey});
       end if;
       return null;
     end $$`,
  )
  await database.query(
    'create trigger pause before update on fencepost.lease for each statement execute function public.pause()',
  )
})

describe('standing in line', () => {
  test('gives a ticket to who is refused, and the same one again', async () => {
    const { waiters, holder } = await lineFor('stand', 'first')
    const { holder: first, ticket } = waiters[0]!
    expect((await first.ask(['stand'], { stand: true }))[0]).toMatchObject({
      token: null,
      reason: 'held',
      label: 'holder',
      ticket,
    })
    const second = await join()
    expect(BigInt(await second.stand('stand'))).toBeGreaterThan(BigInt(ticket))
    expect(await ticketsInLine('stand')).toHaveLength(2)
    expect((await holder.ask(['stand'], { stand: true }))[0]).toMatchObject({ reason: 'held' })
  })

  test('gives no ticket to who is granted the lease', async () => {
    const holder = await join()
    expect((await holder.ask(['stand-free'], { stand: true }))[0]).toMatchObject({
      ticket: null,
      reason: null,
    })
    expect(await ticketsInLine('stand-free')).toEqual([])
  })

  test('writes nothing for a try that does not ask for it, whether the lease is held, withheld or queued for', async () => {
    const { holder, token } = await lineFor('stand-not')
    const other = await join()
    const session = await database.session()
    const triesInVain = async (reason: string) => {
      await session.query('begin')
      expect((await other.on(session).ask(['stand-not']))[0]).toMatchObject({
        token: null,
        ticket: null,
        reason,
      })
      expect(await isInTransaction(session)).toBe(false)
      await session.query('commit')
    }
    await triesInVain('held')
    await holder.letGo('stand-not', token)
    await database.query(
      `update fencepost.lease set available_at = clock_timestamp() + interval '1 min' where name = 'stand-not'`,
    )
    await triesInVain('not_yet')
    const waiter = await join()
    await waiter.stand('stand-not')
    await database.query(`update fencepost.lease set available_at = '-infinity' where name = 'stand-not'`)
    await triesInVain('queued')
    expect(await ticketsInLine('stand-not')).toHaveLength(1)
  })

  test('commits without waiting for the disk, unless it is granted something as well', async () => {
    await lineFor('stand-async')
    const session = await database.session()
    const waiter = await SqlHolder.join(database.pool)
    await session.query('begin')
    await waiter.on(session).stand('stand-async')
    expect(await show(session, 'synchronous_commit')).toBe('off')
    await session.query('rollback')
    await session.query('begin')
    const rows = await waiter.on(session).ask(['stand-async', 'stand-sync'], { stand: true })
    expect(rows.filter((row) => row.token !== null)).toHaveLength(1)
    expect(rows.filter((row) => row.ticket !== null)).toHaveLength(1)
    expect(await show(session, 'synchronous_commit')).toBe('on')
    await session.query('commit')
  })

  test('leaves the durability of the transaction around it alone', async () => {
    await lineFor('stand-within')
    const session = await database.session()
    const waiter = await join()
    await session.query('begin')
    await session.query('create temporary table mine () on commit drop')
    await waiter.on(session).stand('stand-within')
    expect(await show(session, 'synchronous_commit')).toBe('on')
    await session.query('rollback')
  })

  test('is refused to a holder that has expired, ended or given the attempt up', async () => {
    await lineFor('stand-refused')
    const waiter = await join()
    await waiter.voidAttempts(3)
    await expect(waiter.ask(['stand-refused'], { stand: true, attempt: 3 })).rejects.toMatchObject({
      code: 'FP004',
    })
    await waiter.expire()
    await expect(waiter.stand('stand-refused')).rejects.toMatchObject({ code: 'FP002' })
    await waiter.end()
    await expect(waiter.stand('stand-refused')).rejects.toMatchObject({ code: 'FP002' })
    expect(await ticketsInLine('stand-refused')).toEqual([])
  })

  test('is not possible for a lease of another sequence', async () => {
    const holder = await join()
    await holder.take('stand-sequence', { sequence: 'own' })
    const waiter = await join()
    expect((await waiter.ask(['stand-sequence'], { stand: true }))[0]).toMatchObject({
      reason: 'sequence',
      ticket: null,
    })
    expect(await ticketsInLine('stand-sequence')).toEqual([])
  })

  test.each(['repeatable read', 'serializable'])(
    'works at %s, and so do release and leaving',
    async (level) => {
      const session = await database.session({
        options: `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`,
      })
      const name = `stand-${level}`
      const { holder, token } = await lineFor(name)
      const [first, second] = [await join(), await join()]
      const ticket = await first.on(session).stand(name)
      const next = await second.on(session).stand(name)
      expect((await holder.on(session).letGo(name, token)).wake).toMatch(`${ticket}:`)
      expect((await first.on(session).askWithTicket(name, ticket)).token).not.toBeNull()
      expect((await first.on(session).leave([name], [ticket]))[0]).toMatchObject({ outcome: 'left' })
      expect((await second.on(session).askWithTicket(name, next)).token).not.toBeNull()
    },
  )
})

describe('a release', () => {
  test('grants the lease to the first in line in the same statement, with a wake-up that only the database can make', async () => {
    const { holder, token, waiters } = await lineFor('hand', 'first', 'second')
    const [first, second] = [waiters[0]!, waiters[1]!]
    const session = await database.session()
    await session.query('begin')
    const row = await holder.on(session).letGo('hand', token)
    expect(await show(session, 'synchronous_commit')).toBe('on')
    await session.query('commit')
    expect(row.outcome).toBe('released')
    const [ticket, newer, proof] = row.wake!.split(':')
    expect(ticket).toBe(first.ticket)
    expect(BigInt(newer!)).toBeGreaterThan(token)
    expect(proof).toBe(proofOf('hand', first.holder, ticket!, newer!))
    for (const other of [second.holder, holder])
      expect(proof).not.toBe(proofOf('hand', other, ticket!, newer!))
    expect(await leaseRow('hand')).toEqual({ token: newer, holder_id: first.holder.id, ticket })
    expect(await ticketsInLine('hand')).toEqual([second.ticket])
    await first.holder.fence(database.pool, 'hand', BigInt(newer!))
    await expect(holder.fence(database.pool, 'hand', token)).rejects.toMatchObject({ code: 'FP001' })
  })

  test('without anybody in line frees the lease, wakes nobody and does not wait for the disk', async () => {
    const { holder, token } = await lineFor('hand-none')
    const session = await database.session()
    await session.query('begin')
    expect(await holder.on(session).letGo('hand-none', token)).toEqual({
      name: 'hand-none',
      outcome: 'released',
      wake: null,
    })
    expect(await show(session, 'synchronous_commit')).toBe('off')
    await session.query('commit')
    expect(await leaseRow('hand-none')).toMatchObject({ holder_id: null })
  })

  test('grants nothing when it is refused', async () => {
    const { holder, token, waiters } = await lineFor('hand-refused', 'first')
    expect(await holder.letGo('hand-refused', token + 1n)).toMatchObject({ outcome: 'not_held', wake: null })
    const other = waiters[0]!
    expect(await other.holder.letGo('hand-refused', token)).toMatchObject({ outcome: 'not_held', wake: null })
    expect(await ticketsInLine('hand-refused')).toEqual([other.ticket])
  })

  test('goes through the line in the order of the tickets', async () => {
    const { holder, token, waiters } = await lineFor('hand-order', 'a', 'b', 'c', 'd')
    let current = { holder, token }
    for (const { holder: next, ticket } of waiters) {
      const [woken, newer] = (await current.holder.letGo('hand-order', current.token)).wake!.split(':')
      expect(woken).toBe(ticket)
      expect(BigInt(newer!)).toBe(current.token + 1n)
      current = { holder: next, token: BigInt(newer!) }
    }
    expect((await current.holder.letGo('hand-order', current.token)).wake).toBeNull()
  })

  test.each(ways)(
    'passes over those who have expired or ended, and forgets their places (%s)',
    async (way) => {
      const name = `hand-dead-${way}`
      const { holder, token, waiters } = await lineFor(name, 'expired', 'ended', 'alive', 'behind')
      await waiters[0]!.holder.expire()
      await waiters[1]!.holder.end()
      expect(wakesOf(await letGoThat(way, holder, name, token))).toEqual([
        expect.stringMatching(`^${waiters[2]!.ticket}:`),
      ])
      expect(await ticketsInLine(name)).toEqual([waiters[3]!.ticket])
    },
  )

  test.each(ways)('frees the lease when all in line are dead (%s)', async (way) => {
    const name = `hand-all-dead-${way}`
    const { holder, token, waiters } = await lineFor(name, 'a', 'b')
    for (const waiter of waiters) await waiter.holder.expire()
    expect(await letGoThat(way, holder, name, token)).toEqual([{ name, outcome: 'released', wake: null }])
    expect(await (await join()).take(name)).toBeGreaterThan(token)
  })

  test.each(ways)(
    'wakes who is in line where it has to pass over him for something that comes to nothing (%s)',
    async (way) => {
      const name = `hand-busy-${way}`
      const { holder, token, waiters } = await lineFor(name, 'busy')
      const { holder: busy, ticket } = waiters[0]!
      const session = await database.session()
      await session.query('begin')
      await busy.on(session).voidAttempts(0)
      const rows = await letGoThat(way, holder, name, token)
      expect(rows).toHaveLength(2)
      expect(rows).toContainEqual({ name, outcome: 'released', wake: null })
      expect(rows).toContainEqual({ name: null, outcome: null, wake: ticket })
      await session.query('commit')
      expect((await busy.askWithTicket(name, ticket)).token).not.toBeNull()
    },
  )

  test.each(ways)('wakes who is in line where his leaving is rolled back (%s)', async (way) => {
    const name = `hand-stays-${way}`
    const { holder, token, waiters } = await lineFor(name, 'stays')
    const { holder: stays, ticket } = waiters[0]!
    const session = await database.session()
    await session.query('begin')
    await stays.on(session).leave([name], [ticket])
    expect(wakesOf(await letGoThat(way, holder, name, token))).toContain(ticket)
    await session.query('rollback')
    expect((await stays.askWithTicket(name, ticket)).token).not.toBeNull()
  })

  test.each(ways)('wakes all in line where it has to pass over all of them (%s)', async (way) => {
    const name = `hand-all-busy-${way}`
    const { holder, token, waiters } = await lineFor(name, 'leaving', 'busy')
    const [leaving, busy] = [waiters[0]!, waiters[1]!]
    const sessions = [await database.session(), await database.session()]
    for (const session of sessions) await session.query('begin')
    await leaving.holder.on(sessions[0]!).leave([name], [leaving.ticket])
    await busy.holder.on(sessions[1]!).voidAttempts(0)
    const rows = await letGoThat(way, holder, name, token)
    expect(rows).toContainEqual({ name, outcome: 'released', wake: null })
    expect(wakesOf(rows)).toContain(busy.ticket)
    for (const session of sessions) await session.query('commit')
    expect((await busy.holder.askWithTicket(name, busy.ticket)).token).not.toBeNull()
  })

  test.each(ways)('passes over who is just leaving (%s)', async (way) => {
    const name = `hand-leaving-${way}`
    const { holder, token, waiters } = await lineFor(name, 'leaving', 'next')
    const session = await database.session()
    await session.query('begin')
    await waiters[0]!.holder.on(session).leave([name], [waiters[0]!.ticket])
    expect(wakesOf(await letGoThat(way, holder, name, token))).toEqual([
      expect.stringMatching(`^${waiters[1]!.ticket}:`),
    ])
    await session.query('commit')
    expect(await ticketsInLine(name)).toEqual([])
  })

  test.each(ways)(
    'that says so has let the lease go, also when the last in line leaves in the middle of it (%s)',
    async (way) => {
      const name = `hand-left-${way}`
      const { holder, token, waiters } = await lineFor(name, 'leaving')
      const { session, goOn } = await pausedAtUpdates()
      const releasing = letGoThat(way, holder, name, token, session)
      expect(await waitsOrAnswers(database.pool, releasing)).toBe('waits')
      await waiters[0]!.holder.leave([name], [waiters[0]!.ticket])
      await goOn()
      expect(await releasing).toContainEqual({ name, outcome: 'released', wake: null })
      expect(await leaseRow(name)).toMatchObject({ holder_id: null })
    },
  )

  test('is not held up by a waiter that has asked for bounds which no clock can reach', async () => {
    for (const bound of ['minHoldMs', 'maxHoldMs', 'graceMs'] as const) {
      const name = `hand-poison-${bound}`
      const { holder, token } = await lineFor(name)
      const waiter = await join()
      await waiter.stand(name, { [bound]: 9_223_372_036_854_770 }).catch(() => {})
      // The server tells an error before it lets go of the locks.
      await expect.poll(() => holder.release(name, token), { interval: 5 }).toBe('released')
      expect(await database.query('select from fencepost.leases where name = $1', [name])).toHaveLength(1)
    }
  })
})

describe('asking with a ticket', () => {
  test('finds the grant whose wake-up was lost, each time anew with the same token', async () => {
    const { holder, token, waiters } = await lineFor('ask', 'first')
    const { holder: first, ticket } = waiters[0]!
    const [, newer] = (await holder.letGo('ask', token)).wake!.split(':')
    for (let times = 0; times < 3; times += 1)
      expect(await first.askWithTicket('ask', ticket)).toMatchObject({ token: newer, reason: null, ticket })
    expect(await leaseRow('ask')).toEqual({ token: newer, holder_id: first.id, ticket })
  })

  test('waits for the same durability as a grant', async () => {
    const { holder, token, waiters } = await lineFor('ask-durable', 'first')
    const { holder: first, ticket } = waiters[0]!
    await holder.letGo('ask-durable', token)
    const session = await database.session()
    await session.query('set synchronous_commit = off')
    await session.query('begin')
    await first.on(session).askWithTicket('ask-durable', ticket)
    expect(await show(session, 'synchronous_commit')).toBe('on')
    expect(await isInTransaction(session)).toBe(true)
    await session.query('commit')
  })

  test('finds the grant also while a fenced transaction of it is open', async () => {
    const { holder, token, waiters } = await lineFor('ask-fenced', 'first')
    const { holder: first, ticket } = waiters[0]!
    await holder.letGo('ask-fenced', token)
    const session = await database.session()
    await session.query('begin')
    await first.fence(session, 'ask-fenced', token + 1n)
    const asking = first.askWithTicket('ask-fenced', ticket)
    const outcome = await waitsOrAnswers(database.pool, asking)
    await session.query('commit')
    expect(await asking).toMatchObject({ token: `${token + 1n}` })
    expect(outcome).toBe('answers')
  })

  test('of many in any order does not deadlock', async () => {
    const tickets: string[] = []
    const names = ['ask-order-a', 'ask-order-b']
    const first = await join()
    for (const name of names) {
      const { holder, token } = await lineFor(name)
      tickets.push(await first.stand(name))
      await holder.letGo(name, token)
    }
    const session = await database.session()
    for (const order of ['asc', 'desc']) {
      await session.query('begin')
      await session.query(
        `select from fencepost.lease where name = any ($1) order by name ${order} limit 1 for share`,
        [names],
      )
      const backwards = first.askWithTickets(names.toReversed(), tickets.toReversed())
      await waitsOrAnswers(database.pool, backwards)
      const forwards = first.askWithTickets(names, tickets)
      await waitsOrAnswers(database.pool, forwards, 2)
      await session.query('commit')
      expect((await Promise.all([backwards, forwards])).flat().every((row) => row.token !== null)).toBe(true)
    }
  })

  test('costs no transaction id while it is in vain', async () => {
    const { waiters } = await lineFor('ask-cheap', 'first')
    const session = await database.session()
    await session.query('begin')
    const { holder: first, ticket } = waiters[0]!
    expect(await first.on(session).askWithTicket('ask-cheap', ticket)).toMatchObject({
      reason: 'held',
      ticket,
    })
    expect(await isInTransaction(session)).toBe(false)
    await session.query('commit')
  })

  test('is answered "gone" for an unknown ticket, for that of somebody else, and for one that was left', async () => {
    const { holder, waiters } = await lineFor('ask-gone', 'first', 'second')
    const [first, second] = [waiters[0]!, waiters[1]!]
    const gone = { token: null, reason: 'gone', ticket: null }
    expect(await first.holder.askWithTicket('ask-gone', '987654321')).toMatchObject(gone)
    expect(await first.holder.askWithTicket('ask-gone', second.ticket)).toMatchObject(gone)
    expect(await holder.askWithTicket('ask-gone', first.ticket)).toMatchObject(gone)
    expect(await first.holder.askWithTicket('ask-other', first.ticket)).toMatchObject(gone)
    await second.holder.leave(['ask-gone'], [second.ticket])
    expect(await second.holder.askWithTicket('ask-gone', second.ticket)).toMatchObject(gone)
    expect(await ticketsInLine('ask-gone')).toEqual([first.ticket])
    expect(await first.holder.askWithTicket('ask-gone', first.ticket)).toMatchObject({ reason: 'held' })
  })

  test('is answered "gone" when the term that it brought is over', async () => {
    const { holder, token, waiters } = await lineFor('ask-over', 'first')
    const { holder: first, ticket } = waiters[0]!
    await holder.letGo('ask-over', token)
    await first.letGo('ask-over', token + 1n)
    expect(await first.askWithTicket('ask-over', ticket)).toMatchObject({ token: null, reason: 'gone' })
    await first.take('ask-over')
    expect(await first.askWithTicket('ask-over', ticket)).toMatchObject({ token: null, reason: 'gone' })
  })

  test('is answered "gone" in the end when the lease was deleted by hand, and puts nobody in line', async () => {
    const { waiters } = await lineFor('ask-deleted', 'first')
    await database.query(`delete from fencepost.lease where name = 'ask-deleted'`)
    const { holder: first, ticket } = waiters[0]!
    const reasons = [
      (await first.askWithTicket('ask-deleted', ticket)).reason,
      (await first.askWithTicket('ask-deleted', ticket)).reason,
    ]
    expect(reasons[1]).toBe('gone')
    expect(['gone', 'contended']).toContain(reasons[0])
    expect(await leaseRow('ask-deleted')).toBeUndefined()
    expect(await ticketsInLine('ask-deleted')).toEqual([])
  })

  test('takes over from an expired holder when it is the first in line, and not when it is the second', async () => {
    const { holder, token } = await lineFor('ask-over-take')
    const [first, second] = [
      await SqlHolder.join(database.pool, 40_000, 'first'),
      await SqlHolder.join(database.pool, 60_000, 'second'),
    ]
    const tickets = [await first.stand('ask-over-take'), await second.stand('ask-over-take')]
    await holder.expire()
    const refused = await second.askWithTicket('ask-over-take', tickets[1]!)
    expect(refused).toMatchObject({ token: null, reason: 'queued', label: 'first', ticket: tickets[1] })
    expect(Number(refused.again_ms)).toBeGreaterThan(35_000)
    expect(Number(refused.again_ms)).toBeLessThanOrEqual(40_000)
    expect(await first.askWithTicket('ask-over-take', tickets[0]!)).toMatchObject({
      token: `${token + 1n}`,
      ticket: tickets[0],
    })
    expect(await holder.beat()).toBe(false)
    expect(await ticketsInLine('ask-over-take')).toEqual([tickets[1]])
  })

  test('is told to ask again when the holder before it in line has run out, and the first when that of the lease has', async () => {
    const holder = await SqlHolder.join(database.pool, 50_000)
    await holder.take('ask-again')
    const [first, second] = [
      await SqlHolder.join(database.pool, 20_000),
      await SqlHolder.join(database.pool, 80_000),
    ]
    const third = await join()
    const againMs = async (who: SqlHolder, ticket: string) =>
      Number((await who.askWithTicket('ask-again', ticket)).again_ms)
    const tickets = [
      await first.stand('ask-again'),
      await second.stand('ask-again'),
      await third.stand('ask-again'),
    ]
    expect(await againMs(first, tickets[0]!)).toBeGreaterThan(45_000)
    expect(await againMs(first, tickets[0]!)).toBeLessThanOrEqual(50_000)
    expect(await againMs(second, tickets[1]!)).toBeGreaterThan(15_000)
    expect(await againMs(second, tickets[1]!)).toBeLessThanOrEqual(20_000)
    expect(await againMs(third, tickets[2]!)).toBeGreaterThan(75_000)
    await second.expire()
    expect(await againMs(third, tickets[2]!)).toBeLessThanOrEqual(20_000)
    await first.expire()
    expect(await againMs(third, tickets[2]!)).toBeGreaterThan(45_000)
  })

  test('by the second in line is granted the lease when the first has died', async () => {
    const { holder, token, waiters } = await lineFor('ask-dead', 'first', 'second')
    await holder.expire()
    await waiters[0]!.holder.expire()
    expect(await waiters[1]!.holder.askWithTicket('ask-dead', waiters[1]!.ticket)).toMatchObject({
      token: `${token + 1n}`,
    })
  })

  test('is answered for every name, also when the lease is handed over in the middle of it', async () => {
    const { holder, token, waiters } = await lineFor('ask-middle', 'first')
    const { holder: first, ticket } = waiters[0]!
    const { session, goOn } = await pausedAtUpdates()
    await session.query('begin')
    const asking = first.on(session).askWithTickets(['ask-middle'], [ticket])
    await waitsOrAnswers(database.pool, asking)
    await holder.letGo('ask-middle', token)
    await goOn()
    expect(await asking).toMatchObject([{ name: 'ask-middle' }])
    await session.query('commit')
  })

  test('of an attempt that was voided is not refused, for the attempt does not count', async () => {
    const { holder, token, waiters } = await lineFor('ask-voided', 'first')
    await waiters[0]!.holder.voidAttempts(1000)
    await holder.letGo('ask-voided', token)
    expect(await waiters[0]!.holder.askWithTicket('ask-voided', waiters[0]!.ticket)).toMatchObject({
      token: `${token + 1n}`,
    })
  })

  test('by a holder that has expired or ended is refused', async () => {
    const { waiters } = await lineFor('ask-ended', 'expired', 'ended')
    await waiters[0]!.holder.expire()
    await waiters[1]!.holder.end()
    for (const { holder, ticket } of waiters)
      await expect(holder.askWithTicket('ask-ended', ticket)).rejects.toMatchObject({ code: 'FP002' })
  })
})

describe('those in line', () => {
  const aged = async (name: string) => {
    const line = await lineFor(name, 'first', 'second')
    await line.holder.expire()
    return line
  }

  test('are not passed by a try of the free lease, which is told who is the first of them', async () => {
    const { token, waiters } = await aged('fair')
    const other = await join()
    const [row] = await other.ask(['fair'])
    expect(row).toMatchObject({ token: null, reason: 'queued', label: 'first' })
    expect(Number(row!.remaining_ms)).toBeGreaterThan(25_000)
    expect((await other.ask(['fair'], { stand: true }))[0]).toMatchObject({
      reason: 'queued',
      label: 'first',
    })
    expect((await waiters[0]!.holder.askWithTicket('fair', waiters[0]!.ticket)).token).toBe(`${token + 1n}`)
  })

  test('are passed by who barges, and by anybody when they are dead', async () => {
    const { token, waiters } = await aged('fair-barge')
    const other = await join()
    expect(await other.take('fair-barge', { barge: true })).toBe(token + 1n)
    expect(await ticketsInLine('fair-barge')).toHaveLength(2)
    await other.expire()
    for (const waiter of waiters) await waiter.holder.expire()
    expect(await (await join()).take('fair-barge')).toBe(token + 2n)
  })

  test('are not passed by who asks for all or none, unless it barges', async () => {
    const { token } = await aged('fair-all')
    const other = await join()
    const rows = await other.askAll(['fair-all', 'fair-all-free'])
    expect(rows).toHaveLength(1)
    expect(rows[0]).toMatchObject({ name: 'fair-all', token: null, reason: 'queued', label: 'first' })
    expect(await leaseRow('fair-all-free')).toBeUndefined()
    const granted = await other.askAll(['fair-all', 'fair-all-free'], { barge: true })
    expect(new Set(granted.map((row) => BigInt(row.token!)))).toEqual(new Set([token + 1n, token + 2n]))
  })

  test('may try without their ticket: the first is granted the lease, the second is not', async () => {
    const { waiters } = await aged('fair-own')
    expect((await waiters[1]!.holder.ask(['fair-own']))[0]).toMatchObject({
      reason: 'queued',
      label: 'first',
    })
    expect((await waiters[1]!.holder.askAll(['fair-own']))[0]).toMatchObject({
      reason: 'queued',
      label: 'first',
    })
    expect((await waiters[0]!.holder.ask(['fair-own']))[0]).toMatchObject({ reason: null })
  })

  test('go by their order also when the first asks for all or none', async () => {
    const { waiters } = await aged('fair-own-all')
    expect((await waiters[0]!.holder.askAll(['fair-own-all']))[0]!.token).not.toBeNull()
  })

  test('count by the lease: a line for one does not stand before another', async () => {
    await aged('fair-this')
    expect(await (await join()).take('fair-that')).toBeGreaterThan(0n)
  })
})

describe('no wake-up is lost', () => {
  test('when somebody is just standing in line while the lease is released', async () => {
    const { holder, token } = await lineFor('race-stand')
    const waiter = await join()
    const session = await database.session()
    await session.query('begin')
    const ticket = await waiter.on(session).stand('race-stand')
    expect(await holder.letGo('race-stand', token)).toMatchObject({ outcome: 'draining', wake: null })
    await session.query('commit')
    expect((await holder.letGo('race-stand', token)).wake).toMatch(`${ticket}:`)
  })

  test('when the lease is just being released while somebody stands in line', async () => {
    const { holder, token } = await lineFor('race-release')
    const waiter = await join()
    const session = await database.session()
    await session.query('begin')
    await holder.on(session).letGo('race-release', token)
    const standing = waiter.ask(['race-release'], { stand: true })
    await waitsOrAnswers(database.pool, standing)
    await session.query('commit')
    const [row] = await standing
    if (row!.token === null) expect(row).toMatchObject({ reason: 'contended', ticket: null, again_ms: '0' })
    expect(await ticketsInLine('race-release')).toEqual([])
    if (row!.token === null) await waiter.take('race-release')
  })

  test('when somebody is just standing in line while the holder ends', async () => {
    const { holder } = await lineFor('race-end')
    const waiter = await join()
    const session = await database.session()
    await session.query('begin')
    const ticket = await waiter.on(session).stand('race-end')
    const ending = holder.end()
    expect(await waitsOrAnswers(database.pool, ending)).toBe('waits')
    await session.query('commit')
    await ending
    const wakes = await holder.handOn()
    expect(wakes).toHaveLength(1)
    expect(wakes[0]).toMatch(new RegExp(`^${ticket}:\\d+:[0-9a-f]{24}$`))
  })

  test('when the holder is just ending while somebody stands in line', async () => {
    const { holder } = await lineFor('race-ending')
    const waiter = await join()
    const session = await database.session()
    await session.query('begin')
    await holder.on(session).end()
    const standing = waiter.ask(['race-ending'], { stand: true })
    await waitsOrAnswers(database.pool, standing)
    await session.query('commit')
    const [row] = await standing
    await holder.handOn()
    expect(row).toMatchObject({ token: null, reason: 'contended', ticket: null, again_ms: '0' })
    expect(await ticketsInLine('race-ending')).toEqual([])
    await waiter.take('race-ending')
  })

  test('when a waiter stands in line under an open fenced transaction, which goes on undisturbed', async () => {
    const { holder, token } = await lineFor('race-fence')
    const fenced = await database.session()
    await fenced.query('begin')
    await holder.fence(fenced, 'race-fence', token)
    const waiter = await join()
    const ticket = await waiter.stand('race-fence')
    await holder.expire()
    expect(await waiter.askWithTicket('race-fence', ticket)).toMatchObject({ reason: 'draining', ticket })
    const late = await join()
    expect((await late.ask(['race-fence'], { stand: true }))[0]).toMatchObject({ reason: 'queued' })
    await fenced
      .query('select fencepost.fence($1, $2, $3)', ['race-fence', token.toString(), holder.id])
      .catch(() => {})
    await fenced.query('rollback')
    expect((await waiter.askWithTicket('race-fence', ticket)).token).toBe(`${token + 1n}`)
  })

  test('when a waiter stands in line for a lease whose holder has expired in the middle of a fenced transaction', async () => {
    const { holder, token } = await lineFor('race-drain')
    const fenced = await database.session()
    await fenced.query('begin')
    await holder.fence(fenced, 'race-drain', token)
    await holder.expire()
    const waiter = await join()
    const [row] = await waiter.ask(['race-drain'], { stand: true })
    expect(row).toMatchObject({ token: null, reason: 'draining' })
    expect(row!.ticket).not.toBeNull()
    await fenced.query('commit')
    expect((await waiter.askWithTicket('race-drain', row!.ticket!)).token).toBe(`${token + 1n}`)
  })

  test('when a fenced transaction keeps the lease: the release says so, and later grants it to the first in line', async () => {
    const { holder, token, waiters } = await lineFor('race-drained', 'first')
    const fenced = await database.session()
    await fenced.query('begin')
    await holder.fence(fenced, 'race-drained', token)
    expect(await holder.letGo('race-drained', token)).toMatchObject({ outcome: 'draining', wake: null })
    await fenced.query('commit')
    expect((await holder.letGo('race-drained', token)).wake).toMatch(`${waiters[0]!.ticket}:`)
  })

  test('when a waiter stands for a lease that has just come free: it is told to ask again, not put in line', async () => {
    const { holder, token } = await lineFor('race-free')
    await holder.letGo('race-free', token)
    const session = await database.session()
    await session.query('begin')
    await session.query(`select from fencepost.lease where name = 'race-free' for update`)
    const waiter = await join()
    expect((await waiter.ask(['race-free'], { stand: true }))[0]).toMatchObject({
      reason: 'contended',
      ticket: null,
    })
    await session.query('rollback')
    expect(await ticketsInLine('race-free')).toEqual([])
  })
})

describe('leaving the line', () => {
  test.each(['leave', 'hand_on', 'give_back'])(
    'of a free lease (%s) waits for who is just standing behind, and wakes him',
    async (way) => {
      const name = `leave-behind-${way}`
      const { holder, waiters } = await lineFor(name, 'first')
      const { holder: first, ticket } = waiters[0]!
      await holder.expire()
      const [session, second] = [await database.session(), await join()]
      await session.query('begin')
      const [row] = await second.on(session).ask([name], { stand: true })
      expect(row).toMatchObject({ token: null, reason: 'queued' })
      const going = {
        leave: async () => (await first.leave([name], [ticket])).map(({ wake }) => wake),
        hand_on: () => first.end().then(() => first.handOn()),
        give_back: () => first.voidAttempts(1).then(() => first.giveBack([name], [1])),
      }[way]!()
      expect(await waitsOrAnswers(database.pool, going)).toBe('waits')
      await session.query('commit')
      expect(await going).toContain(row!.ticket)
      expect((await second.askWithTicket(name, row!.ticket!)).token).not.toBeNull()
    },
  )

  test('of two at once wakes the third, whichever of them is the last', async () => {
    for (const order of ['first', 'second'] as const) {
      const name = `leave-both-${order}`
      const { holder, waiters } = await lineFor(name, 'first', 'second', 'third')
      await holder.expire()
      const [one, two, third] =
        order === 'first' ? [waiters[0]!, waiters[1]!, waiters[2]!] : [waiters[1]!, waiters[0]!, waiters[2]!]
      const session = await database.session()
      await session.query('begin')
      const before = await one.holder.on(session).leave([name], [one.ticket])
      const leaving = two.holder.leave([name], [two.ticket])
      if ((await waitsOrAnswers(database.pool, leaving)) === 'waits') {
        await session.query('commit')
        expect((await leaving).map((row) => row.wake)).toContain(third.ticket)
      } else {
        expect((await leaving).map((row) => row.wake)).toContain(third.ticket)
        expect((await third.holder.askWithTicket(name, third.ticket)).reason).toBe('queued')
        await session.query('commit')
        expect(before.map((row) => row.wake)).toContain(third.ticket)
      }
      expect((await third.holder.askWithTicket(name, third.ticket)).token).not.toBeNull()
    }
  })

  test('removes the place, and nobody is woken when others stand before it', async () => {
    const { holder, token, waiters } = await lineFor('leave', 'first', 'second', 'third')
    const [first, second, third] = [waiters[0]!, waiters[1]!, waiters[2]!]
    expect(await second.holder.leave(['leave'], [second.ticket])).toEqual([
      { name: 'leave', outcome: 'left', wake: null },
    ])
    expect(await ticketsInLine('leave')).toEqual([first.ticket, third.ticket])
    expect((await holder.letGo('leave', token)).wake).toMatch(`${first.ticket}:`)
  })

  test('by the first in line wakes the next, without a token, to hear for how long', async () => {
    const { waiters } = await lineFor('leave-first', 'first', 'second')
    expect(await waiters[0]!.holder.leave(['leave-first'], [waiters[0]!.ticket])).toEqual([
      { name: 'leave-first', outcome: 'left', wake: null },
      { name: null, outcome: null, wake: waiters[1]!.ticket },
    ])
  })

  test('by the first in line does not wake the dead', async () => {
    const { waiters } = await lineFor('leave-dead', 'first', 'dead', 'third')
    await waiters[1]!.holder.expire()
    const rows = await waiters[0]!.holder.leave(['leave-dead'], [waiters[0]!.ticket])
    expect(rows.map((row) => row.wake)).toEqual([null, waiters[2]!.ticket])
  })

  test('after a grant by the ticket passes the lease on to the next', async () => {
    const { holder, token, waiters } = await lineFor('leave-granted', 'first', 'second')
    const [first, second] = [waiters[0]!, waiters[1]!]
    await holder.letGo('leave-granted', token)
    const rows = await first.holder.leave(['leave-granted'], [first.ticket])
    expect(rows).toHaveLength(1)
    expect(rows[0]).toMatchObject({ name: 'leave-granted', outcome: 'left' })
    expect(rows[0]!.wake).toBe(
      `${second.ticket}:${token + 2n}:${proofOf('leave-granted', second.holder, second.ticket, token + 2n)}`,
    )
    await expect(first.holder.fence(database.pool, 'leave-granted', token + 1n)).rejects.toMatchObject({
      code: 'FP001',
    })
    expect(await first.holder.askWithTicket('leave-granted', first.ticket)).toMatchObject({ reason: 'gone' })
  })

  test('after a grant by the ticket frees the lease when nobody is behind', async () => {
    const { holder, token, waiters } = await lineFor('leave-last', 'first')
    await holder.letGo('leave-last', token)
    await waiters[0]!.holder.leave(['leave-last'], [waiters[0]!.ticket])
    expect(await (await join()).take('leave-last')).toBe(token + 2n)
  })

  test('with a ticket of somebody else, or an old one, changes nothing', async () => {
    const { holder, token, waiters } = await lineFor('leave-other', 'first', 'second')
    const [first, second] = [waiters[0]!, waiters[1]!]
    await second.holder.leave(['leave-other'], [first.ticket])
    expect(await ticketsInLine('leave-other')).toEqual([first.ticket, second.ticket])
    await holder.letGo('leave-other', token)
    await first.holder.letGo('leave-other', token + 1n)
    await second.holder.letGo('leave-other', token + 2n)
    expect(await first.holder.take('leave-other')).toBe(token + 3n)
    expect((await first.holder.leave(['leave-other'], [first.ticket]))[0]).toMatchObject({ outcome: 'left' })
    expect(await leaseRow('leave-other')).toMatchObject({ holder_id: first.holder.id })
  })

  test('is contended while somebody has the lease that the ticket was granted, and works when asked again', async () => {
    const { holder, token, waiters } = await lineFor('leave-locked', 'first', 'second')
    await holder.letGo('leave-locked', token)
    const session = await database.session()
    await session.query('begin')
    await session.query(`select from fencepost.lease where name = 'leave-locked' for share`)
    const { holder: first, ticket } = waiters[0]!
    expect((await first.leave(['leave-locked'], [ticket]))[0]).toMatchObject({ outcome: 'contended' })
    expect(await leaseRow('leave-locked')).toMatchObject({ holder_id: first.id })
    await session.query('rollback')
    expect((await first.leave(['leave-locked'], [ticket]))[0]).toMatchObject({ outcome: 'left' })
    expect(await leaseRow('leave-locked')).toMatchObject({ holder_id: waiters[1]!.holder.id })
  })

  test('while the lease is just granted by the ticket waits for it, and passes it on', async () => {
    const { holder, token, waiters } = await lineFor('leave-racing', 'first', 'second')
    const session = await database.session()
    await session.query('begin')
    await holder.on(session).letGo('leave-racing', token)
    const leaving = waiters[0]!.holder.leave(['leave-racing'], [waiters[0]!.ticket])
    expect(await waitsOrAnswers(database.pool, leaving)).toBe('waits')
    await session.query('commit')
    expect((await leaving)[0]!.wake).toMatch(`${waiters[1]!.ticket}:`)
    expect(await leaseRow('leave-racing')).toMatchObject({ holder_id: waiters[1]!.holder.id })
  })
})

describe('an attempt whose answer was lost', () => {
  test('leaves the line, and the next one is woken', async () => {
    const { waiters } = await lineFor('lost', 'before')
    const [lost, behind] = [await join(), await join()]
    await lost.stand('lost', { attempt: 4 })
    const ticketBehind = await behind.stand('lost')
    await lost.voidAttempts(4)
    expect(await lost.giveBack(['lost'], [4])).toEqual([])
    expect(await ticketsInLine('lost')).toEqual([waiters[0]!.ticket, ticketBehind])
    const first = waiters[0]!.holder
    await first.voidAttempts(1)
    expect(await first.giveBack(['lost'], [1])).toEqual([ticketBehind])
  })

  test('cannot put its holder in line when it is carried out late', async () => {
    const { holder, token } = await lineFor('lost-late')
    const waiter = await join()
    await waiter.voidAttempts(2)
    await expect(waiter.ask(['lost-late'], { stand: true, attempt: 2 })).rejects.toMatchObject({
      code: 'FP004',
    })
    expect((await holder.letGo('lost-late', token)).wake).toBeNull()
  })

  test('that is just committing is waited for, and undone', async () => {
    await lineFor('lost-committing')
    const waiter = await join()
    const session = await database.session()
    await session.query('begin')
    await waiter.on(session).stand('lost-committing', { attempt: 2 })
    const voiding = waiter.voidAttempts(2)
    expect(await waitsOrAnswers(database.pool, voiding)).toBe('waits')
    await session.query('commit')
    await voiding
    await waiter.giveBack(['lost-committing'], [2])
    expect(await ticketsInLine('lost-committing')).toEqual([])
  })

  test('gives back what it was granted by hand-over, to the next in line', async () => {
    const { holder, token } = await lineFor('lost-granted')
    const [lost, next] = [await join(), await join()]
    await lost.stand('lost-granted', { attempt: 3 })
    const ticket = await next.stand('lost-granted')
    await holder.letGo('lost-granted', token)
    await lost.voidAttempts(3)
    expect(await lost.giveBack(['lost-granted'], [3])).toEqual([
      `${ticket}:${token + 2n}:${proofOf('lost-granted', next, ticket, token + 2n)}`,
    ])
  })

  test('that is just being granted the lease gives it back, to the next in line', async () => {
    const { holder, token } = await lineFor('lost-granting')
    const [lost, next] = [await join(), await join()]
    await lost.stand('lost-granting', { attempt: 3 })
    const ticket = await next.stand('lost-granting')
    const session = await database.session()
    await session.query('begin')
    await holder.on(session).letGo('lost-granting', token)
    const givingBack = lost.giveBack(['lost-granting'], [3])
    expect(await waitsOrAnswers(database.pool, givingBack)).toBe('waits')
    await session.query('commit')
    expect(await givingBack).toEqual([
      `${ticket}:${token + 2n}:${proofOf('lost-granting', next, ticket, token + 2n)}`,
    ])
  })

  test.each([
    ['an earlier one', 3],
    ['a later one', 9],
  ])('does not touch the live term, or the place, of another attempt: %s', async (_, other) => {
    const [held, waited] = [`exact-held-${other}`, `exact-waited-${other}`]
    await lineFor(waited)
    const holder = await join()
    await holder.take(held, { attempt: 6 })
    const ticket = await holder.stand(waited, { attempt: 6 })
    await holder.voidAttempts(other)
    await holder.giveBack([held, waited], [other, other])
    expect(await leaseRow(held)).toMatchObject({ holder_id: holder.id })
    expect(await ticketsInLine(waited)).toEqual([ticket])
    await holder.giveBack([held, waited], [6, 6])
    expect(await leaseRow(held)).toMatchObject({ holder_id: null })
    expect(await ticketsInLine(waited)).toEqual([])
  })

  test('does not touch a term that its holder was granted by the ticket of another attempt', async () => {
    const { holder, token } = await lineFor('exact-ticket')
    const waiter = await join()
    const ticket = await waiter.stand('exact-ticket', { attempt: 5 })
    await waiter.stand('exact-ticket', { attempt: 7 })
    await holder.letGo('exact-ticket', token)
    await waiter.voidAttempts(7)
    await waiter.giveBack(['exact-ticket'], [7])
    expect((await waiter.askWithTicket('exact-ticket', ticket)).token).toBe(`${token + 1n}`)
  })

  test('is given back without a deadlock while its holder stands in line for the same leases', async () => {
    await lineFor('lost-lock-a')
    const holder = await join()
    await holder.stand('lost-lock-a', { attempt: 1 })
    await holder.take('lost-lock-b', { attempt: 1 })
    await holder.voidAttempts(1)
    const session = await database.session()
    await session.query('begin')
    await session.query(`select from fencepost.lease where name = 'lost-lock-b' for share`)
    const givingBack = holder.giveBack(['lost-lock-a', 'lost-lock-b'], [1, 1])
    await waitsOrAnswers(database.pool, givingBack)
    const standing = holder.ask(['lost-lock-a', 'lost-lock-b'], { stand: true, attempt: 2 })
    standing.catch(() => {})
    await waitsOrAnswers(database.pool, standing, 2)
    await session.query('commit')
    const [, rows] = await Promise.all([givingBack, standing])
    const { ticket } = rows.find((row) => row.name === 'lost-lock-b')!
    expect(await leaseRow('lost-lock-b')).toMatchObject({ holder_id: holder.id, ticket })
  })
})

describe('a holder that has ended', () => {
  test('hands on what others wait for, and frees the rest', async () => {
    const { holder, token, waiters } = await lineFor('end', 'first', 'second')
    await holder.take('end-free')
    await holder.end()
    const first = waiters[0]!
    expect(await holder.handOn()).toEqual([
      `${first.ticket}:${token + 2n}:${proofOf('end', first.holder, first.ticket, token + 2n)}`,
    ])
    expect(await holder.handOn()).toEqual([])
    expect(await leaseRow('end')).toMatchObject({ holder_id: first.holder.id })
    expect(await (await join()).take('end-free')).toBe(token + 3n)
  })

  test('gives up its places in line, and whoever comes first by that is woken', async () => {
    const { waiters } = await lineFor('end-places', 'first', 'second', 'third')
    const [first, second, third] = [waiters[0]!, waiters[1]!, waiters[2]!]
    await second.holder.end()
    expect(await second.holder.handOn()).toEqual([])
    expect(await ticketsInLine('end-places')).toEqual([first.ticket, third.ticket])
    await first.holder.end()
    expect(await first.holder.handOn()).toEqual([third.ticket])
  })

  test('keeps nothing from a fenced transaction that is open: the first in line is woken to ask', async () => {
    const { holder, token, waiters } = await lineFor('end-fenced', 'first')
    const fenced = await database.session()
    await fenced.query('begin')
    await holder.fence(fenced, 'end-fenced', token)
    await holder.end()
    expect(await holder.handOn()).toEqual([waiters[0]!.ticket])
    expect(await waiters[0]!.holder.askWithTicket('end-fenced', waiters[0]!.ticket)).toMatchObject({
      reason: 'draining',
    })
    await fenced.query('commit')
    expect((await waiters[0]!.holder.askWithTicket('end-fenced', waiters[0]!.ticket)).token).toBe(
      `${token + 1n}`,
    )
  })

  test('in its grace keeps the lease closed, and the first in line is woken to hear for how long', async () => {
    const holder = await join()
    const token = await holder.take('end-grace', { graceMs: 20_000 })
    const waiter = await join()
    const ticket = await waiter.stand('end-grace')
    await holder.end()
    expect(await holder.handOn()).toEqual([ticket])
    const row = await waiter.askWithTicket('end-grace', ticket)
    expect(row).toMatchObject({ token: null, reason: 'not_yet', ticket })
    expect(Number(row.again_ms)).toBeGreaterThan(15_000)
    expect(Number(row.again_ms)).toBeLessThanOrEqual(20_000)
    await database.query(`update fencepost.holder set ended_at = ended_at - interval '20 s' where id = $1`, [
      holder.id,
    ])
    expect((await waiter.askWithTicket('end-grace', ticket)).token).toBe(`${token + 1n}`)
  })

  test('is not one that lives, or has only expired: nothing of it goes on', async () => {
    const { holder, waiters } = await lineFor('end-not', 'first')
    const place = await lineFor('end-not-place')
    const ticket = await holder.stand('end-not-place')
    expect(await holder.handOn()).toEqual([])
    await holder.expire()
    expect(await holder.handOn()).toEqual([])
    expect(await leaseRow('end-not')).toMatchObject({ holder_id: holder.id })
    expect(await ticketsInLine('end-not')).toEqual([waiters[0]!.ticket])
    expect(await ticketsInLine('end-not-place')).toEqual([ticket])
    expect(await leaseRow('end-not-place')).toMatchObject({ holder_id: place.holder.id })
  })
})

describe('batches', () => {
  const names = (prefix: string, count: number) =>
    Array.from({ length: count }, (_, index) => `${prefix}-${index}`)

  test('of 200 leases go to those in line, and the others come free', async () => {
    const all = names('batch', 200)
    const waited = all.filter((_, index) => index % 2 === 0)
    const [holder, one, two] = [await join(), await join(), await join()]
    const granted = await holder.ask(all)
    const stood = await one.ask(waited, { stand: true })
    await two.ask(waited, { stand: true })
    const rows = await holder.letGoAll(
      granted.map((row) => row.name),
      granted.map((row) => row.token!),
    )
    expect(rows).toHaveLength(200)
    expect(rows.every((row) => row.outcome === 'released')).toBe(true)
    expect(new Set(rows.filter((row) => row.wake !== null).map((row) => row.name))).toEqual(new Set(waited))
    const tickets = new Map(stood.map((row) => [row.name, row.ticket!]))
    const tokens = new Set<string>()
    for (const { name, wake } of rows) {
      if (wake === null) continue
      const [ticket, token, proof] = wake.split(':')
      expect(ticket).toBe(tickets.get(name!))
      expect(proof).toBe(proofOf(name!, one, ticket!, token!))
      tokens.add(token!)
    }
    expect(tokens.size).toBe(100)
    const last = granted.map((row) => BigInt(row.token!)).reduce((a, b) => (a > b ? a : b))
    for (const token of tokens) expect(BigInt(token)).toBeGreaterThan(last)
    const free = await (await join()).ask(all)
    expect(
      free
        .filter((row) => row.token !== null)
        .map((row) => row.name)
        .toSorted(),
    ).toEqual(all.filter((name) => !waited.includes(name)).toSorted())
    // The rows come in any order.
    const places = await two.ask(waited, { stand: true })
    expect(
      await two.leave(
        places.map((row) => row.name),
        places.map((row) => row.ticket!),
      ),
    ).toHaveLength(100)
  })

  test('of two sequences are let go in one release, each with tokens of its own sequence', async () => {
    const [holder, waiter] = [await join(), await join()]
    await database.query(`select fencepost.raise_token_floor('batch-own', 1000000)`)
    const [plain, own] = ['batch-default', 'batch-sequence']
    const tokens = [await holder.take(plain), await holder.take(own, { sequence: 'batch-own' })]
    await waiter.stand(plain)
    await waiter.stand(own, { sequence: 'batch-own' })
    const rows = await holder.letGoAll([own, plain], tokens.toReversed().map(String))
    const token = (name: string) => BigInt(rows.find((row) => row.name === name)!.wake!.split(':')[1]!)
    expect(token(own)).toBe(tokens[1]! + 1n)
    expect(token(plain)).toBe(tokens[0]! + 1n)
  })

  test('are left as batches: each name is answered, and the next of each line is woken', async () => {
    const all = names('batch-leave', 20)
    const [holder, one, two] = [await join(), await join(), await join()]
    await holder.ask(all)
    const stood = await one.ask(all, { stand: true })
    const behind = await two.ask(all, { stand: true })
    const rows = await one.leave(
      stood.map((row) => row.name),
      stood.map((row) => row.ticket!),
    )
    expect(rows.filter((row) => row.name !== null).map((row) => row.outcome)).toEqual(all.map(() => 'left'))
    expect(rows.flatMap((row) => (row.wake === null ? [] : [row.wake])).toSorted()).toEqual(
      behind.map((row) => row.ticket!).toSorted(),
    )
  })

  test('in any order, that stand, ask and release at once, neither deadlock nor share a term, and all get their turn', async () => {
    const all = names('batch-race', 6)
    const last = new Map<string, bigint>()
    const held = new Map<string, string>()
    const tokens = new Set<string>()
    const turns = 60
    const shuffled = (round: number, worker: number) =>
      worker % 2 === 0
        ? all
        : all.toReversed().toSorted((a, b) => (a < b ? 1 : -1) * (round % 3 === 0 ? 1 : -1))
    const work = async (worker: number) => {
      const holder = await SqlHolder.join(await database.session())
      for (let round = 0; round < turns; round += 1) {
        const order = shuffled(round, worker)
        const toCome = new Set(order)
        const places = new Map<string, string>()
        const grants = new Map<string, string>()
        const take = (rows: AcquireRow[]) => {
          for (const { name, token, ticket, reason } of rows) {
            if (token !== null) {
              if (held.has(name)) throw new Error(`"${name}" has two holders`)
              if (BigInt(token) <= (last.get(name) ?? 0n)) throw new Error(`the token ${token} is no greater`)
              if (tokens.has(token)) throw new Error(`the token ${token} was given out twice`)
              held.set(name, holder.id)
              last.set(name, BigInt(token))
              tokens.add(token)
              grants.set(name, token)
              toCome.delete(name)
              places.delete(name)
            } else if (reason === 'gone') throw new Error(`the place in line for "${name}" is gone`)
            else if (ticket !== null) places.set(name, ticket)
          }
        }
        while (toCome.size > 0 || grants.size > 0) {
          const standing = order.filter((name) => toCome.has(name) && !places.has(name))
          if (standing.length > 0) take(await holder.ask(standing, { stand: true }))
          const asking = order.filter((name) => places.has(name))
          if (asking.length > 0) {
            take(
              await holder.askWithTickets(
                asking,
                asking.map((name) => places.get(name)!),
              ),
            )
          }
          if (grants.size > 0) {
            const giving = [...grants]
            // Whoever is next may know it before this is answered.
            for (const [name] of giving) held.delete(name)
            const rows = await holder.letGoAll(
              giving.map(([name]) => name),
              giving.map(([, token]) => token),
            )
            for (const { name, outcome } of rows) {
              if (outcome === 'not_held') throw new Error(`"${name}" was lost`)
              if (outcome === 'released') grants.delete(name!)
            }
          }
        }
      }
    }
    await Promise.all(Array.from({ length: 8 }, (_, worker) => work(worker)))
    expect(tokens.size).toBe(8 * turns * all.length)
    expect(await database.query(`select from fencepost.waiter where lease like 'batch-race%'`)).toEqual([])
  })
})

/** Brings wake-ups to who waits, also when they come before he does. */
class WakeUps {
  readonly #early = new Map<string, string[]>()
  readonly #waiting = new Map<string, (wake: string) => void>()

  send(wakes: readonly (string | null)[]): void {
    for (const wake of wakes) {
      if (wake === null) continue
      const ticket = wake.split(':')[0]!
      const resolve = this.#waiting.get(ticket)
      this.#waiting.delete(ticket)
      if (resolve === undefined) this.#early.set(ticket, [...(this.#early.get(ticket) ?? []), wake])
      else resolve(wake)
    }
  }

  next(ticket: string): Promise<string> {
    const early = this.#early.get(ticket)?.shift()
    if (early !== undefined) return Promise.resolve(early)
    return new Promise((resolve) => void this.#waiting.set(ticket, resolve))
  }
}

describe('in a crowd in which nobody asks unless woken', () => {
  test('nobody is forgotten, while others stand, leave, end, and lose answers', async () => {
    const wakeUps = new WakeUps()
    const held = new Map<string, string>()
    const last = new Map<string, bigint>()
    const names = ['crowd-a', 'crowd-b', 'crowd-c']
    const pick = <T>(from: readonly T[]) => from[Math.floor(Math.random() * from.length)]!
    const counts = { granted: 0, left: 0, ended: 0, lost: 0 }
    const work = async () => {
      const session = await database.session()
      const newHolder = () => SqlHolder.join(session, 86_400_000)
      let holder = await newHolder()
      let attempt = 0

      const leave = async (name: string, ticket: string): Promise<void> => {
        const rows = await holder.leave([name], [ticket])
        wakeUps.send(rows.map((row) => row.wake))
        if (rows.some((row) => row.outcome === 'contended')) await leave(name, ticket)
      }
      const isToAskAtOnce = ({ reason }: AcquireRow) => reason === 'contended' || reason === 'draining'
      const waitFor = async (name: string, ticket: string, answer: AcquireRow): Promise<string> => {
        for (let row = answer; ;) {
          while (isToAskAtOnce(row)) {
            row = await holder.askWithTicket(name, ticket)
            if (row.token !== null) return row.token
            if (row.reason === 'gone') throw new Error(`the place in line for "${name}" is gone`)
          }
          const [, token, proof] = (await wakeUps.next(ticket)).split(':')
          if (token !== undefined) {
            expect(proof).toBe(proofOf(name, holder, ticket, token))
            return token
          }
          row = { ...row, reason: 'contended' }
        }
      }
      const use = async (name: string, token: string): Promise<void> => {
        if (held.has(name)) throw new Error(`"${name}" has two holders`)
        if (BigInt(token) <= (last.get(name) ?? 0n)) throw new Error(`the token ${token} is no greater`)
        held.set(name, token)
        last.set(name, BigInt(token))
        counts.granted += 1
        if (Math.random() < 0.5) {
          await session.query('begin')
          await holder.fence(session, name, BigInt(token))
          await session.query('commit')
        }
        held.delete(name)
        if (Math.random() < 0.2) {
          counts.ended += 1
          await holder.end()
          wakeUps.send(await holder.handOn())
          holder = await newHolder()
          attempt = 0
          return
        }
        for (;;) {
          const row = await holder.letGo(name, BigInt(token))
          wakeUps.send([row.wake])
          if (row.outcome === 'released') return
          if (row.outcome === 'not_held') throw new Error(`"${name}" was lost`)
        }
      }
      const turn = async (): Promise<void> => {
        const name = pick(names)
        attempt += 1
        const [row] = await holder.ask([name], { stand: true, attempt })
        const chance = Math.random()
        if (chance < 0.15) {
          counts.lost += 1
          await holder.voidAttempts(attempt)
          wakeUps.send(await holder.giveBack([name], [attempt]))
        } else if (row!.token !== null) await use(name, row!.token)
        else if (row!.ticket === null) await turn()
        else if (chance < 0.3) {
          counts.left += 1
          await leave(name, row!.ticket)
        } else await use(name, await waitFor(name, row!.ticket, row!))
      }
      for (let round = 0; round < 150; round += 1) await turn()
    }
    await Promise.all(Array.from({ length: 10 }, work))
    for (const count of Object.values(counts)) expect(count).toBeGreaterThan(20)
    expect(await database.query(`select from fencepost.waiter where lease like 'crowd%'`)).toEqual([])
  })
})

describe('one term at a time, with others in line', () => {
  test('of 50 who ask for an expired lease at once, those in line among them, the first in line is granted it', async () => {
    for (let round = 0; round < 15; round += 1) {
      const name = `double-${round}`
      const { holder, token, waiters } = await lineFor(name, 'first', 'second', 'third')
      const others = await Promise.all(Array.from({ length: 47 }, () => join()))
      await holder.expire()
      const ask = async () => {
        const [asked, tried] = await Promise.all([
          Promise.all(waiters.map(({ holder: waiter, ticket }) => waiter.askWithTicket(name, ticket))),
          Promise.all(others.map((other) => other.ask([name], { stand: true }))),
        ])
        return [...asked, ...tried.flat()]
      }
      let rows = await ask()
      // Where others had the row at that moment the first is told so, and asks again.
      while (rows.every((row) => row.token === null)) rows = await ask()
      const granted = rows.filter((row) => row.token !== null)
      expect(granted).toMatchObject([{ token: `${token + 1n}`, ticket: waiters[0]!.ticket }])
      expect(await leaseRow(name)).toMatchObject({ holder_id: waiters[0]!.holder.id })
    }
  })

  test('of 50 who barge for an expired lease at once one is granted it', async () => {
    for (let round = 0; round < 15; round += 1) {
      const name = `double-barge-${round}`
      const { holder, token } = await lineFor(name, 'first', 'second')
      const others = await Promise.all(Array.from({ length: 50 }, () => join()))
      await holder.expire()
      const rows = (await Promise.all(others.map((other) => other.ask([name], { barge: true })))).flat()
      expect(rows.filter((row) => row.token !== null)).toMatchObject([{ token: `${token + 1n}` }])
    }
  })

  test('a batch that takes long does not take what a holder that joined meanwhile was granted', async () => {
    const names = Array.from({ length: 3000 }, (_, index) => `long-${String(index).padStart(4, '0')}`)
    const slow = await SqlHolder.join(await database.session(), 3_600_000)
    const quick = await database.session()
    let grantedToBoth = 0
    for (let round = 0; round < 12; round += 1) {
      const batch = slow.ask(names)
      const joined = await SqlHolder.join(quick)
      const [row] = await joined.ask([names.at(-1)!])
      const rows = await batch
      const granted = rows.filter((each) => each.token !== null)
      if (row!.token !== null && granted.some((each) => each.name === names.at(-1))) grantedToBoth += 1
      if (row!.token !== null) await joined.letGo(names.at(-1)!, BigInt(row!.token))
      await slow.letGoAll(
        granted.map((each) => each.name),
        granted.map((each) => each.token!),
      )
    }
    expect(grantedToBoth).toBe(0)
  })
})

describe('the view fencepost.waiters', () => {
  test('shows who stands in line for what, first in line first, without the dead', async () => {
    const { waiters } = await lineFor('view', 'anna', 'bert', 'carl', 'dora')
    await waiters[1]!.holder.expire()
    await waiters[3]!.holder.end()
    const rows = await database.query<{ place: string; holder: string; since: Date }>(
      `select * from fencepost.waiters where lease = 'view' order by place`,
    )
    expect(rows).toMatchObject([
      { lease: 'view', place: '1', holder: 'anna', host: null, pid: null },
      { lease: 'view', place: '2', holder: 'carl', host: null, pid: null },
    ])
    expect(Math.abs(Date.now() - rows[0]!.since.getTime())).toBeLessThan(60_000)
    expect(rows[0]!.since.getTime()).toBeLessThanOrEqual(rows[1]!.since.getTime())
  })

  test('shows neither tickets nor holder ids, which are secrets', async () => {
    const rows = await database.query(
      `select column_name from information_schema.columns where table_schema = 'fencepost' and table_name = 'waiters'
        order by ordinal_position`,
    )
    expect(rows.map((row) => row['column_name'])).toEqual([
      'lease',
      'place',
      'holder',
      'host',
      'pid',
      'since',
    ])
  })
})

describe('purge', () => {
  const purge = () => database.query(`select fencepost.purge('0')`)

  test('forgets no lease that somebody waits for, and does once nobody does', async () => {
    const { holder, token, waiters } = await lineFor('purge-waited', 'first')
    await holder.expire()
    await purge()
    expect(await leaseRow('purge-waited')).toMatchObject({ token: token.toString() })
    await waiters[0]!.holder.leave(['purge-waited'], [waiters[0]!.ticket])
    await purge()
    expect(await leaseRow('purge-waited')).toBeUndefined()
  })

  test('forgets the places of the dead, and not those of the living', async () => {
    const { waiters } = await lineFor('purge-dead', 'expired', 'ended', 'alive')
    await waiters[0]!.holder.expire()
    await waiters[1]!.holder.end()
    await purge()
    expect(await ticketsInLine('purge-dead')).toEqual([waiters[2]!.ticket])
  })

  test('forgets no lease that is withheld for a minimum hold', async () => {
    const holder = await join()
    await holder.release('purge-hold', await holder.take('purge-hold', { minHoldMs: 60_000 }))
    await purge()
    expect(await leaseRow('purge-hold')).toBeDefined()
    expect((await (await join()).ask(['purge-hold']))[0]).toMatchObject({ reason: 'not_yet' })
  })

  test.each(['expired', 'ended'])('does not shorten the grace of a holder that has %s', async (how) => {
    const name = `purge-grace-${how}`
    const holder = await join()
    await holder.take(name, { graceMs: 60_000 })
    await (how === 'expired' ? holder.expire() : holder.end())
    await purge()
    await purge()
    const other = await join()
    expect((await other.ask([name]))[0]).toMatchObject({ token: null, reason: 'not_yet' })
    await database.query(
      `update fencepost.holder set ended_at = ended_at - interval '60 s', expires_at = expires_at - interval '60 s' where id = $1`,
      [holder.id],
    )
    await purge()
    expect(await leaseRow(name)).toBeUndefined()
    expect(await database.query('select from fencepost.holder where id = $1', [holder.id])).toEqual([])
  })
})
