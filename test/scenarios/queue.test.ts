import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { OpenOptions } from '../../src/index.ts'
import { OwnServer } from '../support/own-server.ts'
import { WaiterProcess } from '../support/waiter-process.ts'
import { expire, listeners, takenOverAfterMs, untilInLine } from '../support/line.ts'
import type { CrowdTerm } from './children/waiter.ts'

let server: OwnServer
let names = 0
const uniqueName = (): string => `queue-${(names += 1)}`

beforeAll(async () => {
  server = await OwnServer.start()
})
afterAll(() => server[Symbol.asyncDispose]())

const processes: WaiterProcess[] = []
afterEach(async () => {
  await Promise.all(processes.splice(0).map((one) => one.kill()))
})

async function process(options?: OpenOptions, clockOffMs?: number): Promise<WaiterProcess> {
  const one = await WaiterProcess.start(server.url, options, clockOffMs)
  processes.push(one)
  return one
}

/** A TTL after which a waiter would ask by itself only long after any bound that is tested here. */
const long = '60s'
/** Far less than that, and more than any machine is busy. */
const soonMs = 10_000

function inOrder(terms: readonly CrowdTerm[]): CrowdTerm[] {
  return terms.toSorted((a, b) => Number(BigInt(a.token) - BigInt(b.token)))
}

function expectNoOverlap(terms: readonly CrowdTerm[]): void {
  for (const [index, term] of terms.slice(1).entries()) {
    expect(term.fromMs, `the grant of ${term.token}`).toBeGreaterThanOrEqual(terms[index]!.untilMs)
  }
}

test('a thousand waiters of four processes are served in the order of the line, with one question for each', async () => {
  const holder = await server.open()
  const lease = await holder.acquire('crowded')
  await server.query(`
    create table granted (place bigint generated always as identity, token bigint, ticket bigint);
    create function note_grant() returns trigger language plpgsql as
      'begin insert into public.granted (token, ticket) values (new.token, new.ticket); return null; end';
    create trigger note_grant after update on fencepost.lease for each row
      when (new.name = 'crowded' and new.token <> old.token) execute function note_grant()`)
  const all = await Promise.all([1, 2, 3, 4].map(() => process()))
  for (const one of all) one.send({ do: 'crowd', id: 1, name: 'crowded', count: 250, holdMs: 5 })
  await untilInLine(server, 'crowded', 4)
  await server.resetCalls()
  expect(await lease.handOver()).toBe('handed-over')

  const reports = await Promise.all(all.map((one) => one.did(1, 'end')))
  for (const { terms } of reports) expect(terms!.map(({ caller }) => caller)).toEqual([...Array(250).keys()])
  const terms = inOrder(reports.flatMap((report) => report.terms!))
  expect(new Set(terms.map(({ token }) => token)).size).toBe(1000)
  expectNoOverlap(terms)
  const granted = await server.query<{ token: string; ticket: string }>(
    'select token, ticket from granted order by place',
  )
  expect(granted.map(({ token }) => token)).toEqual(terms.map(({ token }) => token))
  const tickets = granted.map(({ ticket }) => Number(ticket))
  expect(tickets).toEqual(tickets.toSorted((a, b) => a - b))
  expect(new Set(tickets).size).toBe(1000)
  const tries = await server.calls('acquire')
  const statements = await server.calls('acquire|release|leave|wake|hand_on|give_back|void_attempts')
  console.log(`a thousand waiters: ${tries} questions, ${statements} statements`)
  expect(tries).toBeLessThanOrEqual(2000)
})

describe('a process in front', () => {
  test('that was killed keeps the next one from a released lease until its TTL has passed, and no longer', async () => {
    const name = uniqueName()
    const holder = await server.open({ ttl: long })
    const lease = await holder.acquire(name)
    const first = await process({ ttl: '2s', label: `${name}/first` })
    const second = await process({ ttl: long })
    first.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 1)
    second.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 2)
    await first.kill()
    await lease.release()
    await second.did(1, 'get')
    expect(await takenOverAfterMs(server, name, `${name}/first`)).toBeLessThan(soonMs)
  })

  test('that was killed longer ago than its TTL is passed over by the release itself', async () => {
    const name = uniqueName()
    const holder = await server.open({ ttl: long })
    const lease = await holder.acquire(name)
    const first = await process({ ttl: long, label: `${name}/first` })
    const second = await process({ ttl: long })
    first.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 1)
    second.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 2)
    await first.kill()
    await expire(server, `${name}/first`)
    expect(await lease.handOver()).toBe('handed-over')
    expect((await second.did(1, 'get')).token).toBe(String(lease.token + 1n))
    await untilInLine(server, name, 0)
  })

  test('that closes its Fencepost leaves the line, and the next one is told at once', async () => {
    const name = uniqueName()
    const holder = await server.open({ ttl: long })
    const lease = await holder.acquire(name)
    const [closed, next, last] = [
      await process({ ttl: long }),
      await process({ ttl: long }),
      await process({ ttl: long }),
    ]
    for (const [index, one] of [closed, next, last].entries()) {
      one.send({ do: 'acquire', id: 1, name })
      // oxlint-disable-next-line no-await-in-loop
      await untilInLine(server, name, index + 1)
    }
    closed.send({ do: 'close', id: 2 })
    await closed.did(2, 'close')
    expect(await closed.did(1, 'fail', 'get')).toMatchObject({ did: 'fail', code: 'CLOSED' })
    await untilInLine(server, name, 2)
    expect(await lease.handOver()).toBe('handed-over')
    await next.did(1, 'get')
    // Now it holds the lease, and closes without giving it back.
    const closing = performance.now()
    next.send({ do: 'close', id: 2 })
    await last.did(1, 'get')
    expect(performance.now() - closing).toBeLessThan(soonMs)
  })

  test('that was killed while it held the lease is followed at its expiry, by a waiter that hardly asks', async () => {
    const name = uniqueName()
    const dead = await process({ ttl: '3s', label: `${name}/dead` })
    const waiter = await process({ ttl: long })
    dead.send({ do: 'acquire', id: 1, name })
    await dead.did(1, 'get')
    await server.resetCalls()
    const startedMs = performance.now()
    waiter.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 1)
    // It beats for a while before it dies.
    await new Promise((resolve) => setTimeout(resolve, 3000))
    await dead.kill()
    await waiter.did(1, 'get')
    const ttls = (performance.now() - startedMs) / 3000
    const lateMs = await takenOverAfterMs(server, name, `${name}/dead`)
    expect(lateMs).toBeGreaterThanOrEqual(0)
    expect(lateMs).toBeLessThan(soonMs)
    // Beside the first question and the one after it has begun to listen.
    expect(await server.calls('acquire')).toBeLessThanOrEqual(Math.ceil(2 * ttls) + 3)
  })
})

describe('a restart of the server', () => {
  test.each(['fast', 'immediate'] as const)(
    '(%s) serves all who wait in two processes in the end, and nobody holds beside another',
    async (mode) => {
      const name = uniqueName()
      const crowds = [await process({ ttl: '10s' }), await process({ ttl: '10s' })]
      for (const one of crowds) one.send({ do: 'crowd', id: 1, name, count: 6, holdMs: 100 })
      await crowds[0]!.did(1, 'get')
      await untilInLine(server, name, 2)
      await server.stop(mode)
      await server.startAgain()
      const reports = await Promise.all(crowds.map((one) => one.did(1, 'end')))
      const terms = inOrder(reports.flatMap((report) => report.terms!))
      expect(new Set(terms.map(({ token }) => token)).size).toBe(12)
      expectNoOverlap(terms)
      await untilInLine(server, name, 0)
    },
  )

  test('is outlived by a wait and by wake-ups', async () => {
    const name = uniqueName()
    const holder = await process({ ttl: long })
    const waiter = await process({ ttl: long })
    holder.send({ do: 'acquire', id: 1, name })
    await holder.did(1, 'get')
    waiter.send({ do: 'acquire', id: 1, name })
    await untilInLine(server, name, 1)
    await server.stop('fast')
    await server.startAgain()
    await expect.poll(() => listeners(server), { timeout: 30_000 }).toHaveLength(1)
    // Its place is still there.
    await untilInLine(server, name, 1)
    const freedMs = performance.now()
    holder.send({ do: 'release', id: 2, of: 1 })
    expect(await holder.did(2, 'release')).toMatchObject({ outcome: 'handed-over' })
    await waiter.did(1, 'get')
    expect(performance.now() - freedMs).toBeLessThan(soonMs)
    waiter.send({ do: 'look', id: 9 })
    const { warnings } = await waiter.did(9, 'look')
    expect(warnings!.filter((message) => message.includes('wake-ups do not come'))).toHaveLength(1)
  })
})

describe('a wall clock that is an hour off', () => {
  test.each([
    ['ahead', 3_600_000],
    ['behind', -3_600_000],
  ])(
    '(%s), or is set while a process waits and holds, changes neither order nor expiry',
    async (_, offMs) => {
      const name = uniqueName()
      const holder = await server.open({ ttl: '2s' })
      const lease = await holder.acquire(name)
      const off = await process({ ttl: '2s', label: `${name}/off` }, offMs)
      const next = await process({ ttl: long })
      off.send({ do: 'acquire', id: 1, name })
      await untilInLine(server, name, 1)
      next.send({ do: 'acquire', id: 1, name })
      await untilInLine(server, name, 2)
      await server.resetCalls()
      const startedMs = performance.now()
      for (const [id, ms] of [
        [2, 7_200_000],
        [3, -7_200_000],
      ] as const) {
        off.send({ do: 'step', id, ms })
        // oxlint-disable-next-line no-await-in-loop
        await off.did(id, 'step')
        // oxlint-disable-next-line no-await-in-loop -- So that it can do something wrong.
        await new Promise((resolve) => setTimeout(resolve, 1000))
      }
      // The holder's TTL is 2 s, and so is that of the one in front: two processes, at most two questions in each of them.
      const ttls = (performance.now() - startedMs) / 2000
      expect(await server.calls('acquire')).toBeLessThanOrEqual(2 * (2 * Math.ceil(ttls) + 2))
      await untilInLine(server, name, 2)
      expect(await lease.handOver()).toBe('handed-over')
      await off.did(1, 'get')
      const [row] = await server.query<{ ms: number }>(
        `select extract(epoch from h.expires_at - clock_timestamp())::float * 1000 as ms from fencepost.holder h where label = $1`,
        [`${name}/off`],
      )
      expect(row!.ms).toBeGreaterThan(0)
      expect(row!.ms).toBeLessThanOrEqual(2000)
      off.send({ do: 'step', id: 4, ms: 7_200_000 })
      off.send({ do: 'look', id: 5, of: 1 })
      // In doubt, and then confirmed.
      expect(await off.did(5, 'look')).toMatchObject({ isAborted: false })
      await new Promise((resolve) => setTimeout(resolve, 2500))
      off.send({ do: 'look', id: 6, of: 1 })
      expect(await off.did(6, 'look')).toMatchObject({ isHeld: true, state: 'held', isAborted: false })
      expect(next.reports.some(({ id, did }) => id === 1 && did === 'get')).toBe(false)
      await off.kill()
      await next.did(1, 'get')
      const lateMs = await takenOverAfterMs(server, name, `${name}/off`)
      expect(lateMs).toBeGreaterThanOrEqual(0)
      expect(lateMs).toBeLessThan(soonMs)
    },
  )
})
