import { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Fencepost, HttpFence, type Lease, type OpenOptions, fencedTransaction } from '../../src/index.ts'
import { type Pair, Pairs, type Replication, ask } from '../../torture/failover/pair.ts'
import { Relay } from '../../torture/failover/relay.ts'
import { useDatabase } from '../support/database.ts'
import { debianBinaries } from '../support/debian-server.ts'

const binaries = debianBinaries()
const reason = binaries === undefined ? " (skipped: Debian's PostgreSQL is not installed)" : ''

/** A pair, and the address by which clients reach the one of the two that takes writes. */
interface Site {
  readonly pair: Pair
  readonly address: Relay
}

/** What does not fail over along with the leases. */
const outside = useDatabase()
let pairs: Pairs | undefined

beforeAll(async () => {
  if (binaries === undefined) return
  pairs = await Pairs.make(binaries, async (server) => {
    await Fencepost.migrate({ connectionString: server.url })
    await ask(server, 'create table entry (writer text not null)')
  })
})
afterAll(() => pairs?.[Symbol.asyncDispose]())

async function newSite(replication: Replication): Promise<Site> {
  const pair = await pairs!.start(replication)
  onTestFinished(() => pair[Symbol.asyncDispose]())
  const address = await Relay.to(pair.primary.port)
  onTestFinished(() => address[Symbol.asyncDispose]())
  return { pair, address }
}

async function open(url: string, options: OpenOptions = {}): Promise<Fencepost> {
  const fencepost = await Fencepost.open({ connectionString: url, ...options })
  onTestFinished(() => fencepost.close())
  return fencepost
}

function newPool(url: string): Pool {
  const pool = new Pool({ connectionString: url })
  pool.on('error', () => {})
  onTestFinished(() => pool.end())
  return pool
}

async function take(fencepost: Fencepost): Promise<Lease> {
  const lease = await fencepost.tryAcquire('settlement')
  if (lease === null) throw new Error('the lease is not free')
  return lease
}

/** As a process writes that has not heard that its term may be over. */
async function write(lease: Lease, pool: Pool, writer: string): Promise<void> {
  await fencedTransaction({ term: lease.term }, pool, (client) =>
    client.query('insert into entry (writer) values ($1)', [writer]),
  )
}

async function writers(server: { readonly url: string }): Promise<string[]> {
  const rows = await ask<{ writer: string }>(server, 'select writer from entry order by writer')
  return rows.map((row) => row.writer)
}

async function failOver({ pair, address }: Site): Promise<void> {
  await pair.primary.crash()
  await pair.promote()
  address.moveTo(pair.standby.port)
}

describe.skipIf(binaries === undefined).each([reason])('failover%s', () => {
  describe('synchronous', () => {
    test.each(['synchronous', 'synchronous, remote_apply'] as const)(
      '%s: a term that was answered goes on in the new primary, and so does its holder',
      async (replication) => {
        const site = await newSite(replication)
        const [first, second] = await Promise.all([open(site.address.url), open(site.address.url)])
        const lease = await take(first)
        const pool = newPool(site.address.url)
        await write(lease, pool, 'before')

        await failOver(site)

        await write(lease, pool, 'after')
        expect(await writers(site.pair.standby)).toEqual(['after', 'before'])
        expect(await second.tryAcquire('settlement')).toBeNull()
        expect(lease.isHeld).toBe(true)
        expect(await lease.release()).toBe('released')
        expect((await take(second)).token).toBeGreaterThan(lease.token)
      },
    )

    test('a stale write does not land in the new primary', async () => {
      const site = await newSite('synchronous')
      const [first, second] = await Promise.all([open(site.address.url), open(site.address.url)])
      const stale = await take(first)
      await failOver(site)
      await second.forceRelease('settlement', stale.token, { reason: 'test' })
      const lease = await take(second)

      const pool = newPool(site.address.url)
      await expect(write(stale, pool, 'stale')).rejects.toMatchObject({
        code: 'STALE_TERM',
        currentToken: lease.token,
      })
      await write(lease, pool, 'current')
      expect(await writers(site.pair.standby)).toEqual(['current'])
    })

    test('a grant that the standby has not heard of is not answered, and the new primary gives the lease to somebody else', async () => {
      const site = await newSite('synchronous')
      const first = await open(site.address.url, { requestTimeout: '500ms' })
      site.pair.line.hold()
      await expect(first.tryAcquire('settlement')).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })

      await failOver(site)
      const second = await open(site.address.url)
      expect((await take(second)).token).toBe(1n)
    })

    test('a primary that is left alive without its standby grants nothing', async () => {
      const site = await newSite('synchronous')
      const left = await open(site.pair.primary.url, { requestTimeout: '500ms' })
      await site.pair.promote()
      await expect(left.tryAcquire('settlement')).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      await take(await open(site.pair.standby.url))
    })
  })

  describe('asynchronous', () => {
    test('the holder of a grant that was lost is refused in the new primary, although the next holder has the same number', async () => {
      const site = await newSite('asynchronous')
      const [first, second] = await Promise.all([open(site.address.url), open(site.address.url)])
      // Both holders are known to the standby, and neither of the two grants after that is.
      await (await take(first)).release()
      await (await take(second)).release()
      await site.pair.caughtUp()
      site.pair.line.hold()
      const lost = await take(first)
      const pool = newPool(site.address.url)
      await write(lost, pool, 'lost')

      await failOver(site)
      const lease = await take(second)
      expect(lease.token).toBe(lost.token)

      await expect(write(lost, pool, 'stale')).rejects.toMatchObject({ code: 'STALE_TERM' })
      await expect(
        lost.transaction(pool, (client) => client.query(`insert into entry values ('stale')`)),
      ).rejects.toMatchObject({ code: 'STALE_TERM' })
      expect(lost.state).toBe('lost')
      await write(lease, pool, 'current')
      expect(await writers(site.pair.standby)).toEqual(['current'])
    })

    test('a client that only holds is told, and trusts the term no more', async () => {
      const site = await newSite('asynchronous')
      const [first, second] = await Promise.all([
        open(site.address.url, { ttl: '3s' }),
        open(site.address.url),
      ])
      const anchor = await first.acquire('anchor')
      await site.pair.caughtUp()
      site.pair.line.hold()
      const lost = await take(first)
      await failOver(site)
      await take(second)
      await expect.poll(() => lost.state).toBe('lost')
      expect(lost.signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'forgotten' })
      expect(anchor.isHeld).toBe(true)
    })

    test('a lease whose release was lost goes to somebody else, although the process that gave it back lives on', async () => {
      const site = await newSite('asynchronous')
      const [first, second] = await Promise.all([
        open(site.address.url, { ttl: '3s' }),
        open(site.address.url),
      ])
      const anchor = await first.acquire('anchor')
      const released = await take(first)
      await site.pair.caughtUp()
      site.pair.line.hold()
      await released.release()
      // Until the release is known to be durable, and not asked for once more.
      for (const _ of [1, 2]) await new Promise<unknown>((resolve) => void anchor.on('renewed', resolve))

      await failOver(site)
      const lease = await second.acquire('settlement', { wait: '20s' })
      expect(lease.isHeld).toBe(true)
      expect(anchor.isHeld).toBe(true)
    })

    test('a holder that the new primary has never heard of is refused there', async () => {
      const site = await newSite('asynchronous')
      await site.pair.caughtUp()
      site.pair.line.hold()
      const lost = await take(await open(site.address.url))

      await failOver(site)
      const pool = newPool(site.address.url)
      await expect(write(lost, pool, 'foreign')).rejects.toMatchObject({ code: 'FOREIGN_LEASE' })
      const lease = await take(await open(site.address.url))
      expect(lease.token).toBe(lost.token)
      await expect(write(lost, pool, 'stale')).rejects.toMatchObject({ code: 'STALE_TERM' })
      expect(await writers(site.pair.standby)).toEqual([])
    })

    test.each([
      { kind: 'counter', difference: 'the same number', answers: [204, 204, 204] },
      { kind: 'clock', difference: 'a greater one', answers: [204, 204, 412] },
    ] as const)(
      'after a lost grant a $kind gives $difference, which a service outside sees',
      async ({ kind, answers }) => {
        const site = await newSite('asynchronous')
        const [first, second] = await Promise.all([open(site.address.url), open(site.address.url)])
        await first.setSequenceKind('default', kind)
        await site.pair.caughtUp()
        site.pair.line.hold()
        const lost = await take(first)
        await failOver(site)
        const lease = await take(second)
        expect(lease.token === lost.token).toBe(kind === 'counter')
        expect(lease.token).toBeGreaterThanOrEqual(lost.token)

        const handle = new HttpFence(outside.pool).wrap(`report of a ${kind}`, () => {
          return new Response(null, { status: 204 })
        })
        const statuses: number[] = []
        for (const { token } of [lost, lease, lost]) {
          const headers = { 'fencing-token': String(token) }
          // oxlint-disable-next-line no-await-in-loop -- In this order.
          statuses.push((await handle(new Request('http://outside.test/', { headers }))).status)
        }
        expect(statuses).toEqual(answers)
      },
    )

    test('a primary that is left alive goes on granting, and what is written there is not in the new one', async () => {
      const site = await newSite('asynchronous')
      await site.pair.caughtUp()
      await site.pair.promote()
      const left = await take(await open(site.pair.primary.url))
      const lease = await take(await open(site.pair.standby.url))
      expect([left.isHeld, lease.isHeld]).toEqual([true, true])

      await write(left, newPool(site.pair.primary.url), 'left')
      const pool = newPool(site.pair.standby.url)
      await write(lease, pool, 'current')
      await expect(write(left, pool, 'left')).rejects.toMatchObject({ code: 'STALE_TERM' })
      expect(await writers(site.pair.primary)).toEqual(['left'])
      expect(await writers(site.pair.standby)).toEqual(['current'])
    })

    test('a standby that has received the log but not replayed it loses nothing', async () => {
      const site = await newSite('asynchronous')
      const first = await open(site.address.url)
      await ask(site.pair.standby, 'select pg_wal_replay_pause()')
      const lease = await take(first)
      await site.pair.received()

      await failOver(site)
      await write(lease, newPool(site.address.url), 'after')
      expect(await (await open(site.address.url)).tryAcquire('settlement')).toBeNull()
    })
  })
})
