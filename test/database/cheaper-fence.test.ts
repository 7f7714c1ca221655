import type { Client } from 'pg'
import { describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()

const ttlMs = 9000

/** What the fence has set for the transaction of a session that had these settings before. */
async function boundsUnder(
  settings: Readonly<Record<string, string>>,
  call: string,
  prepare: (session: Client, holder: SqlHolder) => Promise<void> = async () => {},
): Promise<Record<string, unknown>> {
  const session = await database.session()
  const holder = await SqlHolder.join(database.pool, ttlMs)
  const lease = `bounds-${holder.id}`
  const token = await holder.take(lease)
  for (const [name, value] of Object.entries(settings)) {
    await session.query('select set_config($1, $2, false)', [name, value])
  }
  await session.query('begin')
  await prepare(session, holder)
  await session.query(`select fencepost.fence($1, $2, $3${call})`, [lease, token.toString(), holder.id])
  const { rows } = await session.query<Record<string, unknown>>(
    `select current_setting('idle_in_transaction_session_timeout') as idle,
            current_setting('client_connection_check_interval') as check,
            current_setting('client_min_messages') as messages,
            current_setting('fencepost.fence') = current_setting('fencepost.held') as held,
            cardinality(string_to_array(current_setting('fencepost.held'), E'\n')) as terms`,
  )
  await session.query('commit')
  return rows[0]!
}

const usual = { idle: '9s', check: '3s', messages: 'notice', held: true, terms: 1 }

describe('the fence bounds its transaction', () => {
  test.each([
    ['by the TTL', {}, '', usual],
    [
      'not beyond a stricter setting',
      { idle_in_transaction_session_timeout: '2s' },
      '',
      { ...usual, idle: '2s' },
    ],
    ['in place of a laxer setting', { idle_in_transaction_session_timeout: '1min' }, '', usual],
    [
      'not beyond a stricter interval',
      { client_connection_check_interval: '1s' },
      '',
      { ...usual, check: '1s' },
    ],
    ['in place of a laxer interval', { client_connection_check_interval: '1min' }, '', usual],
    [
      'and lets the warnings of a commit through',
      { client_min_messages: 'error' },
      '',
      { ...usual, messages: 'warning' },
    ],
    ['by what the caller says', {}, ', 5000', { ...usual, idle: '5s' }],
    ['not where the caller wants no bound', {}, ', 0', { ...usual, idle: '0' }],
  ] as const)('%s', async (_, settings, call, bounds) => {
    expect(await boundsUnder(settings, call)).toEqual(bounds)
  })

  test('also where its term is not the first', async () => {
    const bounds = boundsUnder({}, '', async (session) => {
      const other = await SqlHolder.join(database.pool)
      await other.fence(session, 'another', await other.take('another'))
    })
    expect(await bounds).toEqual({ ...usual, terms: 2 })
  })

  test('once, where it is called twice for one term', async () => {
    const session = await database.session()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('twice')
    await session.query('begin')
    await holder.fence(session, 'twice', token)
    await holder.fence(session, 'twice', token)
    const { rows } = await session.query(`select current_setting('fencepost.held') as held`)
    expect(rows).toEqual([{ held: `${token}:${holder.id}:twice` }])
    await session.query('commit')
  })
})

describe('a protected table', () => {
  test('takes no settings for a fence that name no holder', async () => {
    const session = await database.session()
    const holder = await SqlHolder.join(database.pool)
    const token = await holder.take('released')
    await session.query(`create table walled (id integer); select fencepost.protect('walled', 'released')`)
    await holder.release('released', token)
    await session.query('begin')
    for (const setting of ['fencepost.held', 'fencepost.fence']) {
      await session.query('select set_config($1, $2, true)', [setting, `${token}:released`])
    }
    await expect(session.query('insert into walled values (1)')).rejects.toMatchObject({ code: 'FP005' })
    await session.query('rollback')
  })
})
