import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  FencedRepository,
  Fencepost,
  type Lease,
  LeaseLostError,
  ProtectedError,
  announce,
  fencedTransaction,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()

let count = 0
function uniqueNames(length: number): string[] {
  count += 1
  return Array.from({ length }, (_, index) => `${count}/${index}`)
}

const holders = (names: readonly string[]) =>
  database.query<{ name: string; is_free: boolean }>(
    `select l.name, l.holder_id is null as is_free from fencepost.lease l where l.name = any ($1) order by l.name`,
    [names],
  )

describe('acquireAll', () => {
  test('grants all of them, with a token each, in the order of the names', async () => {
    const fencepost = await database.open()
    const names = uniqueNames(3).toReversed()
    await using leases = await fencepost.acquireAll(names)
    expect([...leases].map((lease) => lease.name)).toEqual(names)
    expect(new Set([...leases].map((lease) => lease.token)).size).toBe(3)
    expect(leases.isHeld).toBe(true)
    expect(leases.expiresInMs).toBeGreaterThan(20_000)
    expect(leases.get(names[1]!).isHeld).toBe(true)
    expect(() => leases.get('another')).toThrow(/not one of these leases/)
    const other = await database.open()
    for (const name of names) expect(await other.tryAcquire(name)).toBeNull()
    expect(await leases.release()).toBe('released')
    expect(leases.isHeld).toBe(false)
    await using again = await other.acquireAll(names, { wait: 0 })
    expect(again.isHeld).toBe(true)
  })

  test('grants none when one is held, writes nothing, and says who stands in the way', async () => {
    const [fencepost, other] = [await database.open(), await database.open({ label: 'the other one' })]
    const names = uniqueNames(3)
    await using held = await other.acquire(names[1]!)
    expect(held.isHeld).toBe(true)
    expect(await fencepost.tryAcquireAll(names)).toBeNull()
    await expect(fencepost.acquireAll(names, { wait: '20ms' })).rejects.toMatchObject({
      code: 'NOT_ACQUIRED',
      lease: names[1],
      contender: { label: 'the other one' },
    })
    expect(await holders(names)).toEqual([{ name: names[1], is_free: false }])
    const session = await database.session()
    const holder = await SqlHolder.join(session)
    await session.query('begin')
    const { rows } = await session.query('select * from fencepost.acquire_all($1, $2)', [names, holder.id])
    expect(rows).toMatchObject([{ name: names[1], token: null, reason: 'held', label: 'the other one' }])
    const written = await session.query('select pg_current_xact_id_if_assigned() as id')
    expect(written.rows).toEqual([{ id: null }])
    await session.query('rollback')
    for (const name of [names[0]!, names[2]!]) {
      await using free = await other.acquire(name, { wait: 0 })
      expect(free.isHeld).toBe(true)
    }
  })

  test('takes back what it was granted when one turns out to be out of reach only then', async () => {
    const names = uniqueNames(3)
    const first = await SqlHolder.join(database.pool)
    for (const name of names) await first.release(name, await first.take(name))
    // Somebody is working on one of the rows, which looks free.
    const locking = await database.session()
    await locking.query('begin')
    await locking.query('select from fencepost.lease where name = $1 for update', [names[1]])
    const holder = await SqlHolder.join(database.pool)
    const ask = () =>
      database.query<{ token: string | null }>('select * from fencepost.acquire_all($1, $2)', [
        names,
        holder.id,
      ])
    expect(await ask()).toMatchObject([{ name: names[1], token: null, reason: 'contended' }])
    expect((await holders(names)).every((row) => row.is_free)).toBe(true)
    await locking.query('rollback')
    expect((await ask()).every((row) => row.token !== null)).toBe(true)
  })

  test('waits until all of them are free, and holds none of them meanwhile', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const names = uniqueNames(2)
    const held = await other.acquire(names[0]!)
    const waiting = fencepost.acquireAll(names, { wait: '20s' })
    await using beside = await other.acquire(names[1]!, { wait: 0 })
    await beside.release()
    await held.release()
    await using leases = await waiting
    expect(leases.isHeld).toBe(true)
  })

  test('in any order of the names neither deadlocks nor overlaps, in one process or in several', async () => {
    const fenceposts = [await database.open(), await database.open(), await database.open()]
    const names = uniqueNames(3)
    const inside = new Map<string, number>()
    let overlaps = 0
    let turns = 0
    const work = async (fencepost: Fencepost, order: readonly string[]): Promise<void> => {
      for (let round = 0; round < 8; round += 1) {
        await fencepost.withLeases(order, async (leases) => {
          for (const { name } of leases) {
            inside.set(name, (inside.get(name) ?? 0) + 1)
            if (inside.get(name)! > 1) overlaps += 1
          }
          await database.query('select 1')
          for (const { name } of leases) inside.set(name, inside.get(name)! - 1)
          turns += 1
        })
      }
    }
    const [a, b, c] = names as [string, string, string]
    const orders = [
      [a, b],
      [b, a],
      [b, c],
      [c, a],
      [c, b, a],
    ]
    await Promise.all(fenceposts.flatMap((fencepost) => orders.map((order) => work(fencepost, order))))
    expect({ turns, overlaps }).toEqual({ turns: 3 * 5 * 8, overlaps: 0 })
  })

  test('lets those pass who stand in line for one of them, and comes after them', async () => {
    const fencepost = await database.open()
    const [a, b] = uniqueNames(2) as [string, string]
    const order: string[] = []
    const first = await fencepost.acquire(b)
    const all = fencepost.acquireAll([a, b]).then((leases) => (order.push('all'), leases))
    const last = fencepost.acquire(b).then((lease) => (order.push('last'), lease))
    expect(await fencepost.tryAcquireAll([a, b])).toBeNull()
    await first.release()
    await (await last).release()
    await (await all).release()
    expect(order).toEqual(['last', 'all'])
  })

  test('keeps no other lease from callers of its process while it waits for one that is held there', async () => {
    const fencepost = await database.open()
    const [a, b] = uniqueNames(2) as [string, string]
    const held = await fencepost.acquire(b)
    const waiting = fencepost.acquireAll([a, b])
    // Whoever holds b may want a next: both would wait for ever.
    await using next = await fencepost.acquire(a, { wait: '10s' })
    await next.release()
    await held.release()
    await using leases = await waiting
    expect(leases.isHeld).toBe(true)
  })

  test('keeps no other lease from callers of its process while it waits for one that is held elsewhere', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const [a, b] = uniqueNames(2) as [string, string]
    const held = await other.acquire(b)
    const waiting = fencepost.acquireAll([a, b])
    await expect
      .poll(async () => {
        await using free = await fencepost.tryAcquire(a)
        return free?.isHeld
      })
      .toBe(true)
    await held.release()
    await using leases = await waiting
    expect(leases.isHeld).toBe(true)
  })

  test('answers yes or no while one of them is taken and given back all the time', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const names = uniqueNames(3)
    const done = new AbortController()
    const toggling = (async () => {
      while (!done.signal.aborted) {
        const lease = await other.tryAcquire(names[1]!)
        await lease?.release()
      }
    })()
    let granted = 0
    for (let tries = 0; tries < 400; tries += 1) {
      const leases = await fencepost.tryAcquireAll(names)
      if (leases === null) continue
      granted += 1
      await leases.release()
    }
    done.abort()
    await toggling
    expect(granted).toBeGreaterThan(0)
  })

  test('that is aborted leaves nothing behind', async () => {
    const [fencepost, other] = [await database.open(), await database.open()]
    const names = uniqueNames(2)
    await using held = await other.acquire(names[1]!)
    expect(held.isHeld).toBe(true)
    const reason = new Error('enough')
    const controller = new AbortController()
    const waiting = fencepost.acquireAll(names, { signal: controller.signal })
    // The answer to this comes after the one to that.
    await (await fencepost.acquire(names[0]!)).release()
    controller.abort(reason)
    await expect(waiting).rejects.toBe(reason)
    await expect.poll(async () => (await fencepost.tryAcquire(names[0]!))?.isHeld).toBe(true)
  })

  test('whose answer is lost leaves no lease behind', async () => {
    const proxy = await TcpProxy.start(database.url)
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    const names = uniqueNames(2)
    let swallowed = 0
    proxy.onReply((_, sent) => (sent.includes('acquire_all') && (swallowed += 1) === 1 ? 'swallow' : 'pass'))
    await expect(fencepost.tryAcquireAll(names, { ttl: '60s' })).rejects.toMatchObject({
      code: 'OUTCOME_UNKNOWN',
    })
    expect(swallowed).toBeGreaterThan(0)
    const other = await database.open()
    await using leases = await other.acquireAll(names, { wait: '10s' })
    expect(leases.isHeld).toBe(true)
    await proxy.stop()
  })

  test.each<[string, unknown, string]>([
    ['no names', [], 'names'],
    ['a name instead of a list', 'name', 'names'],
    ['the same name twice', ['a', 'b', 'a'], 'names'],
    ['an empty name', ['a', ''], 'the name of a lease'],
    ['more names than one call takes', Array.from({ length: 1001 }, String), 'names'],
  ])('refuses %s before any SQL', async (_, names, argument) => {
    const fencepost = await database.open()
    for (const call of [
      () => fencepost.acquireAll(names as string[]),
      () => fencepost.tryAcquireAll(names as string[]),
      () => fencepost.withLeases(names as string[], async () => {}),
    ]) {
      await expect(call()).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', argument })
    }
  })

  test('of leases of another sequence is refused by name', async () => {
    const fencepost = await database.open()
    const names = uniqueNames(2)
    await using own = await fencepost.acquire(names[0]!, { sequence: 'its own' })
    await own.release()
    await expect(fencepost.acquireAll(names)).rejects.toMatchObject({
      code: 'SEQUENCE_MISMATCH',
      lease: names[0],
    })
  })
})

describe('withLeases', () => {
  test('gives them back when the work has settled, whatever came of it', async () => {
    const fencepost = await database.open()
    const names = uniqueNames(2)
    let seen: Lease[] = []
    expect(
      await fencepost.withLeases(names, async (leases) => {
        seen = [...leases]
        return leases.isHeld
      }),
    ).toBe(true)
    expect(seen.map((lease) => lease.state)).toEqual(['released', 'released'])
    const failure = new Error('the work')
    await expect(fencepost.withLeases(names, { wait: 0 }, () => Promise.reject(failure))).rejects.toBe(
      failure,
    )
    expect((await holders(names)).every((row) => row.is_free)).toBe(true)
  })

  test('of which one was taken away meanwhile says that it was lost', async () => {
    const fencepost = await database.open()
    const names = uniqueNames(2)
    const work = fencepost.withLeases(names, async () => {
      await database.query('update fencepost.lease set token = token + 1000 where name = $1', [names[1]])
    })
    await expect(work).rejects.toBeInstanceOf(LeaseLostError)
    await expect(work).rejects.toMatchObject({ lease: names[1] })
  })

  test('tells its work as soon as they are lost', async () => {
    const fencepost = await database.open()
    await fencepost
      .withLeases(uniqueNames(2), { ttl: '300ms' }, async (leases) => {
        await database.query('select fencepost.end_holder($1)', [leases.term.holderId])
        await expect.poll(() => leases.signal.aborted, { timeout: 10_000 }).toBe(true)
        expect(() => leases.assertHeld()).toThrow(LeaseLostError)
      })
      .then(
        () => expect.unreachable('it was lost'),
        (error: unknown) => expect(error).toBeInstanceOf(LeaseLostError),
      )
  })
})

describe('a transaction under several leases', () => {
  interface Tables {
    left_side: { id: number; amount: number; fence_token: string }
    right_side: { id: number; amount: number; fence_token: string }
  }
  class Left extends FencedRepository<Tables, 'left_side'> {}
  class Right extends FencedRepository<Tables, 'right_side'> {}
  const db = () => database.kysely<Tables>()
  const names = ['right', 'left'] as const

  beforeAll(async () => {
    for (const side of ['left', 'right']) {
      await database.query(
        `create table ${side}_side (id integer primary key, amount integer not null, fence_token bigint not null default 0)`,
      )
      await Fencepost.protect(`${side}_side`, { connectionString: database.url, lease: side })
    }
  })
  afterAll(async () => {
    for (const side of ['left', 'right'])
      await Fencepost.unprotect(`${side}_side`, { connectionString: database.url })
  })
  beforeEach(async () => {
    await database.query(
      `set session_replication_role = replica; truncate left_side, right_side;
       insert into left_side values (1, 10, 0); insert into right_side values (1, 10, 0); reset session_replication_role`,
    )
  })

  test('writes what each of them guards, each stamped with the token of its own', async () => {
    const fencepost = await database.open()
    await using leases = await fencepost.acquireAll(names)
    const [kysely, pool] = [db(), database.newPool()]
    const left = new Left(kysely, 'left_side', { key: 'id', lease: 'left' })
    const right = new Right(kysely, 'right_side', { key: 'id', lease: 'rig*' })
    await leases.transaction(kysely, async (tx) => {
      await left.update(tx, 1, { amount: 1 })
      await right.update(tx, 1, { amount: 2 })
      await left.insert(tx, { id: 2, amount: 3 })
    })
    await leases.transaction(pool, async (client) => {
      await client.query('insert into left_side values (3, 3)')
      await client.query('insert into right_side values (3, 3)')
    })
    // One statement by itself is fenced by the lease that guards the table.
    expect(await right.update(leases, 1, { amount: 4 })).toMatchObject({ amount: 4 })
    const session = await database.session()
    await session.query('begin')
    await leases.fence(session)
    await session.query('update left_side set amount = 5, fence_token = default where id = 3')
    await session.query('commit')
    const stamps = (side: string) => database.query(`select id, fence_token from ${side}_side order by id`)
    const token = (name: string) => leases.get(name).token.toString()
    expect(await stamps('left')).toEqual([1, 2, 3].map((id) => ({ id, fence_token: token('left') })))
    expect(await stamps('right')).toEqual([1, 3].map((id) => ({ id, fence_token: token('right') })))
  })

  test.each(names)('is refused when the term of %s is stale, by the name of that lease', async (stale) => {
    const fencepost = await database.open()
    await using leases = await fencepost.acquireAll(names)
    await database.query('update fencepost.lease set token = token + 1 where name = $1', [stale])
    const bare = { term: leases.term, terms: leases.terms }
    for (const source of [db(), database.newPool()]) {
      await expect(fencedTransaction(bare, source as never, async () => {})).rejects.toMatchObject({
        code: 'STALE_TERM',
        lease: stale,
        token: leases.get(stale).token,
      })
    }
    const session = await database.session()
    await session.query('begin')
    await expect(leases.fence(session)).rejects.toMatchObject({ code: 'STALE_TERM', lease: stale })
    await session.query('rollback')
    await database.query('update fencepost.lease set token = token - 1 where name = $1', [stale])
  })

  test.each(names)(
    'is refused for one statement of a repository as well when the term of %s is stale',
    async (stale) => {
      const fencepost = await database.open()
      await using leases = await fencepost.acquireAll(names)
      const left = new Left(db(), 'left_side', { key: 'id', lease: 'left' })
      expect(await left.update(leases, 1, { amount: 11 })).toMatchObject({ amount: 11 })
      await database.query('update fencepost.lease set token = token + 1 where name = $1', [stale])
      const bare = { term: leases.term, terms: leases.terms }
      const refusal = { code: 'STALE_TERM', lease: stale, token: leases.get(stale).token }
      await expect(left.update(bare, 1, { amount: 12 })).rejects.toMatchObject(refusal)
      await expect(announce(bare, database.newPool())).rejects.toMatchObject(refusal)
      await database.query('update fencepost.lease set token = token - 1 where name = $1', [stale])
      await announce(bare, database.newPool())
      expect(await database.query('select amount from left_side')).toEqual([{ amount: 11 }])
    },
  )

  test('needs a repository to say which of them guards its table', async () => {
    const fencepost = await database.open()
    await using leases = await fencepost.acquireAll(names)
    const kysely = db()
    const left = new Left(kysely, 'left_side', { key: 'id' })
    const refusal = { code: 'INVALID_ARGUMENT', argument: 'fence' }
    await expect(left.update(leases, 1, { amount: 0 })).rejects.toMatchObject(refusal)
    await expect(leases.transaction(kysely, (tx) => left.update(tx, 1, { amount: 0 }))).rejects.toMatchObject(
      refusal,
    )
    expect(await left.update(leases.get('left'), 1, { amount: 1 })).toMatchObject({ amount: 1 })
  })

  test('of leases that do not guard the table is refused by the repository, and by the table', async () => {
    const fencepost = await database.open()
    await using leases = await fencepost.acquireAll(['one', 'two'])
    const kysely = db()
    const left = new Left(kysely, 'left_side', { key: 'id', lease: 'left' })
    const refusal = { code: 'WRONG_LEASE', guard: 'left' }
    await expect(left.update(leases, 1, { amount: 0 })).rejects.toMatchObject(refusal)
    await expect(
      leases.transaction(kysely, (tx) => left.update(tx, 1, { amount: 0 })),
    ).rejects.toBeInstanceOf(ProtectedError)
    await expect(
      leases.transaction(kysely, (tx) => tx.updateTable('left_side').set({ amount: 0 }).execute()),
    ).rejects.toMatchObject(refusal)
    expect(await database.query('select amount from left_side')).toEqual([{ amount: 10 }])
  })

  test('keeps the next term of each of them waiting until it ends', async () => {
    const fencepost = await database.open()
    const leases = await fencepost.acquireAll(names)
    const other = await database.open()
    await leases
      .transaction(database.newPool(), async () => {
        await database.query('select fencepost.end_holder($1)', [leases.term.holderId])
        for (const name of names) expect(await other.tryAcquire(name)).toBeNull()
      })
      .catch((error: unknown) => expect(error).toBeInstanceOf(Error))
    await using next = await other.acquireAll(names, { wait: '10s' })
    expect(next.isHeld).toBe(true)
  })
})
