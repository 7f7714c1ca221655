import { randomBytes } from 'node:crypto'
import type { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { migrate } from '../../src/database/migrate.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()
const upgraded = useDatabase()

describe('the migration of the line', () => {
  const app = `app_${randomBytes(6).toString('hex')}`
  const watcher = `watcher_${randomBytes(6).toString('hex')}`
  /** Up to the newest, or down to what was there before this migration. */
  const migrateTo = async (direction: 'up' | 'down', grantTo: string[] = []) => {
    const step = () => migrate({ connectionString: upgraded.url }, { direction, grantTo })
    for (;;) {
      const result = await step()
      if (direction === 'up' || result.schemaVersion <= 5) return result
    }
  }

  const as = async <T>(role: string, work: (session: Client) => Promise<T>): Promise<T> => {
    const session = await upgraded.session()
    await session.query(`set role ${role}`)
    return work(session)
  }

  beforeAll(async () => {
    for (const role of [app, watcher]) await database.query(`create role ${role}`)
  })
  afterAll(async () => {
    for (const role of [app, watcher]) {
      await upgraded.query(`drop owned by ${role}`)
      await upgraded.query(`drop role ${role}`)
    }
  })

  test('leaves what works as before when it is taken back, and the leases that were held then', async () => {
    const waiting = await SqlHolder.join(upgraded.pool)
    const token = await waiting.take('kept', { minHoldMs: 60_000, maxHoldMs: 90_000, graceMs: 1000 })
    const behind = await SqlHolder.join(upgraded.pool)
    await behind.stand('kept')
    await expect(migrateTo('down')).rejects.toMatchObject({ sqlState: '55006' })
    for (const holder of [waiting, behind]) await holder.end()
    await migrateTo('down')
    const holder = await SqlHolder.join(upgraded.pool)
    const [row] = await holder.acquire('kept')
    expect(row).toMatchObject({ token: null, reason: 'not_yet' })
    await upgraded.query(`update fencepost.lease set available_at = '-infinity'`)
    const newer = BigInt((await holder.acquire('kept'))[0]!.token!)
    expect(newer).toBe(token + 1n)
    expect(await holder.release('kept', newer)).toBe('released')
    await holder.acquire('kept')
    await holder.end()
    await migrateTo('up')
    expect(await (await SqlHolder.join(upgraded.pool)).take('kept')).toBe(newer + 2n)
    await upgraded.query('update fencepost.holder set ended_at = clock_timestamp()')
  })

  test('keeps who could use leases before able to, and able to wait, and nobody else', async () => {
    await migrateTo('down')
    await migrateTo('up')
    await as(watcher, (session) => expect(SqlHolder.join(session)).rejects.toMatchObject({ code: '42501' }))
    await migrateTo('down')
    await migrateTo('up', [app])
    await migrateTo('down')
    const usesLeases = async (session: Client) => {
      const holder = await SqlHolder.join(session)
      const [row] = await holder.acquire('rights')
      expect(await holder.release('rights', BigInt(row!.token!))).toBe('released')
      await session.query('select * from fencepost.leases')
      return holder
    }
    await as(app, async (session) => (await usesLeases(session)).end())
    await migrateTo('up')
    await as(app, async (session) => {
      const holder = await usesLeases(session)
      const waiter = await SqlHolder.join(session)
      const token = await holder.take('rights')
      const ticket = await waiter.stand('rights')
      expect(await session.query('select * from fencepost.waiters')).toMatchObject({ rowCount: 1 })
      const { wake } = await holder.letGo('rights', token)
      await session.query('select fencepost.wake($1)', [[wake]])
      expect((await waiter.askWithTicket('rights', ticket)).token).toBe(`${token + 1n}`)
      await waiter.leave(['rights'], [ticket])
      await holder.askAll(['rights-a', 'rights-b'])
      await holder.giveBack(['rights-a'], [1])
      for (const each of [holder, waiter]) {
        await each.end()
        await each.handOn()
      }
      for (const inner of ['waiter', 'lease', 'holder'])
        await expect(session.query(`select from fencepost.${inner}`)).rejects.toMatchObject({ code: '42501' })
    })
  })

  test('keeps who could only look at leases able to', async () => {
    await migrateTo('down')
    await upgraded.query(`grant usage on schema fencepost to ${watcher}`)
    await upgraded.query(`grant select on fencepost.leases to ${watcher}`)
    await upgraded.query(`grant execute on function fencepost.fence_key(text) to ${watcher}`)
    await upgraded.query(`insert into fencepost.lease (name, token) values ('looked at', 1)`)
    const look = (session: Client) => session.query('select * from fencepost.leases')
    expect((await as(watcher, look)).rows).not.toEqual([])
    await migrateTo('up')
    expect((await as(watcher, look)).rows).not.toEqual([])
    await as(watcher, (session) =>
      expect(session.query('select * from fencepost.waiters')).rejects.toMatchObject({ code: '42501' }),
    )
  })

  test('gives a role of the application the rights on what is new', async () => {
    await migrateTo('up', [app])
    await as(app, async (session) => {
      const holder = await SqlHolder.join(session)
      await holder.take('granted')
      const waiter = await SqlHolder.join(session)
      await waiter.stand('granted')
      await session.query('select * from fencepost.waiters')
      await expect(session.query(`select fencepost.purge('0')`)).rejects.toMatchObject({ code: '42501' })
      await expect(session.query(`select fencepost.grant_next('{granted}')`)).rejects.toMatchObject({
        code: '42501',
      })
      await expect(session.query(`select fencepost.let_go('{granted}')`)).rejects.toMatchObject({
        code: '42501',
      })
      for (const each of [holder, waiter]) await each.end()
    })
  })
})
