import { createHash, randomBytes, randomUUID } from 'node:crypto'
import type { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { migrate } from '../../src/database/migrate.ts'
import { useDatabase } from '../support/database.ts'
import { embeddedVersion } from '../support/embedded.ts'
import { OwnServer } from '../support/own-server.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { awaitStandby, cancelWaits } from '../support/standby.ts'

const database = useDatabase()
const upgraded = useDatabase()

interface HandOverRow {
  readonly outcome: string
  readonly is_handed_over: boolean | null
  readonly wakes: string | null
  readonly is_sent: boolean
}

async function handOver(
  session: Client,
  name: string,
  token: bigint,
  holder: SqlHolder,
  here: readonly string[] = [],
): Promise<HandOverRow> {
  const { rows } = await session.query<HandOverRow>('call fencepost.hand_over($1, $2, $3, $4)', [
    name,
    token,
    holder.id,
    here,
  ])
  return rows[0]!
}

/** A session that listens; the function tells what it has heard until now. */
async function ear(session: Client): Promise<() => Promise<string[]>> {
  const heard: string[] = []
  session.on('notification', ({ payload }) => heard.push(payload!))
  await session.query('listen fencepost')
  return async () => {
    // A session hears what others have committed before its own statement.
    await session.query('select 1')
    return heard.splice(0)
  }
}

async function held(name: string, session: Client) {
  const [holder, waiter] = [await SqlHolder.join(session), await SqlHolder.join(session, 30_000, 'waiter')]
  return { holder, waiter, token: await holder.take(name), ticket: await waiter.stand(name) }
}

describe('a hand-over', () => {
  test('grants the lease to the first in line and wakes it, in one statement', async () => {
    const [session, listener] = [await database.session(), await database.session()]
    const heard = await ear(listener)
    const { holder, waiter, token, ticket } = await held('one', session)
    const newer = token + 1n
    const proof = createHash('sha256')
      .update(`${waiter.id}:${ticket}:${newer}:one`)
      .digest('hex')
      .slice(0, 24)
    const wake = `${ticket}:${newer}:${proof}`
    expect(await handOver(session, 'one', token, holder)).toEqual({
      outcome: 'released',
      is_handed_over: true,
      wakes: wake,
      is_sent: true,
    })
    expect(await heard()).toEqual([wake])
    await waiter.fence(database.pool, 'one', newer)
    expect((await session.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'on' }])
  })

  test('is refused within a transaction, because it commits, and then nothing has happened', async () => {
    const [session, listener] = [await database.session(), await database.session()]
    const heard = await ear(listener)
    const { holder, token, ticket } = await held('within', session)
    await session.query('begin')
    const outcome = await handOver(session, 'within', token, holder).catch((error: unknown) => error)
    await session.query('rollback')
    expect(outcome).toMatchObject({ code: '2D000' })
    expect(await heard()).toEqual([])
    await holder.fence(database.pool, 'within', token)
    expect(await database.query(`select ticket from fencepost.waiter where lease = 'within'`)).toEqual([
      { ticket },
    ])
  })

  test('does not send what the caller tells by itself', async () => {
    const [session, listener] = [await database.session(), await database.session()]
    const heard = await ear(listener)
    const { holder, token, ticket } = await held('here', session)
    expect(await handOver(session, 'here', token, holder, ['0', ticket])).toMatchObject({
      outcome: 'released',
      is_handed_over: true,
      wakes: expect.stringMatching(`^${ticket}:`) as string,
      is_sent: false,
    })
    expect(await heard()).toEqual([])
  })

  test('is told on the channel of the process that is granted the lease, and to nobody else', async () => {
    const [session, other, own] = [
      await database.session(),
      await database.session(),
      await database.session(),
    ]
    const channel = `fencepost_${randomBytes(16).toString('hex')}`
    const [heardByAll, heard] = [await ear(other), await ear(own)]
    await own.query('unlisten *')
    await own.query(`listen ${channel}`)
    const holder = await SqlHolder.join(session)
    const waiter = new SqlHolder(session)
    await session.query(`select fencepost.join_holder($1, 'sql', null, null, null, 30000, $2)`, [
      waiter.id,
      channel,
    ])
    const token = await holder.take('channel')
    const ticket = await waiter.stand('channel')
    const { wakes, is_sent } = await handOver(session, 'channel', token, holder)
    expect(is_sent).toBe(true)
    expect(wakes!.split(':')).toEqual([
      ticket,
      `${token + 1n}`,
      expect.stringMatching(/^[0-9a-f]{24}$/),
      channel,
    ])
    expect(await heard()).toEqual([wakes])
    expect(await heardByAll()).toEqual([])
  })

  test('is refused a channel on which nothing could be sent', async () => {
    for (const channel of ['', 'fencepost', 'another', `fencepost_${'0'.repeat(33)}`]) {
      const joining = database.query(`select fencepost.join_holder($1, 'sql', null, null, null, 30000, $2)`, [
        randomUUID(),
        channel,
      ])
      await expect(joining).rejects.toMatchObject({ code: '23514' })
    }
  })

  test('without anybody in line is a release, and one of a term that is over is none', async () => {
    const session = await database.session()
    const holder = await SqlHolder.join(session)
    const token = await holder.take('nobody')
    const nothing = { is_handed_over: null, wakes: null, is_sent: false }
    expect(await handOver(session, 'nobody', token, holder)).toEqual({ outcome: 'released', ...nothing })
    expect(await handOver(session, 'nobody', token, holder)).toEqual({ outcome: 'not_held', ...nothing })
  })

  test('of a lease that stays closed for a while wakes the first in line, to hear for how long', async () => {
    const [session, listener] = [await database.session(), await database.session()]
    const heard = await ear(listener)
    const [holder, waiter] = [await SqlHolder.join(session), await SqlHolder.join(session)]
    const token = await holder.take('closed', { minHoldMs: 60_000 })
    const ticket = await waiter.stand('closed')
    expect(await handOver(session, 'closed', token, holder)).toEqual({
      outcome: 'released',
      is_handed_over: false,
      wakes: ticket,
      is_sent: true,
    })
    expect(await heard()).toEqual([ticket])
  })

  test('under an open fenced transaction changes nothing', async () => {
    const [session, writer] = [await database.session(), await database.session()]
    const { holder, token } = await held('fenced', session)
    await writer.query('begin')
    await holder.fence(writer, 'fenced', token)
    expect(await handOver(session, 'fenced', token, holder)).toMatchObject({
      outcome: 'draining',
      wakes: null,
    })
    await writer.query('commit')
    expect(await handOver(session, 'fenced', token, holder)).toMatchObject({ is_handed_over: true })
  })

  test('with a full queue of notifications is a hand-over all the same, and says that nothing was sent', async ({
    skip,
  }) => {
    skip(embeddedVersion < 17, 'the size of the queue can be set from PostgreSQL 17 on')
    await using server = await OwnServer.start({ max_notify_queue_pages: '64' })
    const [session, blocker, filler] = [
      await server.session(),
      await server.session(),
      await server.session(),
    ]
    const { holder, waiter, token } = await held('full', session)
    await blocker.query('listen fill')
    await blocker.query('begin')
    await blocker.query('select 1')
    const fill = (size: number): Promise<string> =>
      filler.query(`select pg_notify('fill', repeat('x', ${size}))`).then(
        () => '',
        (error: Error) => error.message,
      )
    for (const size of [7000, 1]) while ((await fill(size)) === '');
    expect(await fill(1)).toMatch(/too many notifications/)
    expect(await handOver(session, 'full', token, holder)).toMatchObject({
      outcome: 'released',
      is_handed_over: true,
      is_sent: false,
    })
    await waiter.fence(session, 'full', token + 1n)
    await blocker.query('rollback')
    for (const each of [session, blocker, filler]) await each.end()
  })

  test('whose wait for a standby is cancelled wakes nobody', async () => {
    await using server = await OwnServer.start()
    const [session, listener, watcher] = [
      await server.session(),
      await server.session(),
      await server.session(),
    ]
    const heard = await ear(listener)
    const { holder, token } = await held('standby', session)
    await watcher.query('set synchronous_commit = local')
    await awaitStandby(watcher, server.url)
    const standbys = async () => (await session.query('show synchronous_standby_names')).rows[0] as unknown
    await expect.poll(standbys).toEqual({ synchronous_standby_names: 'nobody' })
    const handing = handOver(session, 'standby', token, holder)
    await expect.poll(() => cancelWaits(watcher)).toBe(true)
    expect(await handing).toMatchObject({ is_handed_over: true, is_sent: false })
    expect(await heard()).toEqual([])
    await watcher.query('alter system reset synchronous_standby_names')
    await watcher.query('select pg_reload_conf()')
    for (const each of [session, listener, watcher]) await each.end()
  })
})

describe('the migration', () => {
  const app = `app_${randomBytes(6).toString('hex')}`
  const migrateTo = async (direction: 'up' | 'down', grantTo: string[] = []) => {
    for (;;) {
      const result = await migrate({ connectionString: upgraded.url }, { direction, grantTo })
      if (direction === 'up' || result.schemaVersion <= 9) return result
    }
  }

  beforeAll(async () => {
    await database.query(`create role ${app}`)
  })
  afterAll(async () => {
    await upgraded.query(`drop owned by ${app}`)
    await upgraded.query(`drop role ${app}`)
  })

  test.each(['before', 'with'])('lets a role hand over that was given its rights %s it', async (when) => {
    const call = async () => {
      const session = await upgraded.session()
      await session.query(`set role ${app}`)
      const holder = await SqlHolder.join(session)
      try {
        return await handOver(session, 'rights', await holder.take('rights'), holder)
      } finally {
        // Nothing is taken back while somebody holds on.
        await holder.end()
      }
    }
    await migrateTo('down')
    await upgraded.query(`drop owned by ${app}`)
    if (when === 'before') {
      await upgraded.query(`grant usage on schema fencepost to ${app}`)
      await upgraded.query(`grant execute on all functions in schema fencepost to ${app}`)
      await migrateTo('up')
    } else {
      await migrateTo('up')
      await upgraded.query(`grant usage on schema fencepost to ${app}`)
      await expect(call()).rejects.toMatchObject({ code: '42501' })
      await migrateTo('up', [app])
    }
    expect(await call()).toMatchObject({ outcome: 'released' })
  })
})
