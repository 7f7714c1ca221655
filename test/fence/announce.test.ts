import { randomUUID } from 'node:crypto'
import type { Generated, Kysely } from 'kysely'
import { Client } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { announce } from '../../src/fence/announce.ts'
import {
  type Fence,
  type Fencepost,
  FencedRepository,
  type Lease,
  type Token,
  fencedTransaction,
} from '../../src/index.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { fenceOnlyDatabase, installed, takeOut, waitsOrAnswers } from '../support/fence-only.ts'

// Leases in one database, data in another that only keeps the highest token of each.

const leases = useDatabase()
const data = fenceOnlyDatabase()
const unguarded = fenceOnlyDatabase()

interface Tables {
  accounts: { id: number; status: string; fence_token: Generated<string> }
}

let fencepost: Fencepost
let db: Kysely<Tables>
let accounts: FencedRepository<Tables, 'accounts'>
let names = 0
let name: string

beforeAll(async () => {
  for (const database of [data, unguarded]) {
    await database.query(`
      create table accounts (id integer primary key, status text not null, fence_token bigint not null default 0);
      create table written (place bigserial primary key, token bigint not null)`)
  }
  fencepost = await leases.open()
  db = data.kysely<Tables>()
  accounts = new FencedRepository(db, 'accounts', { key: 'id' })
})

beforeEach(() => {
  names += 1
  name = `announce-${names}`
})

afterEach(() => data.query('truncate accounts, written'))

/** Two terms of one lease, the second of which is held. */
async function twoTerms(): Promise<{ older: Fence; newer: Lease }> {
  const first = await fencepost.acquire(name)
  await first.release()
  return { older: { term: first.term }, newer: await fencepost.acquire(name) }
}

/** A term as SQL sees it: one that no lease stands behind. */
const term = (token: number, holderId = randomUUID()): Fence => ({
  term: { lease: name, token: BigInt(token) as Token, holderId, sequence: 'default' },
})

const fence = (client: Client, { term: { lease, token, holderId } }: Fence) =>
  client.query('select fencepost.fence($1, $2, $3)', [lease, token.toString(), holderId])

async function begin(database: TestDatabase, fenced: Fence, level = 'read committed'): Promise<Client> {
  const client = await database.session()
  await client.query(`begin isolation level ${level}`)
  await fence(client, fenced)
  return client
}

const write = (client: Client, { term: { token } }: Fence) =>
  client.query('insert into written (token) values ($1)', [token.toString()])

const highest = (database: TestDatabase = data) =>
  database.query('select token from fencepost.announced_terms where lease = $1', [name])

/** The tokens of what was written, in the order of the writes. */
async function order(database: TestDatabase): Promise<number[]> {
  const rows = await database.query<{ token: string }>('select token from written order by place')
  return rows.map((row) => Number(row.token))
}

describe('a lease of another database', () => {
  test('announces itself with its first fenced transaction, and shuts the older term out', async () => {
    const { older, newer } = await twoTerms()
    await fencedTransaction(older, db, (tx) =>
      tx.insertInto('accounts').values({ id: 1, status: 'older' }).execute(),
    )
    // What this wall does not cover: nobody has told this database that the older term is over.
    expect(await highest()).toEqual([{ token: older.term.token.toString() }])
    await newer.transaction(db, (tx) => tx.updateTable('accounts').set({ status: 'newer' }).execute())
    await expect(
      fencedTransaction(older, db, (tx) => tx.updateTable('accounts').set({ status: 'late' }).execute()),
    ).rejects.toMatchObject({ code: 'STALE_TERM', by: 'lease', currentToken: newer.token })
    expect(await data.query('select status from accounts')).toEqual([{ status: 'newer' }])
  })

  test('writes through a repository, in one statement and in a transaction', async () => {
    const { older, newer } = await twoTerms()
    const fence_token = newer.token.toString()
    expect(await accounts.insert(newer, { id: 1, status: 'due' })).toMatchObject({ fence_token })
    expect(await accounts.update(newer, 1, { status: 'settled' })).toMatchObject({ status: 'settled' })
    await newer.transaction(db, (tx) => accounts.upsert(tx, { id: 2, status: 'new' }))
    expect(await accounts.updateWhere(newer, (eb) => eb('id', '>', 0), { status: 'seen' })).toBe(2)
    const refusals: ((fenced: Fence) => Promise<unknown>)[] = [
      (fenced) => accounts.insert(fenced, { id: 3, status: 'late' }),
      (fenced) => accounts.update(fenced, 1, { status: 'late' }),
      (fenced) => accounts.update(fenced, 9, { status: 'late' }),
      (fenced) => accounts.upsert(fenced, { id: 2, status: 'late' }),
      (fenced) => accounts.delete(fenced, 1),
      (fenced) => accounts.deleteWhere(fenced, (eb) => eb('id', '>', 0)),
      (fenced) => fencedTransaction(fenced, db, (tx) => accounts.delete(tx, 1)),
    ]
    for (const late of refusals)
      await expect(late(older)).rejects.toMatchObject({ code: 'STALE_TERM', currentToken: newer.token })
    expect(await accounts.delete(newer, 2)).toMatchObject({ id: 2 })
    expect(await data.query('select id, status from accounts')).toEqual([{ id: 1, status: 'seen' }])
  })

  test('is refused by the stamp of a row, where the leases were restored from an older copy', async () => {
    await data.query(`insert into accounts values (1, 'newer', 9007199254740993)`)
    const lease = await fencepost.acquire(name)
    await expect(accounts.update(lease, 1, { status: 'late' })).rejects.toMatchObject({
      code: 'STALE_TERM',
      by: 'row',
      currentToken: 9007199254740993n,
    })
  })

  test('fences a bare client', async () => {
    const { older, newer } = await twoTerms()
    const client = await data.session()
    await client.query('begin')
    await newer.fence(client)
    await client.query('commit; begin')
    await expect(fence(client, older)).rejects.toMatchObject({ code: 'FP001' })
    await client.query('rollback')
  })

  test('a holder with the same token and another id is stale: two databases have granted it', async () => {
    await announce(term(7), db)
    await expect(announce(term(7), db)).rejects.toMatchObject({ code: 'STALE_TERM', currentToken: 7n })
  })

  test('a paused holder is cut off inside its transaction, and what it does on waking is refused', async () => {
    const { older, newer } = await twoTerms()
    const paused = fencedTransaction(
      older,
      data.newPool(),
      async (client) => {
        await client.query('insert into written (token) values ($1)', [older.term.token.toString()])
        // The next term comes while it says nothing more: its announcement returns once the server has ended this session.
        await announce(newer, db)
        await client.query('insert into written (token) values ($1)', [older.term.token.toString()])
      },
      { idleTimeout: '100ms' },
    )
    await expect(paused).rejects.toMatchObject({ code: 'TRANSACTION_CUT_OFF' })
    await newer.transaction(data.newPool(), (client) =>
      client.query('insert into written (token) values ($1)', [newer.token.toString()]),
    )
    await expect(fencedTransaction(older, db, async () => {})).rejects.toMatchObject({ code: 'STALE_TERM' })
    expect(await order(data)).toEqual([Number(newer.token)])
  })

  test('without a bound of its own, a transaction may be silent for 30 s', async () => {
    const client = await begin(data, term(1))
    const { rows } = await client.query('show idle_in_transaction_session_timeout')
    expect(rows).toEqual([{ idle_in_transaction_session_timeout: '30s' }])
    await client.query('rollback')
  })
})

describe('protected tables', () => {
  const cases: [guard: string, fits: () => string, other: () => string][] = [
    ['one lease', () => name, () => `${name}-other`],
    ['a prefix', () => `${name}/7`, () => `${name}-other`],
    ['a template', () => `${name}/7`, () => `${name}/8`],
  ]
  test.each(cases)(
    'guarded by %s take what fits, from whatever client, and nothing else',
    async (kind, fits, other) => {
      const pattern = { 'one lease': name, 'a prefix': `${name}/*`, 'a template': `${name}/{id}` }[kind]!
      await data.query('create table guarded (id integer primary key, status text)')
      await data.query(`select fencepost.protect('guarded', $1)`, [pattern])
      const insert = `insert into guarded values (7, 'x') on conflict (id) do update set status = excluded.status`
      try {
        await expect(data.query(insert)).rejects.toMatchObject({ code: 'FP005' })
        const { older, newer } = await twoTermsOf(fits())
        // A program that never heard of fencepost has the fence in its session.
        const unaware = async ({ term: { token, holderId, lease } }: Fence): Promise<unknown> =>
          (await data.session({ options: `-c fencepost.fence=${token}:${holderId}:${lease}` })).query(insert)
        await unaware(older)
        await unaware(newer)
        await newer.transaction(db, async (tx) =>
          tx
            .updateTable('guarded' as never)
            .set({ status: 'y' } as never)
            .execute(),
        )
        await expect(unaware(older)).rejects.toMatchObject({ code: 'FP001' })
        const { newer: stranger } = await twoTermsOf(other())
        await expect(unaware(stranger)).rejects.toMatchObject({ code: 'FP006' })
        expect(await data.query('select status, fence_token from guarded')).toEqual([
          { status: 'y', fence_token: expect.any(String) as string },
        ])
      } finally {
        await data.query(`select fencepost.unprotect('guarded')`)
        await data.query('drop table guarded')
      }
    },
  )

  test('and protected schemas are changed under the lease only, also where nothing can be locked yet', async () => {
    await data.query(`create schema guarded; create table guarded.things (id integer)`)
    await data.query(`select fencepost.protect_schema('guarded', $1)`, [name])
    try {
      const { older, newer } = await twoTerms()
      const as = async ({ term: { token, holderId, lease } }: Fence): Promise<Client> =>
        data.session({ options: `-c fencepost.fence=${token}:${holderId}:${lease}` })
      const [former, current] = [await as(older), await as(newer)]
      await expect(data.query('create index on guarded.things (id)')).rejects.toMatchObject({ code: 'FP005' })
      await former.query('create index by_id on guarded.things (id)')
      // The newer term is not known here yet.
      await current.query('drop index concurrently guarded.by_id')
      await current.query('create index by_id on guarded.things (id)')
      for (const statement of ['drop index concurrently guarded.by_id', 'drop table guarded.things'])
        await expect(former.query(statement)).rejects.toMatchObject({ code: 'FP001' })
      await current.query('drop index guarded.by_id')
    } finally {
      await data.query(`select fencepost.unprotect_schema('guarded')`)
      await data.query('drop schema guarded cascade')
    }
  })

  async function twoTermsOf(lease: string): Promise<{ older: Fence; newer: Lease }> {
    const first = await fencepost.acquire(lease)
    await first.release()
    return { older: { term: first.term }, newer: await fencepost.acquire(lease) }
  }
})

describe('announce', () => {
  test.each(['kysely', 'pool'] as const)(
    'through a %s is committed on its own, and can be repeated',
    async (kind) => {
      const source = kind === 'kysely' ? db : data.pool
      const { older, newer } = await twoTerms()
      await announce(newer, source)
      await announce(newer, source)
      expect(await highest()).toEqual([{ token: newer.token.toString() }])
      await expect(announce(older, source)).rejects.toMatchObject({
        code: 'STALE_TERM',
        token: older.term.token,
        currentToken: newer.token,
      })
      expect(await highest()).toEqual([{ token: newer.token.toString() }])
    },
  )

  test('survives what is rolled back later; an announcement made inside a transaction goes with it', async () => {
    const { older, newer } = await twoTerms()
    const failing = (): Promise<never> => newer.transaction(db, () => Promise.reject(new Error('of my own')))
    await expect(failing()).rejects.toThrow('of my own')
    expect(await highest()).toEqual([])
    await fencedTransaction(older, db, async () => {})
    await announce(newer, db)
    await expect(failing()).rejects.toThrow('of my own')
    await expect(fencedTransaction(older, db, async () => {})).rejects.toMatchObject({ code: 'STALE_TERM' })
  })

  test.each(['kysely', 'pool'] as const)(
    'gives up on older transactions after its wait, through a %s',
    async (kind) => {
      const open = await begin(data, term(1))
      await expect(announce(term(2), kind === 'kysely' ? db : data.pool, { wait: 0 })).rejects.toMatchObject({
        code: 'NOT_ANNOUNCED',
        sqlState: '55P03',
      })
      await open.query('rollback')
    },
  )

  test('is durable where the session is not', async () => {
    const session = await data.session()
    await session.query('set synchronous_commit = off; begin')
    await session.query('select fencepost.announce($1, 1, $2)', [name, randomUUID()])
    expect((await session.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'on' }])
    await session.query('rollback')
  })

  test.each(['repeatable read', 'serializable'])('works in a session that begins at %s', async (level) => {
    const pool = data.newPool({ options: `-c default_transaction_isolation=${level.replace(' ', '\\ ')}` })
    const racers = Array.from({ length: 8 }, (_, index) => announce(term(index + 1), pool))
    for (const { status, reason } of (await Promise.allSettled(racers)) as {
      status: string
      reason?: unknown
    }[])
      if (status === 'rejected') expect(reason).toMatchObject({ code: 'STALE_TERM' })
    expect(await highest()).toEqual([{ token: '8' }])
  })

  test('in a database that holds the leases verifies the term, and keeps nothing', async () => {
    const { older, newer } = await twoTerms()
    await announce(newer, leases.pool)
    await expect(announce(older, leases.pool)).rejects.toMatchObject({ code: 'STALE_TERM' })
    await expect(announce(term(99_999), leases.pool)).rejects.toMatchObject({ code: 'FOREIGN_LEASE' })
    await leases.query(
      `update fencepost.holder set expires_at = clock_timestamp() - interval '1 ms' where id = $1`,
      [newer.term.holderId],
    )
    await expect(announce({ term: newer.term }, leases.pool)).rejects.toMatchObject({
      code: 'HOLDER_EXPIRED',
    })
  })

  test('says what is wrong with what it was given, before anything is sent', async () => {
    const lease = term(1)
    for (const wrong of [undefined, null, {}, new Client(), 'postgres://'])
      await expect(announce(lease, wrong as never)).rejects.toMatchObject({ argument: 'db' })
    for (const wait of [-1, NaN, '5', '2d'])
      await expect(announce(lease, db, { wait: wait as never })).rejects.toMatchObject({ argument: 'wait' })
    await db.transaction().execute(async (tx) => {
      await expect(announce(lease, tx as never)).rejects.toMatchObject({ argument: 'db' })
    })
    const held = await fencepost.acquire(name)
    await held.release()
    await expect(announce(held, db)).rejects.toMatchObject({ code: 'LEASE_RELEASED' })
    expect(await highest()).toEqual([])
  })

  test('names a database that cannot be asked', async () => {
    const ended = data.newPool()
    await ended.end()
    await expect(announce(term(1), ended)).rejects.toMatchObject({ code: 'POOL_ENDED' })
    const nowhere = data.newPool({ connectionString: 'postgres://nobody@127.0.0.1:1/none' })
    await expect(announce(term(1), nowhere)).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    const empty = data.newPool({ connectionString: new URL('/postgres', data.url).href })
    await expect(announce(term(1), empty)).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
  })

  test.each(['kysely', 'pool'] as const)(
    'does not know what became of it when the answer is lost, through a %s',
    async (kind) => {
      const open = await begin(data, term(1))
      const announcing = announce(term(2), kind === 'kysely' ? db : data.pool)
      announcing.catch(() => {})
      await waitsOrAnswers(data, announcing)
      await data.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      )
      await expect(announcing).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      await open.query('rollback')
      await announce(term(2), kind === 'kysely' ? db : data.pool)
    },
  )
})

describe('transactions of one term', () => {
  test('do not wait for each other once it has been announced', async () => {
    const lease = term(1)
    await announce(lease, db)
    const open = await Promise.all(Array.from({ length: 20 }, () => begin(data, lease)))
    await expect(announce(lease, db, { wait: 0 })).resolves.toBeUndefined()
    await Promise.all(open.map((client) => client.query('commit')))
  })

  test('that came while it announced itself go on side by side when it has', async () => {
    const lease = term(1)
    const first = await begin(data, lease)
    const others = Array.from({ length: 5 }, () => begin(data, lease))
    await waitsOrAnswers(data, Promise.all(others), 5)
    await first.query('commit')
    // None of them has ended when all of them have begun.
    const open = await Promise.all(others)
    expect(open).toHaveLength(5)
    await Promise.all(open.map((client) => client.query('rollback')))
  })

  test.each(['repeatable read', 'serializable'])(
    'above read committed (%s) need it to be announced before they begin',
    async (level) => {
      const [older, newer] = [term(1), term(2)]
      await announce(older, db)
      const client = await data.session()
      for (const statement of ['fence', 'announce, then fence']) {
        await client.query(`begin isolation level ${level}`)
        if (statement !== 'fence')
          await client.query('select fencepost.announce($1, 2, $2)', [name, newer.term.holderId])
        await expect(fence(client, newer)).rejects.toMatchObject({ code: 'FP007' })
        await client.query('rollback')
      }
      const isolationLevel = level as 'serializable'
      await expect(fencedTransaction(newer, db, async () => {}, { isolationLevel })).rejects.toMatchObject({
        sqlState: 'FP007',
        message: expect.stringContaining('announced') as string,
      })
      await announce(newer, db)
      await fencedTransaction(newer, db, async () => {}, { isolationLevel })
      const open = await begin(data, newer, level)
      await write(open, newer)
      await open.query('commit')
      await client.query(`begin isolation level ${level}`)
      await expect(fence(client, older)).rejects.toMatchObject({ code: 'FP001' })
      await client.query('rollback')
    },
  )
})

test('two terms that announce themselves for the first time at once: the newer one stays', async () => {
  for (const [first, second] of [
    [term(1), term(2)],
    [term(2), term(1)],
  ] as const) {
    await data.query('delete from fencepost.highest_token where lease = $1', [name])
    const open = await begin(data, first)
    const later = begin(data, second)
    later.catch(() => {})
    await waitsOrAnswers(data, later)
    await write(open, first)
    await open.query('commit')
    if (second.term.token < first.term.token) {
      await expect(later).rejects.toMatchObject({ code: 'FP001' })
    } else {
      await (await later).query('commit')
    }
    expect(await highest()).toEqual([{ token: '2' }])
  }
})

// Each guard against the attack it is there for, and the same attack with the guard taken out.

const forShare = /\n\s*for share of h;/
const queue = /perform pg_catalog\.pg_advisory_xact_lock_shared\([^;]*;/

/** Runs the attack on the functions as they are, then without the guards. */
function guard(
  what: string,
  guards: [functionName: string, text: RegExp, instead: string][],
  attack: (database: TestDatabase) => Promise<boolean>,
): void {
  // oxlint-disable-next-line vitest/valid-title -- The title names the guard.
  describe(what, () => {
    beforeEach(async () => {
      for (const database of [data, unguarded])
        await database.query('truncate written, fencepost.highest_token')
    })
    test('holds', async () => {
      expect(await attack(data)).toBe(false)
    })
    test('is what holds: without it the attack succeeds', async () => {
      const before = await Promise.all(guards.map(([functionName]) => installed(unguarded, functionName)))
      for (const [functionName, text, instead] of guards)
        await takeOut(unguarded, functionName, text, instead)
      try {
        expect(await attack(unguarded)).toBe(true)
      } finally {
        for (const source of before) await unguarded.query(source)
      }
    })
  })
}

guard(
  'the lock that a fenced transaction holds, against a newer term in the middle of it',
  [
    ['hold_term', forShare, '\n;'],
    ['hold_term', queue, ''],
  ],
  async (database) => {
    const [older, newer] = [term(1), term(2)]
    await announce(older, database.pool)
    const first = await begin(database, older)
    const next = begin(database, newer).then(async (client) => {
      await write(client, newer)
      await client.query('commit')
    })
    await waitsOrAnswers(database, next)
    await write(first, older)
    await first.query('commit')
    await next
    return (await order(database)).join() === '2,1'
  },
)

guard('the lock on the row, against an old snapshot', [['hold_term', forShare, '\n;']], async (database) => {
  const [older, newer] = [term(1), term(2)]
  await announce(older, database.pool)
  const client = await database.session()
  await client.query('begin isolation level repeatable read')
  await client.query('select from written')
  await announce(newer, database.pool)
  const isAccepted = await fence(client, older).then(
    () => true,
    (error: { code: string }) => {
      expect(error.code).toBe('40001')
      return false
    },
  )
  await client.query('rollback')
  return isAccepted
})

guard(
  'the queue, against transactions of an older term that overlap for ever',
  [['hold_term', queue, '']],
  async (database) => {
    const [older, newer] = [term(1), term(2)]
    await announce(older, database.pool)
    const first = await begin(database, older)
    const announcing = announce(newer, database.pool)
    await waitsOrAnswers(database, announcing)
    // Before the first one ends, the next begins.
    const second = begin(database, older)
    second.catch(() => {})
    await waitsOrAnswers(database, second, 2)
    const [row] = await database.query<{ waiting: number }>(
      `select count(*)::integer as waiting from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`,
    )
    const hasBegun = row!.waiting < 2
    await first.query('commit')
    if (hasBegun) await (await second).query('commit')
    else await expect(second).rejects.toMatchObject({ code: 'FP001' })
    await announcing
    return hasBegun
  },
)

guard(
  'the comparison of tokens under the lock, against an older term that announces itself late',
  [['hold_term', /where known\.token < excluded\.token/, '']],
  async (database) => {
    const [older, newer] = [term(2), term(3)]
    const first = await begin(database, newer)
    const late = announce(older, database.pool).then(
      () => true,
      () => false,
    )
    await waitsOrAnswers(database, late)
    await first.query('commit')
    return late
  },
)

guard(
  'the comparison of the holder, against equal tokens of two databases that hold leases',
  [['hold_term', /and h\.holder_id = p_holder/, '']],
  async (database) => {
    await announce(term(1), database.pool)
    return announce(term(1), database.pool).then(
      () => true,
      () => false,
    )
  },
)

guard(
  'the undoing of an announcement that came second, against a transaction that holds up its own term',
  [['hold_term', /raise exception 'announced meanwhile'[^;]*;/, 'null;']],
  async (database) => {
    const lease = term(1)
    const first = await begin(database, lease)
    const second = begin(database, lease)
    await waitsOrAnswers(database, second)
    await first.query('commit')
    const open = await second
    const isHeldUp = await announce(lease, database.pool, { wait: 0 }).then(
      () => false,
      () => true,
    )
    await open.query('commit')
    return isHeldUp
  },
)

guard(
  'the refusal to announce above read committed, against a decision by what an older term had not written yet',
  [['hold_term', /if not p_is_held\s+and current_setting/, 'if false and current_setting']],
  async (database) => {
    const [older, newer] = [term(1), term(2)]
    await announce(older, database.pool)
    const first = await begin(database, older)
    await write(first, older)
    const client = await database.session()
    await client.query('begin isolation level repeatable read')
    const beginning = fence(client, newer)
    beginning.catch(() => {})
    await waitsOrAnswers(database, beginning)
    await first.query('commit')
    const decides = await beginning.then(
      async () => (await client.query('select from written')).rowCount === 0,
      () => false,
    )
    await client.query('rollback')
    return decides
  },
)
