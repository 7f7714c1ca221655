import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { eventually } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { applyFix, examineAt, findingOf, run, troubles } from './patient.ts'

const reason = pgbouncerReason()
const why = reason === undefined ? '' : ` (skipped: ${reason})`

const database = useDatabase()

test('without a pooler none is found', async () => {
  expect(findingOf(await examineAt(database.url), 'pooler')).toBeUndefined()
})

// Skipped only where PgBouncer is not installed; CI installs it.
describe.skipIf(reason !== undefined).each([why])('behind PgBouncer in transaction mode%s', () => {
  let bouncer: PgBouncer

  beforeAll(async () => {
    bouncer = await PgBouncer.start(database.url, { default_pool_size: '3' })
    await run(database.url, [
      'create table accounts (id integer primary key)',
      `select fencepost.protect('accounts', 'settlement')`,
    ])
  })
  afterAll(() => bouncer.stop())

  async function client(): Promise<Client> {
    const one = new Client({ connectionString: bouncer.url })
    one.on('error', () => {})
    await one.connect()
    onTestFinished(() => one.end())
    return one
  }

  /** What every server session of the pooler says of a setting. */
  async function everywhere(setting: string): Promise<Set<string | null>> {
    const clients = await Promise.all([client(), client(), client()])
    await Promise.all(clients.map((one) => one.query('begin')))
    const answers = await Promise.all(
      clients.map((one) =>
        one.query<{ value: string | null }>('select current_setting($1, true) as value', [setting]),
      ),
    )
    await Promise.all(clients.map((one) => one.query('commit')))
    return new Set(answers.map(({ rows }) => rows[0]!.value))
  }

  test('SET does leak, and is found; nothing of the probe is left behind', async () => {
    const [one, other] = [await client(), await client()]
    await one.query(`set fencepost.leak = 'seen'`)
    expect((await other.query(`select current_setting('fencepost.leak', true) as leak`)).rows).toEqual([
      { leak: 'seen' },
    ])
    const report = await examineAt(bouncer.url)
    expect(troubles(report)).toEqual(['pooler-leaks-set the pooler'])
    expect(findingOf(report, 'pooler')).toMatchObject({ severity: 'note' })
    expect(findingOf(report, 'not-checked')).toBeUndefined()
    for (const value of await everywhere('fencepost.probe')) expect(value ?? '').toBe('')
  })

  test('the other checks see through it what they see without it', async () => {
    await run(database.url, ['alter table accounts disable trigger user'])
    const report = await examineAt(bouncer.url)
    expect(troubles(report)).toEqual(['trigger-disabled public.accounts', 'pooler-leaks-set the pooler'])
    await applyFix(bouncer.url, findingOf(report, 'trigger-disabled')!)
    expect(troubles(await examineAt(bouncer.url))).toEqual(['pooler-leaks-set the pooler'])
  })

  test('a fence that has got about is found, and ending that session removes it', async () => {
    const one = await client()
    await one.query(`set fencepost.fence = '1:4b7e2d1c-0000-0000-0000-000000000000:settlement'`)
    const report = await examineAt(bouncer.url)
    const finding = findingOf(report, 'fence-leaked')
    expect(finding).toMatchObject({
      severity: 'error',
      what: expect.stringContaining('lease "settlement"') as string,
    })
    expect(JSON.stringify(report)).not.toContain('4b7e2d1c')
    await applyFix(database.url, finding!)
    // Until the pooler has noticed that the session is gone, it may still lead there.
    await eventually(async () => {
      const later = await examineAt(bouncer.url).catch(() => undefined)
      return later !== undefined && findingOf(later, 'fence-leaked') === undefined
    })
  })

  test('a session that writes past triggers for strangers is found', async () => {
    // Of each session, because the doctor may be led to any.
    const clients = await Promise.all([client(), client(), client()])
    await Promise.all(clients.map((one) => one.query('begin')))
    await Promise.all(clients.map((one) => one.query('set session_replication_role = replica')))
    await Promise.all(clients.map((one) => one.query('commit')))
    expect(findingOf(await examineAt(bouncer.url), 'replication-role')).toMatchObject({
      severity: 'error',
      object: 'the pooler',
    })
    await Promise.all(clients.map((one) => one.query('begin')))
    await Promise.all(clients.map((one) => one.query('reset session_replication_role')))
    await Promise.all(clients.map((one) => one.query('commit')))
    expect(findingOf(await examineAt(bouncer.url), 'replication-role')).toBeUndefined()
  })

  test('a pooler that is told to reset its sessions, as the fix says, leaks no more', async () => {
    const { fix } = findingOf(await examineAt(bouncer.url), 'pooler-leaks-set')!
    expect(fix).toContain('server_reset_query = DISCARD ALL and server_reset_query_always = 1')
    await using told = await PgBouncer.start(database.url, {
      pool_mode: 'transaction',
      server_reset_query: 'DISCARD ALL',
      server_reset_query_always: '1',
    })
    const report = await examineAt(told.url)
    expect(troubles(report)).toEqual([])
    expect(findingOf(report, 'pooler')).toMatchObject({ severity: 'note' })
  })

  test('in session mode a SET leaks as well when nothing resets, and not when something does', async () => {
    await using careless = await PgBouncer.start(database.url, {
      pool_mode: 'session',
      server_reset_query: '',
    })
    expect(troubles(await examineAt(careless.url))).toEqual(['pooler-leaks-set the pooler'])
    await using usual = await PgBouncer.start(database.url, { pool_mode: 'session' })
    expect(troubles(await examineAt(usual.url))).toEqual([])
  })

  test('a pool of one session in session mode is enough', async () => {
    await using narrow = await PgBouncer.start(database.url, { pool_mode: 'session', default_pool_size: '1' })
    const report = await examineAt(narrow.url)
    expect(troubles(report)).toEqual([])
    expect(findingOf(report, 'not-checked')).toBeUndefined()
  })

  test('in statement mode it says that nothing can be fenced', async () => {
    await using told = await PgBouncer.start(database.url, { pool_mode: 'statement' })
    expect(troubles(await examineAt(told.url))).toEqual(['pooler-refuses-transactions the pooler'])
  })
})
