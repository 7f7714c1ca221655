import { expect, onTestFinished, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { type Case, applyFix, examineAt, cure, findingOf, run, troubles } from './patient.ts'

const database = useDatabase()

const granted = (name: string, token: number, more = ''): string =>
  `insert into fencepost.lease (name, token${more === '' ? '' : `, ${more.split('=')[0]!}`})
   values ('${name}', ${token}${more === '' ? '' : `, ${more.split('=')[1]!}`})`

const cases: Record<string, Case> = {
  'a token that was never given out': {
    code: 'token-above-sequence',
    severity: 'error',
    object: 'lease ahead',
    breaks: [granted('ahead', 500)],
  },
  'a sequence that is gone': {
    code: 'sequence-missing',
    severity: 'error',
    object: 'sequence other',
    breaks: [granted('orphan', 3, `sequence='other'`)],
  },
  'the usual sequence without its row': {
    code: 'sequence-missing',
    severity: 'error',
    object: 'sequence default',
    breaks: [`delete from fencepost.token_sequence where name = 'default'`],
  },
  'two leases with one token': {
    code: 'token-duplicate',
    severity: 'error',
    object: 'lease twin-b',
    breaks: [
      `select fencepost.raise_token_floor('default', 1000)`,
      granted('twin-a', 77),
      granted('twin-b', 77),
    ],
  },
  'a token that no grant gives': {
    code: 'lease-edited',
    severity: 'error',
    object: `lease it's zero`,
    breaks: [granted(`it''s zero`, 0)],
  },
  'a lease that cannot be granted': {
    code: 'lease-edited',
    severity: 'warning',
    object: 'lease never',
    breaks: [granted('never', 7, `available_at='infinity'`)],
  },
  'a lease of a holder that is gone': {
    code: 'lease-holder-unknown',
    severity: 'warning',
    object: 'lease headless',
    breaks: [granted('headless', 8, `holder_id=gen_random_uuid()`)],
  },
  'a holder that lives for ever': {
    code: 'holder-expiry-edited',
    severity: 'error',
    object: 'holder undying',
    breaks: [
      `insert into fencepost.holder (id, label, ttl, expires_at) values (gen_random_uuid(), 'undying', '30 s', 'infinity')`,
    ],
  },
  'a holder that joins tomorrow': {
    code: 'time-in-future',
    severity: 'warning',
    object: 'holder early',
    breaks: [
      `insert into fencepost.holder (id, label, ttl, joined_at, expires_at)
       values (gen_random_uuid(), 'early', '30 s', clock_timestamp() + interval '1 day', clock_timestamp())`,
    ],
    mends: [`update fencepost.holder set joined_at = clock_timestamp() where label = 'early'`],
  },
  'a lease that is granted tomorrow': {
    code: 'time-in-future',
    severity: 'warning',
    object: 'lease tomorrow',
    breaks: [granted('tomorrow', 9, `granted_at=clock_timestamp() + interval '1 day'`)],
    mends: [`update fencepost.lease set granted_at = clock_timestamp() where name = 'tomorrow'`],
  },
  'a clock sequence that is ahead of the clock': {
    code: 'sequence-ahead',
    severity: 'warning',
    object: 'sequence early',
    breaks: [
      `select fencepost.set_sequence_kind('early', 'clock')`,
      `select fencepost.raise_token_floor('early', (extract(epoch from clock_timestamp() + interval '1 hour') * 1000000)::bigint)`,
    ],
    mends: [`delete from fencepost.token_sequence where name = 'early'`],
  },
  'a sequence that is nearly used up': {
    code: 'sequence-exhausted',
    severity: 'warning',
    object: 'sequence huge',
    breaks: [`select fencepost.raise_token_floor('huge', 9100000000000000000)`],
    mends: [`delete from fencepost.token_sequence where name = 'huge'`],
  },
}

test.each(Object.entries(cases))('%s is found, and the fix mends it', async (_name, one) => {
  expect(await cure(database.url, one)).toEqual([])
})

test('leases that are held, released, expired, draining and forgotten leave nothing to find', async () => {
  const [held, released, expired] = [
    await SqlHolder.join(database.pool),
    await SqlHolder.join(database.pool),
    await SqlHolder.join(database.pool),
  ]
  await held.take('held')
  await released.release('released', await released.take('released'))
  await expired.take('expired')
  await expired.expire()
  // A holder's row is swept a day after its end; its leases may stand for ever.
  await run(database.url, [
    `update fencepost.lease set granted_at = granted_at - interval '2 days' where name = 'expired'`,
    `delete from fencepost.holder where id = '${expired.id}'`,
  ])
  const fencepost = await database.open({ ttl: '1h' })
  const draining = await fencepost.acquire('draining')
  const session = await database.session()
  await session.query('begin')
  await draining.fence(session)
  expect(troubles(await examineAt(database.url))).toEqual([])
  await session.query('commit')
})

test('nothing that the doctor says shows the id of a holder', async () => {
  const holder = await SqlHolder.join(database.pool)
  await holder.take('secretive')
  await run(database.url, [
    `update fencepost.holder set expires_at = 'infinity' where id = '${holder.id}'`,
    `insert into fencepost.lease (name, token, holder_id) values ('unknown', 3, gen_random_uuid())`,
  ])
  const report = await examineAt(database.url)
  expect(troubles(report)).toHaveLength(2)
  const ids = await database.query<{ id: string }>(
    'select id from fencepost.holder union select holder_id from fencepost.lease where holder_id is not null',
  )
  for (const { id } of ids) expect(JSON.stringify(report)).not.toContain(id)
  await run(database.url, ['delete from fencepost.lease', 'delete from fencepost.holder'])
})

test('a prepared transaction that keeps a lease is found, and rolling it back frees the lease', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  const lease = await fencepost.acquire('prepared')
  const session = await database.session()
  await session.query('begin')
  await lease.fence(session)
  await session.query(`prepare transaction 'it''s kept'`)
  onTestFinished(() => run(database.url, [`rollback prepared 'it''s kept'`]).catch(() => {}))
  expect(findingOf(await examineAt(database.url), 'prepared-transaction')).toMatchObject({
    severity: 'warning',
  })
  const report = await examineAt(database.url, { idleMs: -1 })
  expect(findingOf(report, 'prepared-transaction')).toMatchObject({
    severity: 'error',
    object: `transaction it's kept`,
    what: expect.stringContaining('the lease "prepared"') as string,
  })
  await applyFix(database.url, findingOf(report, 'prepared-transaction')!)
  expect(troubles(await examineAt(database.url, { idleMs: -1 }))).toEqual([])
})

test('a session that is silent in a fenced transaction is found, and ending it lets the lease move on', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  const lease = await fencepost.acquire('silent')
  const session = await database.session()
  await session.query('begin')
  await lease.fence(session)
  expect(troubles(await examineAt(database.url))).toEqual([])
  const report = await examineAt(database.url, { idleMs: -1 })
  expect(findingOf(report, 'idle-in-fenced-transaction')).toMatchObject({
    severity: 'warning',
    what: expect.stringContaining('the lease "silent"') as string,
  })
  await applyFix(database.url, findingOf(report, 'idle-in-fenced-transaction')!)
  expect(troubles(await examineAt(database.url, { idleMs: -1 }))).toEqual([])
  expect(await lease.release()).toBe('released')
})

test('long transactions are found, with a fence and without', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  const lease = await fencepost.acquire('long')
  const fenced = await database.session()
  await fenced.query('begin')
  await lease.fence(fenced)
  const plain = await database.session()
  await plain.query('begin isolation level repeatable read')
  await plain.query('select from fencepost.lease')
  const report = await examineAt(database.url, { longFencedMs: -1, longMs: -1 })
  expect(findingOf(report, 'long-fenced-transaction')).toMatchObject({ severity: 'warning' })
  expect(findingOf(report, 'long-transaction')).toMatchObject({ severity: 'note' })
  await fenced.query('commit')
  await plain.query('commit')
  expect(troubles(await examineAt(database.url, { longFencedMs: -1, longMs: -1 }))).toEqual([])
})
