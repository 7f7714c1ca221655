import { randomBytes } from 'node:crypto'
import { Client, escapeLiteral } from 'pg'
import { describe, expect, onTestFinished, test } from 'vitest'
import { ServerWatch, type Whereabouts, readWhereabouts } from '../../src/database/whereabouts.ts'
import { DatabaseError, Fencepost, type LeaseLostError, type OpenOptions } from '../../src/index.ts'
import { eventually } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { PromotedCopy } from '../support/promoted-copy.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
const timeoutMs = 60_000

function newLog() {
  const warnings: string[] = []
  const logger = { debug() {}, info() {}, error() {}, warn: (message: string) => void warnings.push(message) }
  return { logger, warnings, moves: () => warnings.filter((warning) => warning.includes('looked up there')) }
}

/** A primary with the schema, behind a proxy. */
async function newPair() {
  const pair = await PromotedCopy.start()
  onTestFinished(() => pair[Symbol.asyncDispose]())
  await Fencepost.migrate({ connectionString: pair.url })
  const proxy = await TcpProxy.start(pair.url)
  onTestFinished(() => proxy.stop())
  const log = newLog()
  const open = async (options: OpenOptions = {}): Promise<Fencepost> => {
    const fencepost = await Fencepost.open({
      connectionString: proxy.url,
      ttl: '9s',
      logger: log.logger,
      ...options,
    })
    onTestFinished(() => fencepost.close())
    return fencepost
  }
  return { pair, proxy, log, open }
}

type Held = Awaited<ReturnType<Fencepost['acquire']>>

const lossOf = (lease: Held): Promise<LeaseLostError> =>
  new Promise((resolve) => void lease.on('lost', resolve))

/** The next heartbeat that comes through. */
const renewalOf = (lease: Held): Promise<unknown> =>
  new Promise((resolve) => void lease.on('renewed', resolve))

describe('after a failover that has lost the last grants', { timeout: timeoutMs }, () => {
  test('the lease whose grant is lost is lost at once, the others stay, and the log says what happened', async () => {
    const { pair, proxy, log, open } = await newPair()
    const fencepost = await open()
    const kept = await fencepost.acquire('kept')
    await pair.copy()
    await renewalOf(kept)
    // The same server after a restart is no other one.
    expect(log.moves()).toEqual([])
    const forgotten = await fencepost.acquire('forgotten')
    const loss = lossOf(forgotten)
    proxy.leadTo(await pair.promote())
    proxy.cut()
    expect(await loss).toMatchObject({ code: 'LEASE_LOST', lease: 'forgotten', reason: 'forgotten' })
    expect(forgotten.isHeld).toBe(false)
    expect(log.moves()).toHaveLength(1)
    expect(log.moves()[0]).toContain('the database has failed over (timeline 2, was 1)')
    await renewalOf(kept)
    expect(kept.isHeld).toBe(true)
    expect(await fencepost.leases()).toMatchObject([{ name: 'kept', state: 'held', token: kept.token }])
    const again = await fencepost.acquire('forgotten', { wait: '10s' })
    expect(again.isHeld).toBe(true)
    expect(await kept.release()).toBe('released')
    // The new primary gives the number of the lost grant once more, but not to the same holder: what is sent late is refused.
    expect(again.token).toBe(forgotten.token)
    expect(again.term.holderId).not.toBe(forgotten.term.holderId)
    const { lease, token, holderId } = forgotten.term
    const client = new Client({ connectionString: proxy.url })
    await client.connect()
    const late = client.query('select fencepost.fence($1, $2, $3)', [lease, token, holderId])
    await expect(late).rejects.toMatchObject({ code: 'FP001' })
    await client.end()
    // The holder from before goes when nothing hangs on it any more.
    await eventually(async () => (await fencepost.holders()).length === 1)
    expect(again.isHeld).toBe(true)
  })

  test('a lease whose earlier term has come back is lost, and given back there', async () => {
    const { pair, proxy, open } = await newPair()
    const fencepost = await open()
    const other = await open({ label: 'other' })
    const anchor = await fencepost.acquire('anchor')
    const earlier = await fencepost.acquire('again')
    await pair.copy()
    await earlier.release()
    // So that the release is known to be durable, and not asked for once more.
    await renewalOf(anchor)
    await renewalOf(anchor)
    const later = await fencepost.acquire('again')
    const loss = lossOf(later)
    proxy.leadTo(await pair.promote())
    proxy.cut()
    expect(await loss).toMatchObject({ reason: 'forgotten', token: later.token })
    await using lease = await other.acquire('again', { wait: '20s' })
    expect(lease.isHeld).toBe(true)
    expect(anchor.isHeld).toBe(true)
  })

  test('a lease that comes back although it was released long ago is given back there, and none that is waited for', async () => {
    const { pair, proxy, open } = await newPair()
    const fencepost = await open()
    const other = await open({ label: 'other' })
    const anchor = await fencepost.acquire('anchor')
    const blocking = await other.acquire('waited for')
    const waiting = fencepost.acquire('waited for')
    await eventually(async () => (await pair.query('select from fencepost.waiter')).length === 1)
    const old = await fencepost.acquire('long ago')
    await pair.copy()
    await old.release()
    await renewalOf(anchor)
    await renewalOf(anchor)
    proxy.leadTo(await pair.promote())
    proxy.cut()
    await using lease = await other.acquire('long ago', { wait: '20s' })
    expect(lease.isHeld).toBe(true)
    await blocking.release()
    const waited = await waiting
    await renewalOf(waited)
    expect([anchor.isHeld, waited.isHeld]).toEqual([true, true])
    expect(await waited.release()).toBe('released')
  })

  test('a heartbeat does not go on at the old primary, which is still alive', async () => {
    const { pair, proxy, log, open } = await newPair()
    // Long enough for the holder not to have expired in the copy: it is not that by which the lease is lost.
    const fencepost = await open({ ttl: '15s' })
    await fencepost.acquire('kept')
    await pair.copy()
    const forgotten = await fencepost.acquire('forgotten')
    const loss = lossOf(forgotten)
    await renewalOf(forgotten)
    proxy.leadTo(await pair.promote())
    const beats = `from pg_stat_activity where application_name = 'fencepost beats'`
    expect(await pair.query(`select ${beats}`)).toHaveLength(1)
    // Only the connection of the grants is led to the new primary.
    await pair.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fencepost'`,
    )
    const fresh = await fencepost.acquire('fresh', { wait: '10s' })
    expect(await loss).toMatchObject({ reason: 'forgotten' })
    expect(log.moves()).toHaveLength(1)
    await eventually(async () => (await pair.query(`select ${beats}`)).length === 0)
    await renewalOf(fresh)
    expect(fresh.isHeld).toBe(true)
  })

  test('a look-up that takes long keeps no heartbeat waiting', async () => {
    const { pair, proxy, log, open } = await newPair()
    // As with very many leases, all of which it reads.
    await pair.query(`
      create or replace function fencepost.stray_terms(p_holder uuid, p_names text[], p_attempt bigint)
      returns table (name text, token bigint, sequence text, ticket bigint)
      language plpgsql as $$ begin perform pg_sleep(8); end $$`)
    const fencepost = await open({ ttl: '6s' })
    const kept = await fencepost.acquire('kept')
    await pair.copy()
    const promoted = await pair.promote()
    await renewalOf(kept)
    proxy.leadTo(promoted)
    proxy.cut()
    await eventually(() => Promise.resolve(log.moves().length === 1))
    for (let beats = 0; beats < 4; beats += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      expect(await Promise.race([renewalOf(kept), lossOf(kept)])).not.toMatchObject({ code: 'LEASE_LOST' })
    }
    expect(log.warnings.filter((warning) => warning.includes('heartbeat failed')).length).toBeLessThan(2)
  })

  test('no lease is granted at an old primary that comes up late, while the heartbeats go to the new one', async () => {
    const { pair, proxy, log, open } = await newPair()
    const fencepost = await open({ ttl: '15s' })
    const anchor = await fencepost.acquire('anchor')
    await pair.copy()
    await renewalOf(anchor)
    proxy.leadTo(await pair.promote())
    proxy.cut()
    await renewalOf(anchor)
    expect(log.moves()).toHaveLength(1)
    // The next session is led to the old primary, where the holder has not expired yet.
    proxy.leadTo(pair.url)
    await proxy.cutThoseOf('fencepost\0')
    // The first one may meet the end of the session before.
    for (let tries = 0; tries < 3; tries += 1) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
      const late = await fencepost.tryAcquire('late').catch((error: unknown) => error)
      expect(late).toBeInstanceOf(DatabaseError)
    }
    expect(await pair.query(`select from fencepost.leases where name = 'late'`)).toEqual([])
    expect(anchor.isHeld).toBe(true)
  })

  test('what was granted by a wake-up of the old primary is asked for at the new one', async () => {
    const { pair, proxy, log, open } = await newPair()
    const other = await Fencepost.open({ connectionString: pair.url, ttl: '60s' })
    onTestFinished(() => other.close())
    const fencepost = await open({ ttl: '15s' })
    const blocking = await other.acquire('contested')
    const waiting = fencepost.acquire('contested')
    waiting.catch(() => {})
    const tickets = () => pair.query<{ ticket: string }>('select ticket::text from fencepost.waiter')
    await eventually(async () => (await tickets()).length === 1)
    const [{ ticket } = { ticket: '' }] = await tickets()
    await pair.copy()
    const promoted = await pair.promote()
    const listeners = () =>
      pair.query(
        `select from pg_stat_activity where application_name = 'fencepost listener' and state = 'idle'`,
      )
    await eventually(async () => (await listeners()).length === 1)
    // After a few questions, one that gets no answer is repeated after a second or more.
    const asks = async () => {
      const asked = new Promise<void>((resolve) => {
        proxy.onRequest((data) => data.includes('fencepost_ask_again') && resolve())
      })
      await pair.query(`select pg_notify('fencepost', '${ticket}')`)
      await asked
    }
    for (let times = 0; times < 7; times += 1) await asks()
    const { isLost } = proxy.loseReplyTo('fencepost_ask_again', 'cut')
    await asks()
    await isLost
    await eventually(() =>
      Promise.resolve(log.warnings.some((warning) => warning.includes('is asked for again'))),
    )
    const isToldOf = new Promise<void>((resolve) => {
      proxy.onReply((reply) => {
        if (reply.includes(`${ticket}:`)) resolve()
        return 'pass'
      })
    })
    expect(await blocking.handOver()).toBe('handed-over')
    await isToldOf
    // It waits in the process until the failure's pause is over.
    await new Promise<void>((resolve) => setImmediate(resolve))
    proxy.leadTo(promoted)
    proxy.cut()
    await eventually(() => Promise.resolve(log.moves().length === 1))
    // There the other one still has it. Where the process was slow, it was taken before it was known to be forgotten.
    const waits = new Promise<undefined>((resolve) => void setTimeout(() => resolve(undefined), 4000))
    const taken = await Promise.race([waiting, waits])
    if (taken !== undefined) await eventually(() => Promise.resolve(!taken.isHeld))
  })

  test.skipIf(pgbouncerReason() !== undefined)(
    'it is noticed behind a pooler, whose clients stay connected',
    async () => {
      const { pair, proxy, log } = await newPair()
      const pooler = await PgBouncer.start(proxy.url, { server_login_retry: '1' })
      onTestFinished(() => pooler.stop())
      const fencepost = await Fencepost.open({
        connectionString: pooler.url,
        ttl: '12s',
        logger: log.logger,
        listen: false,
      })
      onTestFinished(() => fencepost.close())
      const kept = await fencepost.acquire('kept')
      await pair.copy()
      await renewalOf(kept)
      const forgotten = await fencepost.acquire('forgotten', { wait: '10s' })
      const loss = lossOf(forgotten)
      await renewalOf(kept)
      proxy.leadTo(await pair.promote())
      proxy.cut()
      expect(await loss).toMatchObject({ reason: 'forgotten' })
      expect(log.moves()).toHaveLength(1)
      await renewalOf(kept)
      expect(kept.isHeld).toBe(true)
    },
  )
})

test(
  'another cluster altogether is named, and nothing that is held is held there',
  { timeout: timeoutMs },
  async () => {
    const { proxy, log, open } = await newPair()
    const fencepost = await open()
    const lease = await fencepost.acquire('here')
    const loss = lossOf(lease)
    await using elsewhere = await PromotedCopy.start()
    await Fencepost.migrate({ connectionString: elsewhere.url })
    const [there] = await elsewhere.query<{ id: string }>(
      'select system_identifier::text as id from pg_control_system()',
    )
    await elsewhere.query(`alter role postgres password ${escapeLiteral(new URL(proxy.url).password)}`)
    proxy.leadTo(elsewhere.url)
    proxy.cut()
    expect(await loss).toMatchObject({ lease: 'here' })
    expect(log.moves()).toHaveLength(1)
    expect(log.moves()[0]).toContain(
      `the database is in another cluster than before (system identifier ${there!.id},`,
    )
  },
)

test('a server that lets no role know where it is works as before', async () => {
  const role = `app_${randomBytes(4).toString('hex')}`
  await database.query(`create role ${role} login password 'geheim'`)
  await Fencepost.migrate({ connectionString: database.url, grantTo: [role] })
  await database.query('revoke execute on function pg_catalog.pg_control_system() from public')
  const log = newLog()
  const connectionString = database.urlAs(role, 'geheim')
  const fencepost = await database.open({ connectionString, logger: log.logger })
  const lease = await fencepost.acquire('quiet', { ttl: '1s' })
  await renewalOf(lease)
  expect(await lease.release()).toBe('released')
  expect(log.warnings).toEqual([])
  await fencepost.close()
  await database.query(`drop owned by ${role}; drop role ${role}`)
})

test('missing_terms names the terms that are not the holder’s, and under which token the lease is', async () => {
  const [holder, other] = [await SqlHolder.join(database.pool), await SqlHolder.join(database.pool)]
  const [mine, again, theirs] = [
    await holder.take('mine'),
    await holder.take('again'),
    await other.take('theirs'),
  ]
  const rows = await database.query(
    `select name, token::text from fencepost.missing_terms($1, $2, $3) order by name`,
    [holder.id, ['mine', 'again', 'theirs', 'none'], [mine, again + 1n, theirs, 5n]],
  )
  expect(rows).toEqual([
    { name: 'again', token: again.toString() },
    { name: 'none', token: null },
    { name: 'theirs', token: null },
  ])
})

test('stray_terms names what is the holder’s beside what is named, by attempts up to one, and does not end by itself', async () => {
  const holder = await SqlHolder.join(database.pool)
  const token = await holder.take('stray', { attempt: 3 })
  await holder.take('known', { attempt: 4 })
  await holder.take('bounded', { attempt: 5, maxHoldMs: 60_000 })
  await holder.take('later', { attempt: 6 })
  await holder.release('released', await holder.take('released', { attempt: 2 }))
  const strays = (known: string[], attempt: number) =>
    database.query('select name, token::text, sequence, ticket from fencepost.stray_terms($1, $2, $3)', [
      holder.id,
      known,
      attempt,
    ])
  expect(await strays(['known'], 5)).toEqual([
    { name: 'stray', token: token.toString(), sequence: 'default', ticket: null },
  ])
  expect(await strays([], 2)).toEqual([])
  expect((await strays([], 6)).map(({ name }) => name as string).toSorted()).toEqual([
    'known',
    'later',
    'stray',
  ])
})

describe('the watch over the servers', () => {
  const at = (timeline: number, systemIdentifier = '7'): Whereabouts => ({ systemIdentifier, timeline })

  function newWatch() {
    const { logger, warnings } = newLog()
    const moves: string[] = []
    const left: Whereabouts[] = []
    const watch = new ServerWatch(logger, (what) => moves.push(what))
    const connection = {
      whereabouts: undefined,
      leaveOlderThan: (where: Whereabouts) => void left.push(where),
    }
    watch.follow(connection)
    return { watch, warnings, moves, left, connection }
  }

  test('says nothing of the first server, of the same one, and of one that does not tell', () => {
    const { watch, warnings, moves } = newWatch()
    for (const where of [undefined, at(1), at(1), undefined, at(1)]) watch.saw(where)
    expect([warnings, moves]).toEqual([[], []])
  })

  test('has connections leave servers before a promotion, and no others', () => {
    const { watch, moves, left, connection } = newWatch()
    for (const where of [at(1), at(2), at(1), at(1, '8')]) watch.saw(where)
    expect(left).toEqual([at(2)])
    expect(moves.map((move) => /failed over|older one|another cluster/.exec(move)?.[0])).toEqual([
      'failed over',
      'older one',
      'another cluster',
    ])
    watch.forget(connection)
    watch.saw(at(3, '8'))
    expect(left).toHaveLength(1)
  })

  test('reads the timeline, in hexadecimal, off the name of the log’s file', () => {
    expect(readWhereabouts({ system_identifier: '7', wal_file: '0000001F0000000000000001' })).toEqual(at(31))
    expect(readWhereabouts({ system_identifier: '7', wal_file: null })).toBeUndefined()
    expect(readWhereabouts({})).toBeUndefined()
  })
})
