import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost, type LeaseOptions } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()
const taken = useDatabase()
const shared = useDatabase()

/** Microseconds since 1970, by the database's clock. */
async function now(): Promise<bigint> {
  const [row] = await database.query<{ now: string }>(
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text as now',
  )
  return BigInt(row!.now)
}

async function newSequence(name: string, kind: 'clock' | 'counter' = 'clock'): Promise<string> {
  await database.query('select fencepost.set_sequence_kind($1, $2)', [name, kind])
  return name
}

/** What is left of a sequence when its last grants are lost. */
async function restore(sequence: string, lastToken: bigint): Promise<void> {
  await database.query('update fencepost.token_sequence set last_token = $2 where name = $1', [
    sequence,
    lastToken,
  ])
}

const tokens = (rows: readonly { readonly token: string | null }[]): bigint[] =>
  rows.map(({ token }) => BigInt(token!))

describe('a clock sequence', () => {
  test('gives the microseconds of the database’s clock, and n consecutive tokens to a batch', async () => {
    const sequence = await newSequence('plain')
    const holder = await SqlHolder.join(database.pool)
    const before = await now()
    const token = await holder.take('plain', { sequence })
    expect(token).toBeGreaterThanOrEqual(before)
    expect(token).toBeLessThanOrEqual(await now())
    const names = Array.from({ length: 100 }, (_, i) => `plain/${i}`)
    const batch = tokens(await holder.ask(names, { sequence }))
    expect(batch[0]).toBeGreaterThan(token)
    expect(batch.toSorted((a, b) => Number(a - b))).toEqual(names.map((_, i) => batch[0]! + BigInt(i)))
  })

  test('goes on one by one where the clock is behind it, for a batch too', async () => {
    const sequence = await newSequence('ahead')
    const holder = await SqlHolder.join(database.pool)
    const floor = (await now()) + 3_600_000_000n
    await database.query('select fencepost.raise_token_floor($1, $2)', [sequence, floor])
    expect(await holder.take('ahead', { sequence })).toBe(floor + 1n)
    const batch = tokens(await holder.ask(['ahead/1', 'ahead/2', 'ahead/3'], { sequence }))
    expect(batch).toEqual([floor + 2n, floor + 3n, floor + 4n])
    const [row] = await database.query<{ kind: string; hours: number }>(
      `select kind, round(extract(epoch from ahead) / 3600)::integer as hours from fencepost.sequences where name = $1`,
      [sequence],
    )
    expect(row).toEqual({ kind: 'clock', hours: 1 })
  })

  test('rises for everybody while many draw at once', async () => {
    const sequence = await newSequence('busy')
    const all: bigint[] = []
    await Promise.all(
      Array.from({ length: 12 }, async (_, worker) => {
        const holder = await SqlHolder.join(database.pool)
        for (let last = 0n, round = 0; round < 25; round += 1) {
          const names = Array.from({ length: 1 + (round % 3) }, (__, i) => `busy/${worker}/${round}/${i}`)
          // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
          const drawn = tokens(await holder.ask(names, { sequence })).toSorted((a, b) => Number(a - b))
          expect(drawn[0]).toBeGreaterThan(last)
          last = drawn.at(-1)!
          all.push(...drawn)
        }
      }),
    )
    expect(new Set(all).size).toBe(all.length)
    // The order of the grants is that of the tokens: each was drawn under the lock of the row.
    const [row] = await database.query<{ rises: boolean }>(
      `select bool_and(token > before) as rises from (
         select token, lag(token, 1, 0::bigint) over (order by granted_at, token) as before
           from fencepost.lease where sequence = $1) t`,
      [sequence],
    )
    expect(row!.rises).toBe(true)
  })

  test('gives no token twice when its last grants were lost, which a counter does', async () => {
    for (const kind of ['clock', 'counter'] as const) {
      const sequence = await newSequence(`lost-${kind}`, kind)
      const holder = await SqlHolder.join(database.pool)
      const backedUp = await holder.take(`lost-${kind}/0`, { sequence })
      const lost = tokens(await holder.ask([`lost-${kind}/1`, `lost-${kind}/2`], { sequence }))
      await restore(sequence, backedUp)
      const after = await holder.take(`lost-${kind}/3`, { sequence })
      if (kind === 'clock') expect(after).toBeGreaterThan(lost[1]!)
      else expect(lost).toContain(after)
    }
  })

  test('goes past the tokens of another cluster that it is moved to without its row', async () => {
    const sequence = await newSequence('moved')
    const holder = await SqlHolder.join(database.pool)
    const there = await holder.take('moved', { sequence })
    await database.query('delete from fencepost.token_sequence where name = $1', [sequence])
    await newSequence(sequence)
    expect(await holder.take('moved/1', { sequence })).toBeGreaterThan(there)
  })
})

describe('every way to draw a token', () => {
  interface Way {
    readonly sequence: string
    readonly name: string
    readonly holder: SqlHolder
    /** Stands in line for the lease. */
    readonly waiter: SqlHolder
  }

  async function tokenOf(name: string): Promise<bigint> {
    const [row] = await database.query<{ token: string }>(
      'select token::text as token from fencepost.lease where name = $1',
      [name],
    )
    return BigInt(row!.token)
  }

  const ways: Record<string, (way: Way) => Promise<unknown>> = {
    'acquire, a new lease': ({ holder, name, sequence }) => holder.take(`${name}/new`, { sequence }),
    'acquire_batch, one lease': async ({ holder, name, sequence }) => {
      await database.query('delete from fencepost.waiter where lease = $1', [name])
      await holder.letGo(name, await tokenOf(name))
      await database.query('select * from fencepost.acquire_batch($1, $2, 100, $3)', [
        [name],
        holder.id,
        sequence,
      ])
    },
    'acquire_batch, several': async ({ holder, name, sequence }) => {
      await database.query('delete from fencepost.waiter where lease = $1', [name])
      const names = [name, `${name}/other`]
      await holder.take(names[1]!, { sequence })
      for (const one of names) await holder.letGo(one, await tokenOf(one))
      await restore(sequence, 0n)
      const { rows } = await database.pool.query<{ name: string | null }>(
        'select * from fencepost.acquire_batch($1, $2, 100, $3)',
        [names, holder.id, sequence],
      )
      expect(rows).toMatchObject([{ name: null }])
    },
    acquire_all: async ({ holder, name, sequence }) => {
      const rows = await holder.askAll([`${name}/a`, `${name}/b`], { sequence })
      expect(rows.map(({ reason }) => reason)).toEqual([null, null])
    },
    'acquire with a ticket': async ({ holder, waiter, name, sequence }) => {
      const ticket = await waiter.stand(name, { sequence })
      await holder.end()
      const [row] = await waiter.askWithTickets([name], [ticket], sequence)
      expect(row?.reason).toBeNull()
    },
    'release, of one lease': ({ holder, name }) => tokenOf(name).then((token) => holder.letGo(name, token)),
    'release, of several': async ({ holder, name, sequence }) => {
      const other = await holder.take(`${name}/other`, { sequence })
      await restore(sequence, 0n)
      await holder.letGoAll([name, `${name}/other`], [String(await tokenOf(name)), String(other)])
    },
    hand_over: ({ holder, name }) =>
      tokenOf(name).then((token) =>
        database.query('call fencepost.hand_over($1, $2, $3)', [name, token, holder.id]),
      ),
    force_release: ({ name }) =>
      tokenOf(name).then((token) =>
        database.query('select fencepost.force_release($1, $2, $3)', [name, token, 'a test']),
      ),
    give_back: ({ holder, name }) => holder.giveBack([name], [1]),
    hand_on: async ({ holder }) => {
      await holder.end()
      await holder.handOn()
    },
  }

  test.each(Object.entries(ways))('%s goes by the clock', async (what, draw) => {
    const name = what.replaceAll(/\W/g, '-')
    const sequence = await newSequence(name)
    const [holder, waiter] = [await SqlHolder.join(database.pool), await SqlHolder.join(database.pool)]
    await holder.take(name, { sequence })
    await waiter.stand(name, { sequence })
    const before = await now()
    await restore(sequence, 0n)
    await draw({ sequence, name, holder, waiter })
    const [row] = await database.query<{ last: string; granted: string }>(
      `select s.last_token::text as last, (select max(l.token)::text from fencepost.lease l where l.sequence = s.name) as granted
         from fencepost.token_sequence s where s.name = $1`,
      [sequence],
    )
    expect(BigInt(row!.last)).toBeGreaterThanOrEqual(before)
    expect(row!.granted).toBe(row!.last)
  })

  test('is a statement with the one rule in it, which costs no call', async () => {
    const rows = await database.query<{ name: string; updates: number; rules: number }>(
      `select p.proname as name,
              (select count(*)::integer from regexp_matches(p.prosrc, 'update (fencepost\\.)?token_sequence', 'g')) as updates,
              (select count(*)::integer
                 from regexp_matches(p.prosrc, 'set last_token = (fencepost\\.)?token_base\\(', 'g')) as rules
         from pg_proc p
        where p.pronamespace = 'fencepost'::regnamespace and p.prosrc ~ 'update (fencepost\\.)?token_sequence'
        order by 1`,
    )
    expect(rows).toEqual(
      ['acquire_batch', 'draw_tokens', 'release'].map((name) => ({ name, updates: 1, rules: 1 })),
    )
    const plan = await database.query<{ 'QUERY PLAN': string }>(
      `explain (verbose) update fencepost.token_sequence s
          set last_token = fencepost.token_base(s.last_token, s.follows_clock) + 1 where s.name = 'default'`,
    )
    const text = plan.map((line) => line['QUERY PLAN']).join('\n')
    expect(text).toContain('CASE WHEN follows_clock THEN')
    expect(text).not.toContain('token_base')
  })
})

describe('the kind of a sequence', () => {
  test('can be turned under everybody’s feet, and tokens rise', async () => {
    const fencepost = await database.open()
    const options: LeaseOptions = { sequence: 'turned' }
    const token = async (): Promise<bigint> => {
      const lease = await fencepost.acquire('turned', options)
      await lease.release()
      return lease.token
    }
    const counted = await token()
    expect(counted).toBe(1n)
    const before = await now()
    expect(await fencepost.setSequenceKind('turned', 'clock')).toBe(counted)
    const first = await token()
    expect(first).toBeGreaterThanOrEqual(before)
    expect(await fencepost.setSequenceKind('turned', 'counter')).toBe(first)
    expect(await token()).toBe(first + 1n)
    expect((await fencepost.sequences()).find(({ name }) => name === 'turned')).toEqual({
      name: 'turned',
      kind: 'counter',
      lastToken: first + 1n,
      aheadMs: undefined,
    })
    await fencepost.setSequenceKind('turned', 'clock')
    expect(await token()).toBeGreaterThan(first + 1n)
    expect((await fencepost.sequences()).find(({ name }) => name === 'turned')).toMatchObject({
      kind: 'clock',
      aheadMs: 0,
    })
    expect((await fencepost.describe('turned'))?.sequenceKind).toBe('clock')
  })

  test('is told of a sequence at its end, too, and of the others with it', async () => {
    const fencepost = await database.open()
    await fencepost.setSequenceKind('at its end', 'clock')
    await database.query(`select fencepost.raise_token_floor('at its end', 9223372036854775807)`)
    const all = await fencepost.sequences()
    expect(all.find(({ name }) => name === 'at its end')?.aheadMs).toBeGreaterThan(9e15)
    expect(all.some(({ name }) => name === 'default')).toBe(true)
  })

  test('is counter unless it is said, also of "default", which can be turned too', async () => {
    const fencepost = await database.open()
    const kindOf = async (sequence: string) =>
      (await fencepost.sequences()).find(({ name }) => name === sequence)?.kind
    expect(await kindOf('default')).toBe('counter')
    await (await fencepost.acquire('unsaid', { sequence: 'unsaid' })).release()
    expect(await kindOf('unsaid')).toBe('counter')
    await fencepost.setSequenceKind('default', 'clock')
    const before = await now()
    for (const { token } of await fencepost.acquireAll(['by-default/1', 'by-default/2'])) {
      expect(token).toBeGreaterThanOrEqual(before)
      expect(Number.isSafeInteger(Number(token))).toBe(true)
    }
  })

  test('must be one of the two, which is checked before any SQL and by the database', async () => {
    const closed = await database.open()
    await closed.close()
    for (const kind of ['Clock', '', 'sequence', null, undefined, 1] as never[]) {
      await expect(closed.setSequenceKind('default', kind)).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
        argument: 'kind',
      })
      await expect(
        database.query('select fencepost.set_sequence_kind($1, $2)', ['refused', kind ?? null]),
      ).rejects.toMatchObject({ code: '22023' })
    }
    for (const name of ['', 'x'.repeat(513), 'a\nb', undefined] as string[]) {
      await expect(closed.setSequenceKind(name, 'clock')).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    }
    await expect(closed.setSequenceKind('default', 'clock')).rejects.toMatchObject({ code: 'CLOSED' })
    await expect(
      database.query('select fencepost.set_sequence_kind($1, $2)', ['x'.repeat(513), 'clock']),
    ).rejects.toMatchObject({ code: '23514' })
    expect(await database.query(`select from fencepost.sequences where name = 'refused'`)).toEqual([])
  })

  test('goes with the migration, and the tokens stay', async () => {
    const fencepost = await taken.open()
    await fencepost.setSequenceKind('default', 'clock')
    const { token } = await fencepost.acquire('before')
    await fencepost.close()
    const connectionString = taken.url
    await Fencepost.migrate({ connectionString, direction: 'down' })
    await Fencepost.migrate({ connectionString })
    const again = await taken.open()
    expect(await again.sequences()).toMatchObject([{ kind: 'counter', lastToken: token }])
    expect((await again.acquire('after')).token).toBe(token + 1n)
  })
})

describe('rights', () => {
  const app = `app_${randomBytes(4).toString('hex')}`
  const upgraded = `upg_${randomBytes(4).toString('hex')}`
  const secret = 'geheim'

  beforeAll(async () => {
    for (const role of [app, upgraded]) await shared.query(`create role ${role} login password '${secret}'`)
  })
  afterAll(async () => {
    for (const role of [app, upgraded]) await shared.query(`drop owned by ${role}; drop role ${role}`)
  })

  test('an application’s role sees the kinds, draws, and may not change them; nor may who came before the upgrade', async () => {
    const connectionString = shared.url
    await Fencepost.migrate({ connectionString, direction: 'down' })
    for (const role of [app, upgraded]) {
      // As the version before gave the rights.
      await shared.query(
        `grant usage on schema fencepost to ${role}; grant execute on all routines in schema fencepost to ${role}`,
      )
    }
    await Fencepost.migrate({ connectionString, grantTo: [app] })
    await shared.query(`select fencepost.set_sequence_kind('of-the-app', 'clock')`)
    for (const role of [app, upgraded]) {
      const fencepost = await shared.open({ connectionString: shared.urlAs(role, secret) })
      expect((await fencepost.sequences()).map(({ kind }) => kind)).toEqual(['counter', 'clock'])
      const lease = await fencepost.acquire(`of ${role}`, { sequence: 'of-the-app' })
      expect(lease.token).toBeGreaterThan(1_000_000_000_000_000n)
      await expect(fencepost.setSequenceKind('of-the-app', 'counter')).rejects.toMatchObject({
        code: 'PERMISSION_DENIED',
        message: expect.stringContaining(
          'grant execute on function fencepost.set_sequence_kind(text, text)',
        ) as string,
      })
      await lease.release()
    }
  })
})
