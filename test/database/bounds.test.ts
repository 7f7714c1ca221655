import { describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()

const join = (label = 'sql') => SqlHolder.join(database.pool, 30_000, label)

const move = (name: string, column: 'available_at' | 'deadline', byMs: number) =>
  database.query(`update fencepost.lease set ${column} = ${column} + $2 * interval '1 ms' where name = $1`, [
    name,
    byMs,
  ])

const shown = async (name: string) => {
  const [row] = await database.query<{ state: string; holder: string | null; remaining_ms: number | null }>(
    `select state, holder, (extract(epoch from remaining) * 1000)::float as remaining_ms
       from fencepost.leases where name = $1`,
    [name],
  )
  return row!
}

const expectBetween = (value: string | number | null, least: number, most: number) => {
  expect(Number(value)).toBeGreaterThan(least)
  expect(Number(value)).toBeLessThanOrEqual(most)
}

describe('a minimum hold', () => {
  test('keeps everybody out until it has passed, although the lease was released', async () => {
    const holder = await join()
    const token = await holder.take('min', { minHoldMs: 20_000 })
    expect(await holder.release('min', token)).toBe('released')
    const other = await join()
    for (const who of [other, holder]) {
      const [row] = await who.ask(['min'])
      expect(row).toMatchObject({ token: null, reason: 'not_yet' })
      expectBetween(row!.remaining_ms, 15_000, 20_000)
      expectBetween(row!.again_ms, 15_000, 20_000)
    }
    expect((await other.ask(['min'], { barge: true }))[0]).toMatchObject({ reason: 'not_yet' })
    expect((await other.askAll(['min', 'min-other']))[0]).toMatchObject({ name: 'min', reason: 'not_yet' })
    await move('min', 'available_at', -20_000)
    expect(await other.take('min')).toBe(token + 1n)
  })

  test('does not keep its term from ending later, or bind the next one', async () => {
    const holder = await join()
    const token = await holder.take('min-later', { minHoldMs: 20_000 })
    await move('min-later', 'available_at', -20_000)
    const other = await join()
    expect((await other.ask(['min-later']))[0]).toMatchObject({ reason: 'held' })
    await holder.release('min-later', token)
    await other.release('min-later', await other.take('min-later'))
    expect(await holder.take('min-later')).toBe(token + 2n)
  })

  test('of a lease that is released early wakes the first in line without a token, to hear for how long', async () => {
    const holder = await join()
    const token = await holder.take('min-line', { minHoldMs: 20_000 })
    const [first, second] = [await join('first'), await join()]
    const tickets = [await first.stand('min-line'), await second.stand('min-line')]
    expect(await holder.letGo('min-line', token)).toMatchObject({ outcome: 'released', wake: tickets[0] })
    const row = await first.askWithTicket('min-line', tickets[0]!)
    expect(row).toMatchObject({ token: null, reason: 'not_yet', ticket: tickets[0] })
    expectBetween(row.again_ms, 15_000, 20_000)
    await move('min-line', 'available_at', -20_000)
    expect(await second.askWithTicket('min-line', tickets[1]!)).toMatchObject({
      reason: 'queued',
      label: 'first',
    })
    expect((await first.askWithTicket('min-line', tickets[0]!)).token).toBe(`${token + 1n}`)
  })

  test('outlives a crash of its holder within it, and no longer', async () => {
    const holder = await join()
    const token = await holder.take('min-crash', { minHoldMs: 20_000 })
    await holder.expire()
    const other = await join()
    const [row] = await other.ask(['min-crash'])
    expect(row).toMatchObject({ token: null, reason: 'not_yet' })
    expectBetween(row!.remaining_ms, 15_000, 20_000)
    expect(await holder.beat()).toBe(true)
    expect((await other.ask(['min-crash']))[0]).toMatchObject({ reason: 'held' })
    await holder.end()
    expect((await other.ask(['min-crash']))[0]).toMatchObject({ reason: 'not_yet' })
    await move('min-crash', 'available_at', -20_000)
    expect(await other.take('min-crash')).toBe(token + 1n)
  })

  test('is shown as withheld, with what remains', async () => {
    const holder = await join('shown')
    const token = await holder.take('min-shown', { minHoldMs: 20_000 })
    expect(await shown('min-shown')).toMatchObject({ state: 'held', holder: 'shown' })
    await holder.release('min-shown', token)
    const withheld = await shown('min-shown')
    expect(withheld).toMatchObject({ state: 'withheld', holder: null })
    expectBetween(withheld.remaining_ms, 15_000, 20_000)
    await move('min-shown', 'available_at', -20_000)
    expect(await shown('min-shown')).toEqual({ state: 'free', holder: null, remaining_ms: null })
  })
})

describe('a maximum hold', () => {
  test('ends the term at its time, although the holder beats, and the fence refuses it', async () => {
    const holder = await join()
    const token = await holder.take('max', { maxHoldMs: 20_000 })
    const other = await join()
    const [row] = await other.ask(['max'])
    expect(row).toMatchObject({ token: null, reason: 'held' })
    expectBetween(row!.remaining_ms, 15_000, 20_000)
    expectBetween(row!.again_ms, 15_000, 20_000)
    await holder.fence(database.pool, 'max', token)
    await move('max', 'deadline', -20_000)
    expect(await holder.beat()).toBe(true)
    await expect(holder.fence(database.pool, 'max', token)).rejects.toMatchObject({ code: 'FP002' })
    expect(await other.take('max')).toBe(token + 1n)
    await expect(holder.fence(database.pool, 'max', token)).rejects.toMatchObject({ code: 'FP001' })
    expect(await holder.release('max', token)).toBe('not_held')
    expect(await holder.beat()).toBe(true)
  })

  test('does not end the other leases of its holder', async () => {
    const holder = await join()
    await holder.take('max-one', { maxHoldMs: 20_000 })
    const kept = await holder.take('max-kept')
    await move('max-one', 'deadline', -20_000)
    await (await join()).take('max-one')
    await holder.fence(database.pool, 'max-kept', kept)
    expect((await (await join()).ask(['max-kept']))[0]).toMatchObject({ reason: 'held' })
  })

  test('lets the first in line take over by asking, and not the second', async () => {
    const holder = await join()
    const token = await holder.take('max-line', { maxHoldMs: 20_000 })
    const [first, second] = [await join(), await join()]
    const tickets = [await first.stand('max-line'), await second.stand('max-line')]
    await move('max-line', 'deadline', -20_000)
    expect(await second.askWithTicket('max-line', tickets[1]!)).toMatchObject({ reason: 'queued' })
    expect((await first.askWithTicket('max-line', tickets[0]!)).token).toBe(`${token + 1n}`)
  })

  test('waits for a fenced transaction that is open', async () => {
    const holder = await join()
    const token = await holder.take('max-fenced', { maxHoldMs: 20_000 })
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'max-fenced', token)
    const other = await join()
    const [row] = await other.ask(['max-fenced'])
    expect(row).toMatchObject({ reason: 'held' })
    await session.query('commit')
    await move('max-fenced', 'deadline', -20_000)
    expect(await other.take('max-fenced')).toBe(token + 1n)
  })

  test('is told with the grant: at once, by hand-over, and when asked again', async () => {
    const [holder, waiter] = [await join(), await join()]
    const [row] = await holder.ask(['max-told'], { maxHoldMs: 20_000 })
    expectBetween(row!.deadline_ms, 15_000, 20_000)
    const ticket = await waiter.stand('max-told', { maxHoldMs: 10_000 })
    await holder.release('max-told', BigInt(row!.token!))
    const asked = await waiter.askWithTicket('max-told', ticket)
    expectBetween(asked.deadline_ms, 5_000, 10_000)
    expectBetween(asked.remaining_ms, 5_000, 10_000)
    expect((await holder.ask(['max-without']))[0]!.deadline_ms).toBeNull()
  })
})

describe('a term that nobody has heard of', () => {
  test('leaves no minimum hold behind when its place in line is left', async () => {
    const [holder, waiter, next] = [await join(), await join(), await join()]
    const token = await holder.take('unheard')
    const ticket = await waiter.stand('unheard', { minHoldMs: 20_000 })
    await next.stand('unheard')
    await holder.letGo('unheard', token)
    const rows = await waiter.leave(['unheard'], [ticket])
    expect(rows[0]).toMatchObject({ name: 'unheard', outcome: 'left' })
    expect(rows[0]!.wake).toContain(`:${token + 2n}:`)
  })

  test('leaves no minimum hold behind when the attempt is undone', async () => {
    const [holder, next] = [await join(), await join()]
    await holder.take('undone', { minHoldMs: 20_000, attempt: 7 })
    const ticket = await next.stand('undone')
    await holder.voidAttempts(7)
    const [wake] = await holder.giveBack(['undone'], [7])
    expect(wake?.startsWith(`${ticket}:`)).toBe(true)
  })

  test('is no grant any more when its maximum hold has passed', async () => {
    const [holder, waiter] = [await join(), await join()]
    const token = await holder.take('overdue')
    const ticket = await waiter.stand('overdue', { maxHoldMs: 20_000 })
    await holder.letGo('overdue', token)
    expect(await waiter.askWithTicket('overdue', ticket)).toMatchObject({ token: `${token + 1n}` })
    await database.query(`update fencepost.lease set deadline = clock_timestamp() where name = 'overdue'`)
    expect(await waiter.askWithTicket('overdue', ticket)).toMatchObject({ token: null, reason: 'gone' })
  })
})

describe('a term that is limited while it is held', () => {
  const limit = async (holder: SqlHolder, name: string, token: bigint, withinMs: number) => {
    return (await limitAndWake(holder, name, token, withinMs)).outcome
  }
  const limitAndWake = async (holder: SqlHolder, name: string, token: bigint, withinMs: number) => {
    const [row] = await database.query<{ outcome: string; wake: string | null }>(
      'select outcome, wake from fencepost.limit_term($1, $2, $3, $4)',
      [name, token.toString(), holder.id, withinMs],
    )
    return row!
  }

  test('wakes the first in line, to hear when that will be', async () => {
    const holder = await join()
    const token = await holder.take('limit-awaited')
    const ticket = await (await join()).stand('limit-awaited')
    await (await join()).stand('limit-awaited')
    expect(await limitAndWake(holder, 'limit-awaited', token, 5000)).toEqual({
      outcome: 'limited',
      wake: ticket,
    })
    expect(await limitAndWake(await join(), 'limit-awaited', token, 5000)).toEqual({
      outcome: 'not_held',
      wake: null,
    })
  })

  test('ends then, and its holder goes on', async () => {
    const holder = await join()
    const token = await holder.take('limit')
    expect(await limit(holder, 'limit', token, 20_000)).toBe('limited')
    const other = await join()
    expectBetween((await other.ask(['limit']))[0]!.remaining_ms, 15_000, 20_000)
    expect(await limit(holder, 'limit', token, 0)).toBe('limited')
    expect(await limit(holder, 'limit', token, 60_000)).toBe('limited')
    expect(await other.take('limit')).toBe(token + 1n)
    expect(await holder.beat()).toBe(true)
  })

  test("is nobody else's, and not an older one", async () => {
    const holder = await join()
    const token = await holder.take('limit-other')
    expect(await limit(await join(), 'limit-other', token, 0)).toBe('not_held')
    expect(await limit(holder, 'limit-other', token - 1n, 0)).toBe('not_held')
    expect((await (await join()).ask(['limit-other']))[0]).toMatchObject({ reason: 'held' })
  })

  test('is not limited while a fenced transaction of it is open', async () => {
    const holder = await join()
    const token = await holder.take('limit-fenced')
    const session = await database.session()
    await session.query('begin')
    await holder.fence(session, 'limit-fenced', token)
    expect(await limit(holder, 'limit-fenced', token, 0)).toBe('draining')
    await session.query('commit')
    expect(await limit(holder, 'limit-fenced', token, 0)).toBe('limited')
  })
})

describe('the grace after a crash', () => {
  test('keeps an expired lease closed until it has passed', async () => {
    const holder = await join()
    const token = await holder.take('grace', { graceMs: 20_000 })
    const other = await join()
    const [held] = await other.ask(['grace'])
    expect(held).toMatchObject({ reason: 'held' })
    expectBetween(held!.remaining_ms, 25_000, 30_000)
    expectBetween(held!.again_ms, 45_000, 50_000)
    await holder.expire(5_000)
    const [row] = await other.ask(['grace'])
    expect(row).toMatchObject({ token: null, reason: 'not_yet' })
    expectBetween(row!.remaining_ms, 10_000, 15_000)
    expect((await other.ask(['grace'], { barge: true }))[0]).toMatchObject({ reason: 'not_yet' })
    await holder.expire(20_001)
    expect(await other.take('grace')).toBe(token + 1n)
    expect(await holder.beat()).toBe(false)
  })

  test('in it a late beat revives the holder', async () => {
    const holder = await join()
    const token = await holder.take('grace-beat', { graceMs: 20_000 })
    await holder.expire()
    const other = await join()
    expect((await other.ask(['grace-beat']))[0]).toMatchObject({ reason: 'not_yet' })
    expect(await holder.beat()).toBe(true)
    expect((await other.ask(['grace-beat']))[0]).toMatchObject({ reason: 'held' })
    await holder.fence(database.pool, 'grace-beat', token)
  })

  test('does not follow a release', async () => {
    const holder = await join()
    const token = await holder.take('grace-release', { graceMs: 20_000 })
    await holder.release('grace-release', token)
    expect(await (await join()).take('grace-release')).toBe(token + 1n)
  })

  test('does not follow a release of a holder that has expired', async () => {
    const holder = await join()
    const token = await holder.take('grace-late', { graceMs: 20_000 })
    await holder.expire()
    expect(await holder.release('grace-late', token)).toBe('released')
    expect(await (await join()).take('grace-late')).toBe(token + 1n)
  })

  test('counts from the end of a holder that was ended early', async () => {
    const holder = await join()
    const token = await holder.take('grace-ended', { graceMs: 10_000 })
    await holder.end()
    const other = await join()
    const [row] = await other.ask(['grace-ended'])
    expect(row).toMatchObject({ reason: 'not_yet' })
    expectBetween(row!.remaining_ms, 5_000, 10_000)
    await database.query(`update fencepost.holder set ended_at = ended_at - interval '10 s' where id = $1`, [
      holder.id,
    ])
    expect(await other.take('grace-ended')).toBe(token + 1n)
  })

  test('counts from the expiry of a holder that a taker of another lease has ended, not from its end', async () => {
    const holder = await join()
    await holder.take('grace-taken')
    await holder.take('grace-kept', { graceMs: 20_000 })
    await holder.expire(10_000)
    const other = await join()
    await other.take('grace-taken')
    const [row] = await other.ask(['grace-kept'])
    expect(row).toMatchObject({ reason: 'not_yet' })
    expectBetween(row!.remaining_ms, 5_000, 10_000)
  })

  test('follows the end of a maximum hold', async () => {
    const holder = await join()
    const token = await holder.take('grace-max', { maxHoldMs: 20_000, graceMs: 10_000 })
    await move('grace-max', 'deadline', -25_000)
    const other = await join()
    const [row] = await other.ask(['grace-max'])
    expect(row).toMatchObject({ reason: 'not_yet' })
    expectBetween(row!.remaining_ms, 1_000, 5_000)
    await move('grace-max', 'deadline', -5_000)
    expect(await other.take('grace-max')).toBe(token + 1n)
  })

  test('keeps the first in line waiting, who is told when to ask', async () => {
    const holder = await join()
    const token = await holder.take('grace-line', { graceMs: 20_000 })
    const waiter = await join()
    const ticket = await waiter.stand('grace-line')
    await holder.expire()
    const row = await waiter.askWithTicket('grace-line', ticket)
    expect(row).toMatchObject({ token: null, reason: 'not_yet', ticket })
    expectBetween(row.again_ms, 15_000, 20_000)
    await holder.expire(20_001)
    expect((await waiter.askWithTicket('grace-line', ticket)).token).toBe(`${token + 1n}`)
  })

  test('is shown as withheld, with what remains', async () => {
    const holder = await join('shown')
    await holder.take('grace-shown', { graceMs: 20_000 })
    expectBetween((await shown('grace-shown')).remaining_ms, 25_000, 30_000)
    await holder.expire()
    const withheld = await shown('grace-shown')
    expect(withheld).toMatchObject({ state: 'withheld', holder: 'shown' })
    expectBetween(withheld.remaining_ms, 15_000, 20_000)
    await holder.expire(20_001)
    expect(await shown('grace-shown')).toMatchObject({ state: 'expired', remaining_ms: null })
  })

  test('does not outlast a day, and none is negative', async () => {
    const holder = await join()
    for (const graceMs of [86_400_001, -1])
      await expect(holder.take('grace-bound', { graceMs })).rejects.toMatchObject({ code: '23514' })
    await holder.take('grace-bound', { graceMs: 86_400_000 })
  })
})

describe('the bounds that were named when standing in line', () => {
  const namedAtStanding = { minHoldMs: 5_000, maxHoldMs: 20_000, graceMs: 10_000 }

  const boundsOf = async (name: string) => {
    const [row] = await database.query<Record<'min' | 'max' | 'grace', number | null>>(
      `select round(extract(epoch from nullif(available_at, '-infinity') - granted_at) * 1000)::float as min,
              round(extract(epoch from nullif(deadline, 'infinity') - granted_at) * 1000)::float as max,
              (extract(epoch from grace) * 1000)::float as grace
         from fencepost.lease where name = $1`,
      [name],
    )
    return row
  }

  test.each(['release', 'asking'])('are those of the grant by %s', async (way) => {
    const name = `bounds-${way}`
    const holder = await join()
    const token = await holder.take(name, { graceMs: 1 })
    const waiter = await join()
    const ticket = await waiter.stand(name, namedAtStanding)
    if (way === 'release') await holder.release(name, token)
    else await holder.expire(2)
    expect((await waiter.askWithTicket(name, ticket)).token).toBe(`${token + 1n}`)
    expect(await boundsOf(name)).toEqual({ min: 5_000, max: 20_000, grace: 10_000 })
  })

  test('stay when the same holder stands again with others', async () => {
    const holder = await join()
    const token = await holder.take('bounds-again')
    const waiter = await join()
    const ticket = await waiter.stand('bounds-again', namedAtStanding)
    expect(await waiter.stand('bounds-again', { graceMs: 1 })).toBe(ticket)
    await holder.release('bounds-again', token)
    expect(await boundsOf('bounds-again')).toEqual({ min: 5_000, max: 20_000, grace: 10_000 })
  })

  test('do not bind the term after it', async () => {
    const holder = await join()
    const token = await holder.take('bounds-next', namedAtStanding)
    await move('bounds-next', 'available_at', -5_000)
    const waiter = await join()
    await waiter.stand('bounds-next')
    expect((await holder.letGo('bounds-next', token)).wake).toContain(':')
    expect(await boundsOf('bounds-next')).toEqual({ min: null, max: null, grace: 0 })
  })

  test('do not bind a plain grant after it either', async () => {
    const holder = await join()
    const token = await holder.take('bounds-plain', namedAtStanding)
    await move('bounds-plain', 'available_at', -5_000)
    await holder.release('bounds-plain', token)
    await holder.take('bounds-plain')
    expect(await boundsOf('bounds-plain')).toEqual({ min: null, max: null, grace: 0 })
  })

  test('hold for all or none as well', async () => {
    const holder = await join()
    await holder.askAll(['bounds-all-a', 'bounds-all-b'], namedAtStanding)
    for (const name of ['bounds-all-a', 'bounds-all-b'])
      expect(await boundsOf(name)).toEqual({ min: 5_000, max: 20_000, grace: 10_000 })
  })
})

describe('time', () => {
  test('is that of the database, as it passes inside a transaction', async () => {
    const session = await database.session()
    const holder = await join()
    const token = await holder.take('time', { minHoldMs: 1 })
    await session.query('begin')
    await session.query('select pg_sleep(0.002)')
    const other = (await join()).on(session)
    await holder.release('time', token)
    await session.query(
      `update fencepost.lease set available_at = now() + interval '1 ms' where name = 'time'`,
    )
    expect((await other.ask(['time']))[0]!.token).not.toBeNull()
    await session.query('rollback')
  })
})
