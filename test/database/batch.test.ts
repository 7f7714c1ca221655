import { describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { SqlHolder, useBatches, waitsOrAnswers } from '../support/sql-holder.ts'

const database = useDatabase()

const acquire = (holder: SqlHolder, names: readonly string[]) =>
  database.query<{ name: string | null; token: string | null; reason: string | null }>(
    'select name, token, reason from fencepost.acquire_batch($1, $2)',
    [names, holder.id],
  )

const release = (holder: SqlHolder, names: readonly string[], tokens: readonly bigint[]) =>
  database.query<{ name: string | null; outcome: string | null; wake: string | null }>(
    'select * from fencepost.release_batch($1, $2, $3)',
    [names, tokens.map(String), holder.id],
  )

const tokensOf = async (names: readonly string[]) => {
  const rows = await database.query<{ token: string }>(
    'select l.token from unnest($1::text[]) with ordinality n (name, place) join fencepost.lease l using (name) order by n.place',
    [names],
  )
  return rows.map((row) => BigInt(row.token))
}

/** Leases that were granted before, and nobody holds. */
async function free(...names: string[]): Promise<void> {
  const holder = await SqlHolder.join(database.pool)
  await holder.acquire(...names)
  const tokens = await tokensOf(names)
  expect(await release(holder, names, tokens)).toEqual([{ name: null, outcome: 'released', wake: null }])
}

describe('a batch that is granted whole', () => {
  test.each([[['one']], [['zulu', 'alpha', 'mike']]])('has one answer: %j', async (names) => {
    await free(...names)
    const holder = await SqlHolder.join(database.pool)
    const [all, ...others] = await acquire(holder, names)
    expect(others).toEqual([])
    expect(all).toMatchObject({ name: null, reason: null })
    const first = BigInt(all!.token!)
    expect(await tokensOf(names)).toEqual(names.map((_, place) => first + BigInt(place)))
    const [sequence] = await database.query<{ last_token: string }>(
      `select last_token from fencepost.token_sequence where name = 'default'`,
    )
    expect(BigInt(sequence!.last_token)).toBe(first + BigInt(names.length - 1))
  })

  test.each([1, 2])('of %i cannot be given up, nor its holder ended, before it commits', async (count) => {
    for (const end of [
      (holder: SqlHolder) => database.query('select fencepost.void_attempts($1, 1)', [holder.id]),
      (holder: SqlHolder) => database.query('select fencepost.end_holder($1)', [holder.id]),
    ]) {
      const names = ['open-a', 'open-b'].slice(0, count)
      await free(...names)
      const holder = await SqlHolder.join(database.pool)
      const blocker = await database.session()
      await blocker.query('begin')
      await blocker.query(`select from fencepost.token_sequence where name = 'default' for update`)
      const granting = acquire(holder, names)
      expect(await waitsOrAnswers(database.pool, granting)).toBe('waits')
      const ending = end(holder)
      expect(await waitsOrAnswers(database.pool, ending, 2)).toBe('waits')
      // A heartbeat is not kept waiting.
      await database.query('select fencepost.beat($1)', [holder.id])
      await blocker.query('commit')
      expect(await granting).toHaveLength(1)
      await ending
      await database.query('select fencepost.end_holder($1)', [holder.id])
      await database.query('update fencepost.lease set holder_id = null where name = any ($1)', [names])
    }
  })

  test('takes the terms of the request', async () => {
    await free('term')
    const holder = await SqlHolder.join(database.pool)
    await database.query(
      'select from fencepost.acquire_batch($1, $2, p_attempt => 7, p_min_hold_ms => 1000, p_max_hold_ms => 60000, p_grace_ms => 500)',
      [['term'], holder.id],
    )
    const [row] = await database.query(
      `select attempt, ticket, holder_id, deadline - granted_at = '60 s' as deadline, available_at - granted_at = '1 s' as available_at,
              grace = '0.5 s' as grace
         from fencepost.lease where name = 'term'`,
    )
    expect(row).toEqual({
      attempt: '7',
      ticket: null,
      holder_id: holder.id,
      deadline: true,
      available_at: true,
      grace: true,
    })
  })
})

describe('a batch that is not granted whole', () => {
  test('has an answer for each name, also for those that are new', async () => {
    await free('part-free')
    await (await SqlHolder.join(database.pool)).take('part-held')
    const holder = await SqlHolder.join(database.pool)
    const rows = await acquire(holder, ['part-new', 'part-held', 'part-free'])
    const outcomes = rows.map((row) => [row.name, row.token === null ? row.reason : 'granted'] as const)
    expect(rows).toHaveLength(3)
    expect(new Map(outcomes)).toEqual(
      new Map([
        ['part-free', 'granted'],
        ['part-held', 'held'],
        ['part-new', 'granted'],
      ]),
    )
  })

  test('that names a lease twice grants it once', async () => {
    await free('twice')
    const holder = await SqlHolder.join(database.pool)
    const rows = await acquire(holder, ['twice', 'twice'])
    const granted = rows.filter((row) => row.token !== null)
    expect(granted.map((row) => row.name)).toEqual(['twice'])
    expect(await tokensOf(['twice'])).toEqual([BigInt(granted[0]!.token!)])
  })
})

describe('a batch that is given back', () => {
  test('has an answer for each lease when one of them is not held', async () => {
    await free('back-free')
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('back')
    const [other] = await tokensOf(['back-free'])
    expect(await release(holder, ['back', 'back-free'], [token, other!])).toEqual([
      { name: 'back', outcome: 'released', wake: null },
      { name: 'back-free', outcome: 'not_held', wake: null },
    ])
  })

  test.each([1, 2])('of %i says whom to wake when somebody stands in line', async (count) => {
    const names = [`wake-a-${count}`, `wake-b-${count}`].slice(0, count)
    const holder = await SqlHolder.join(database.pool)
    await holder.acquire(...names)
    const tokens = await tokensOf(names)
    await (await SqlHolder.join(database.pool)).stand(names[0]!)
    const rows = await release(holder, names, tokens)
    expect(rows.find((row) => row.name === names[0])).toMatchObject({
      outcome: 'released',
      wake: expect.stringContaining(':'),
    })
    expect(rows).toHaveLength(count)
  })
})

// Whatever else holds of acquire() and release() holds of these too.
useBatches()
await import('./protocol.test.ts')
await import('./waiting.test.ts')
