import type { Client } from 'pg'
import { beforeAll, describe, expect, test } from 'vitest'
import { applyControl } from '../../torture/controls/apply-control.ts'
import { type Control, exchange } from '../../torture/controls/control.ts'
import { controlNamed, controls } from '../../torture/controls/controls.ts'
import { createTortureTables } from '../../torture/decode/tables.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { OwnServer } from '../support/own-server.ts'
import { SqlHolder, waitsOrAnswers } from '../support/sql-holder.ts'

const sound = useDatabase()

function weakenedBy(control: string): TestDatabase {
  const database = useDatabase()
  beforeAll(async () => {
    await createTables(database)
    await applyControl(await database.session(), control)
  })
  return database
}

async function createTables(database: TestDatabase): Promise<void> {
  await createTortureTables(await database.session())
}

/** What came of a statement: its SQLSTATE, where it was refused. */
async function outcomeOf(statement: Promise<unknown>): Promise<string> {
  return statement.then(
    () => 'done',
    (error: { code: string }) => error.code,
  )
}

/** Both ways to ask and to give back, for one lease and for two. */
const ways = [
  { acquire: 'acquire', release: 'release', count: 1 },
  { acquire: 'acquire', release: 'release', count: 2 },
  { acquire: 'acquire_batch', release: 'release_batch', count: 1 },
  { acquire: 'acquire_batch', release: 'release_batch', count: 2 },
] as const
type Way = (typeof ways)[number]

let lastName = 0
function freshNames(count: number): string[] {
  return Array.from({ length: count }, () => `lease ${(lastName += 1)}`)
}

/** One call, and the tokens of what was granted, by name. */
async function grantedBy(
  session: Client,
  { acquire, count }: Way,
  names: readonly string[],
  { id }: SqlHolder,
  attempt = 1,
): Promise<Map<string, bigint>> {
  const { rows } = await session.query<{ name: string | null; token: string | null }>(
    `select name, token from fencepost.${acquire}($1, $2, $3)`,
    [names, id, attempt],
  )
  // An answer for all of them has no name.
  if (rows.length === 1 && rows[0]!.name === null) {
    const first = BigInt(rows[0]!.token!)
    return new Map(names.map((name, place) => [name, first + BigInt(place)]))
  }
  expect(rows).toHaveLength(count)
  return new Map(rows.flatMap(({ name, token }) => (token === null ? [] : [[name!, BigInt(token)]])))
}

async function giveBack(
  session: Client,
  { release }: Way,
  granted: ReadonlyMap<string, bigint>,
  { id }: SqlHolder,
): Promise<void> {
  await session.query(`select from fencepost.${release}($1, $2, $3)`, [
    [...granted.keys()],
    [...granted.values()].map(String),
    id,
  ])
}

describe('a fence that does not lock', () => {
  const predicate = weakenedBy('token-predicate')
  const unlocked = weakenedBy('fence-without-lock')
  beforeAll(() => createTables(sound))

  interface Across {
    /** Why the newer term was not granted; undefined when it was. */
    readonly refusal: string | undefined
    /** What came of the older term's write and of its commit after that. */
    readonly write: string
    readonly commit: string
    /** What comes of another transaction under the older term. */
    readonly nextFence: string
    readonly nextWrite: string | undefined
  }

  /** A holder has a fenced transaction open, is silent for a TTL, and goes on when somebody else has asked for the lease. */
  async function writeAcrossTakeOver(
    database: TestDatabase,
    when: 'before the take-over' | 'after it',
    isProtected: boolean,
  ): Promise<Across> {
    const [name] = freshNames(1)
    const former = await SqlHolder.join(database.pool)
    const next = await SqlHolder.join(database.pool)
    const token = await former.take(name!)
    const session = await database.session()
    const write = (): Promise<string> =>
      outcomeOf(
        session.query(
          'insert into torture.write (lease, token, row, client, op) values ($1, $2, $1, $1, 1)',
          [name, token.toString()],
        ),
      )
    if (isProtected) await database.query(`select fencepost.protect('torture.write', $1)`, [name])
    await session.query('begin')
    await former.fence(session, name!, token)
    let written = when === 'before the take-over' ? await write() : ''
    await former.expire()
    const [takeOver] = await next.acquire(name!)
    if (when === 'after it') written = await write()
    const commit = await outcomeOf(session.query('commit'))
    await session.query('begin')
    const nextFence = await outcomeOf(former.fence(session, name!, token))
    const nextWrite = nextFence === 'done' ? await write() : undefined
    await session.query('rollback')
    if (isProtected) await database.query(`select fencepost.unprotect('torture.write')`)
    const refusal = takeOver!.reason ?? undefined
    return { refusal, write: written, commit, nextFence, nextWrite }
  }

  const done = { write: 'done', commit: 'done' }

  test.each([true, false])(
    'lets an older term commit after a newer one was granted (protected: %s)',
    async (isProtected) => {
      expect(await writeAcrossTakeOver(sound, 'before the take-over', isProtected)).toEqual({
        ...done,
        refusal: 'draining',
        nextFence: 'FP002',
      })
      expect(await writeAcrossTakeOver(unlocked, 'before the take-over', isProtected)).toEqual({
        ...done,
        nextFence: 'FP001',
      })
      expect(await writeAcrossTakeOver(predicate, 'before the take-over', isProtected)).toEqual({
        ...done,
        nextFence: 'done',
        nextWrite: 'FP001',
      })
    },
  )

  test('keeps a write out that begins later, only where the write itself compares', async () => {
    expect(await writeAcrossTakeOver(sound, 'after it', false)).toMatchObject({
      ...done,
      refusal: 'draining',
    })
    expect(await writeAcrossTakeOver(unlocked, 'after it', false)).toMatchObject({
      ...done,
      refusal: undefined,
    })
    expect(await writeAcrossTakeOver(predicate, 'after it', false)).toMatchObject({
      write: 'FP001',
      refusal: undefined,
    })
  })
})

describe('a fence that compares the token alone', () => {
  const weak = weakenedBy('token-only-fence')

  /** An expired holder has a transaction open, and begins another before that one ends. */
  async function overlap(database: TestDatabase): Promise<Record<string, unknown>> {
    const [name] = freshNames(1)
    const former = await SqlHolder.join(database.pool)
    const next = await SqlHolder.join(database.pool)
    const token = await former.take(name!)
    const sessions = [await database.session(), await database.session()] as const
    await sessions[0].query('begin')
    await former.fence(sessions[0], name!, token)
    await former.expire()
    await sessions[1].query('begin')
    const secondFence = await outcomeOf(former.fence(sessions[1], name!, token))
    // An error is told before the transaction's locks are gone.
    if (secondFence !== 'done') await sessions[1].query('rollback')
    await sessions[0].query('commit')
    const [takeOver] = await next.acquire(name!)
    await sessions[1].query('rollback')
    if (takeOver!.token === null) await next.take(name!)
    await sessions[1].query('begin')
    const staleFence = await outcomeOf(former.fence(sessions[1], name!, token))
    await sessions[1].query('rollback')
    return { secondFence, takeOver: takeOver!.reason ?? 'granted', staleFence }
  }

  test('keeps the next holder out for as long as its transactions overlap', async () => {
    expect(await overlap(sound)).toEqual({ secondFence: 'FP002', takeOver: 'granted', staleFence: 'FP001' })
    expect(await overlap(weak)).toEqual({ secondFence: 'done', takeOver: 'draining', staleFence: 'FP001' })
  })
})

describe('an acquire without the row lock', () => {
  const weak = weakenedBy('acquire-without-lock')

  /** Two holders ask for free leases at once. How many are granted to each? */
  async function race(database: TestDatabase, way: Way): Promise<number[]> {
    const names = freshNames(way.count)
    const holders = [await SqlHolder.join(database.pool), await SqlHolder.join(database.pool)] as const
    const sessions = [await database.session(), await database.session()] as const
    await giveBack(sessions[0], way, await grantedBy(sessions[0], way, names, holders[0]), holders[0])
    await sessions[0].query('begin')
    const first = await grantedBy(sessions[0], way, names, holders[0], 2)
    const second = grantedBy(sessions[1], way, names, holders[1])
    await waitsOrAnswers(database.pool, second)
    await sessions[0].query('commit')
    return [first.size, (await second).size]
  }

  test.each(ways)('grants a lease twice ($acquire, $count at once)', async (way) => {
    expect(await race(sound, way)).toEqual([way.count, 0])
    expect(await race(weak, way)).toEqual([way.count, way.count])
  })
})

describe('a renewal by name', () => {
  const weak = weakenedBy('renewal-by-name')

  /** A program whose holder has been ended starts anew, under the same name, and beats. Is its former holder back? */
  async function startAnew(database: TestDatabase): Promise<boolean> {
    const [name] = freshNames(1)
    const former = await SqlHolder.join(database.pool, 30_000, name)
    await former.take(name!)
    await former.expire()
    await (await SqlHolder.join(database.pool)).take(name!)
    const anew = await SqlHolder.join(database.pool, 30_000, name)
    expect(await anew.beat()).toBe(true)
    const rows = await database.query(
      'select from fencepost.holder where id = $1 and ended_at is null and expires_at > clock_timestamp()',
      [former.id],
    )
    expect(await former.beat()).toBe(rows.length > 0)
    return rows.length > 0
  }

  test('brings a holder back that was ended', async () => {
    expect(await startAnew(sound)).toBe(false)
    expect(await startAnew(weak)).toBe(true)
  })
})

describe('a release without the token', () => {
  const weak = weakenedBy('release-without-token')

  /** A holder gives back what somebody else holds by now. How many does that one have left? */
  async function releaseTwice(database: TestDatabase, way: Way): Promise<number> {
    const names = freshNames(way.count)
    const former = await SqlHolder.join(database.pool)
    const next = await SqlHolder.join(database.pool)
    const session = await database.session()
    const granted = await grantedBy(session, way, names, former)
    await giveBack(session, way, granted, former)
    await grantedBy(session, way, names, next)
    await giveBack(session, way, granted, former)
    return (await database.query('select from fencepost.lease where holder_id = $1', [next.id])).length
  }

  test.each(ways)("frees another's lease ($release, $count at once)", async (way) => {
    expect(await releaseTwice(sound, way)).toBe(way.count)
    expect(await releaseTwice(weak, way)).toBe(0)
  })
})

describe('a counter in the lease row', () => {
  const weak = weakenedBy('counter-in-the-lease')

  /** The tokens of three terms, of which the last is after a heartbeat of somebody, and whether it is the greatest. */
  async function takeAgain(database: TestDatabase, way: Way): Promise<boolean[]> {
    const names = freshNames(way.count)
    const holder = await SqlHolder.join(database.pool)
    const session = await database.session()
    const takeAndGiveBack = async (attempt: number): Promise<bigint> => {
      const granted = await grantedBy(session, way, names, holder, attempt)
      await giveBack(session, way, granted, holder)
      return granted.get(names[0]!)!
    }
    const first = await takeAndGiveBack(1)
    const second = await takeAndGiveBack(2)
    await holder.beat()
    const third = await takeAndGiveBack(3)
    return [second > first, third > second]
  }

  test.each(ways)('begins anew when the row has gone ($acquire, $count at once)', async (way) => {
    expect(await takeAgain(sound, way)).toEqual([true, true])
    expect(await takeAgain(weak, way)).toEqual([true, false])
  })

  /** The same, where the lease goes to the one in line. */
  async function handOver(database: TestDatabase, release: 'release' | 'let_go'): Promise<bigint> {
    const [name] = freshNames(1)
    const former = await SqlHolder.join(database.pool)
    const next = await SqlHolder.join(database.pool)
    const token = await former.take(name!)
    await next.stand(name!)
    if (release === 'release') await former.letGo(name!, token)
    else await database.query('select fencepost.let_go(array[$1])', [name])
    const [row] = await database.query<{ token: string }>(
      'select token from fencepost.lease where name = $1 and holder_id = $2',
      [name, next.id],
    )
    return BigInt(row!.token) - token
  }

  test.each(['release', 'let_go'] as const)(
    'goes on from itself when the lease is handed over (%s)',
    async (by) => {
      // Tokens of another lease are drawn in between.
      const between = await SqlHolder.join(weak.pool)
      await between.take(freshNames(1)[0]!)
      expect(await handOver(sound, by)).toBeGreaterThanOrEqual(1n)
      expect(await handOver(weak, by)).toBe(1n)
      const [sequence] = await weak.query('select last_token from fencepost.token_sequence')
      expect(sequence, 'nothing is drawn from the sequence').toEqual({ last_token: '0' })
    },
  )
})

describe('a grant that does not wait for the disk', () => {
  test('is taken back by a crash', async () => {
    // The server writes its log when it must, and not before.
    await using server = await OwnServer.start({ synchronous_commit: 'off', wal_writer_delay: '10s' })
    const takeAndCrash = async (control: string | undefined): Promise<boolean> => {
      const session = await server.session()
      if (control !== undefined) await applyControl(session, control)
      const holder = await SqlHolder.join(session)
      const [name] = freshNames(1)
      const token = await holder.take(name!)
      await server.stop('immediate')
      await session.end().catch(() => {})
      await server.startAgain()
      const rows = await server.query('select from fencepost.lease where name = $1 and token = $2', [
        name,
        token,
      ])
      return rows.length === 0
    }
    expect(await takeAndCrash(undefined)).toBe(false)
    expect(await takeAndCrash('grant-not-durable')).toBe(true)
    // The control itself has lasted: without it the next crash would find nothing.
    expect(await takeAndCrash(undefined)).toBe(true)
  })
})

describe('a control', () => {
  const database = useDatabase()
  const inDatabase = controls.flatMap(({ name, functions = {} }) =>
    Object.entries(functions).map(([signature, pieces]) => ({ name, signature, pieces })),
  )

  test.each(inDatabase)('$name fits $signature, and nothing else', async ({ signature, pieces }) => {
    const [row] = await database.query<{ definition: string }>(
      'select pg_get_functiondef($1::regprocedure) as definition',
      [signature],
    )
    const { definition } = row!
    expect(exchange(definition, pieces, signature)).not.toBe(definition)
    for (const { out } of pieces) {
      expect(() => exchange(definition.replaceAll(out, ''), pieces, signature)).toThrow('has changed')
    }
  })

  test('changes nothing when one of its functions is another than it was written for', async () => {
    const session = await database.session()
    const { functions = {} } = controlNamed('fence-without-lock')
    const definitions = async (): Promise<unknown[]> =>
      database.query(`select pg_get_functiondef(p) from unnest($1::text[]::regprocedure[]) p`, [
        Object.keys(functions),
      ])
    // Once applied it does not fit any more.
    await applyControl(session, 'fence-without-lock')
    const before = await definitions()
    await expect(applyControl(session, 'fence-without-lock')).rejects.toThrow('has changed')
    expect(await definitions()).toEqual(before)
  })

  test.each(controls)('$name says what it is', (control: Control) => {
    expect(Object.keys({ ...control.functions, ...control.modules })).not.toEqual([])
    expect(control.caughtAs).not.toEqual([])
    expect(controls.filter(({ name }) => name === control.name)).toEqual([control])
  })

  test('that there is not is refused', async () => {
    await expect(applyControl(await database.session(), 'no-such-control')).rejects.toThrow(
      'there is no control "no-such-control"',
    )
  })
})
