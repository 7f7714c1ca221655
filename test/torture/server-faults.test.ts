import { readFile } from 'node:fs/promises'
import { Client } from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import type { Fencepost, Lease } from '../../src/index.ts'
import { poolerReason, poolerRestart, startPooler } from '../../torture/faults/pooler.ts'
import { asyncCommit, crashOnce, freeze, restartLoop } from '../../torture/faults/server-crash.ts'
import { ddl } from '../../torture/faults/server-ddl.ts'
import { notifyOff } from '../../torture/faults/server-notify.ts'
import { freezeSessions, terminate, terminateAll } from '../../torture/faults/server-sessions.ts'
import { serverFaults } from '../../torture/faults/server.ts'
import { AfflictedServer } from './afflicted.ts'

let server: AfflictedServer
let leases = 0
const uniqueName = (): string => `afflicted-${(leases += 1)}`

beforeAll(async () => {
  server = await AfflictedServer.start()
})
afterEach(() => server.quieten())
afterAll(() => server[Symbol.asyncDispose]())

function ended(client: Client): Promise<void> {
  return new Promise((resolve) => void client.once('end', resolve))
}

/** Takes and gives back, whatever the last fault has left. */
async function works(fencepost: Fencepost): Promise<void> {
  const name = uniqueName()
  const first = await fencepost.acquire(name, { wait: '20s' })
  await first.release()
  const second = await fencepost.acquire(name, { wait: '20s' })
  expect(second.term.token).toBeGreaterThan(first.term.token)
  await second.release()
}

/** One that beats, so that there is a session of each kind. */
async function held(fencepost: Fencepost): Promise<Lease> {
  const lease = await fencepost.acquire(uniqueName(), { ttl: '3s', wait: '10s' })
  await expect.poll(() => namesOfSessions()).toContain('fencepost beats')
  return lease
}

async function namesOfSessions(): Promise<string[]> {
  const rows = await server.query<{ name: string }>(
    `select application_name as name from pg_stat_activity where backend_type = 'client backend'
       and application_name not like 'torture%' order by 1`,
  )
  return rows.map(({ name }) => name)
}

test('every fault of the server has a name of its own', () => {
  const all = serverFaults.map(({ name }) => name)
  expect(new Set(all).size).toBe(all.length)
})

describe('sessions', () => {
  test('some of one name are ended, and the suite itself is spared', async () => {
    const application = await server.session('application')
    const own = await server.session('torture judge')
    const gone = ended(application)
    const affliction = await server.inflict(terminate, 0)
    await affliction.heal()
    expect(affliction.target).toMatch(/^1 of "application" \(\d+\)$/)
    await gone
    expect((await own.query('select 1 as one')).rows).toEqual([{ one: 1 }])
  })

  test('of each kind come their turn', async () => {
    const fencepost = await server.open()
    const lease = await held(fencepost)
    const seen = new Set<string>()
    for (let chance = 0.01; seen.size < 2; chance += 0.07) {
      const { target } = await server.inflict(terminate, chance % 1)
      const name = /"(.*)"/.exec(target)?.[1]
      if (name !== undefined) seen.add(name)
      await works(fencepost)
    }
    expect([...seen].toSorted()).toEqual(['fencepost', 'fencepost beats'])
    expect(lease.isHeld).toBe(true)
  })

  test('all of them are ended at once', async () => {
    const fencepost = await server.open()
    await held(fencepost)
    const application = await server.session('application')
    const gone = ended(application)
    await (await server.inflict(terminateAll)).heal()
    await gone
    expect(await namesOfSessions()).not.toContain('application')
    await works(fencepost)
  })

  test('a frozen one keeps its locks and does not answer until it is thawed', async () => {
    const application = await server.session('application')
    await application.query('begin')
    await application.query('lock table job')
    const affliction = await server.inflict(freezeSessions, 0)
    expect(affliction.target).toMatch(/"application"/)
    const answer = application.query('select 1 as one')
    const other = await server.session('torture test')
    await expect(other.query(`set lock_timeout = '50ms'; select from job`)).rejects.toMatchObject({
      code: '55P03',
    })
    await affliction.heal()
    expect((await answer).rows).toEqual([{ one: 1 }])
    await application.end()
  })
})

describe('the whole server', () => {
  test.each([0.25, 0.75])('crashes and comes back with the same data, by chance %d', async (chance) => {
    const fencepost = await server.open()
    await server.query(`insert into job (note) values ('kept')`)
    const { pid, port } = server.embedded
    const affliction = await server.inflict(crashOnce, chance)
    await expect(server.session()).rejects.toThrow('ECONNREFUSED')
    await affliction.heal()
    expect(server.embedded.pid).not.toBe(pid)
    expect(server.embedded.port).toBe(port)
    expect(await server.query(`select 1 from job where note = 'kept'`)).not.toEqual([])
    await works(fencepost)
  })

  test('is killed by its postmaster or told to end, as chance will have it', async () => {
    const targets = new Set<string>()
    for (let chance = 0; targets.size < 2 && chance < 1; chance += 0.1) {
      const affliction = await server.inflict(crashOnce, chance)
      targets.add(affliction.target)
      await affliction.heal()
    }
    expect(targets).toEqual(new Set(['the postmaster, by SIGKILL', 'the server, by an immediate shutdown']))
  })

  test('goes down again and again', async () => {
    const fencepost = await server.open()
    const pids = new Set([server.embedded.pid])
    const affliction = await server.inflict(restartLoop)
    await expect.poll(() => pids.add(server.embedded.pid).size).toBeGreaterThan(3)
    await affliction.heal()
    await works(fencepost)
  })

  test('that is frozen answers nobody and loses nothing', async () => {
    const fencepost = await server.open()
    const affliction = await server.inflict(freeze)
    const session = server.session()
    const early = await Promise.race([session.then(() => 'answered'), statIsStopped().then(() => 'stopped')])
    expect(early).toBe('stopped')
    await affliction.heal()
    await session
    await works(fencepost)
  })

  test('is in the hands of one fault at a time', async () => {
    const affliction = await server.inflict(freeze)
    const second = await server.inflict(crashOnce)
    expect(second.target).toBe('nothing: the server is in the hands of freeze')
    await second.heal()
    await affliction.heal()
    const third = await server.inflict(freeze)
    expect(third.target).toBe('the server')
    await third.heal()
  })

  test('loses what it committed carelessly, and no grant', async () => {
    const fencepost = await server.open()
    const application = await server.session()
    const affliction = await server.inflict(asyncCommit)
    await expect
      .poll(async () => (await application.query('show synchronous_commit')).rows)
      .toEqual([{ synchronous_commit: 'off' }])
    const name = uniqueName()
    const lease = await fencepost.acquire(name, { ttl: '1m' })
    const { rows } = await application.query<{ id: number }>(
      `insert into job (note) values ('careless') returning id`,
    )
    await affliction.heal()
    expect(await server.query('select from job where id = $1', [rows[0]!.id])).toEqual([])
    expect(await server.query('select token from fencepost.lease where name = $1', [name])).toEqual([
      { token: lease.term.token.toString() },
    ])
    expect(await server.query('show synchronous_commit')).toEqual([{ synchronous_commit: 'on' }])
    await lease.release()
  })
})

/** The process that would answer. */
async function statIsStopped(): Promise<void> {
  await expect
    .poll(async () => (await readFile(`/proc/${server.embedded.pid}/stat`, 'utf8')).split(') ')[1]!.charAt(0))
    .toBe('T')
}

test('DDL changes the lease tables under those who use them, and leaves them as they were', async () => {
  const shape = (): Promise<unknown[]> =>
    server.query(
      `select c.relname, c.relkind, c.reloptions, i.indisvalid, i.indisclustered,
              array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped order by attnum)
         from pg_class c left join pg_index i on i.indexrelid = c.oid
        where c.relnamespace = 'fencepost'::regnamespace order by c.relname`,
    )
  const filenodes = async (): Promise<string> =>
    JSON.stringify(
      await server.query(
        `select relfilenode, relname from pg_class where relnamespace = 'fencepost'::regnamespace and relkind = 'r' order by 2`,
      ),
    )
  const before = await shape()
  const fencepost = await server.open()
  const lease = await fencepost.acquire(uniqueName(), { ttl: '5s' })
  const affliction = await server.inflict(ddl)
  // Each rewritten table is another file.
  const files = new Set<string>([await filenodes()])
  await expect
    .poll(async () => {
      await works(fencepost)
      return files.add(await filenodes()).size
    })
    .toBeGreaterThan(4)
  await affliction.heal()
  expect(await shape()).toEqual(before)
  expect(lease.isHeld).toBe(true)
  await works(fencepost)
})

test('no notification gets through, waiters go on without, and then they do again', async () => {
  const ear = await server.session('torture ear')
  const heard: (string | undefined)[] = []
  ear.on('notification', ({ payload }) => heard.push(payload))
  await ear.query('listen fencepost')
  const [fencepost, other] = [await server.open(), await server.open()]
  const name = uniqueName()
  const lease = await fencepost.acquire(name)
  const affliction = await server.inflict(notifyOff)
  await server.query(`select pg_notify('fencepost', 'lost')`)
  const waiting = other.acquire(name, { wait: '20s' })
  await expect
    .poll(() => server.query('select from fencepost.waiter where lease = $1', [name]))
    .toHaveLength(1)
  await lease.release()
  await (await waiting).release()
  await ear.query('select 1')
  expect(heard).toEqual([])
  await affliction.heal()
  await server.query(`select pg_notify('fencepost', 'heard')`)
  await expect.poll(() => heard).toContain('heard')
})

const reason = poolerReason()
const why = reason === undefined ? '' : ` (skipped: ${reason})`

describe.skipIf(reason !== undefined).each([why])('the pooler%s', () => {
  test('has two server connections for all, and comes back where it was', async () => {
    const pooler = await startPooler(server.url)
    onTestFinished(() => pooler.stop())
    const fencepost = await server.open({ connectionString: pooler.url })
    const others = await Promise.all(
      Array.from({ length: 4 }, () => server.open({ connectionString: pooler.url })),
    )
    await Promise.all(others.map((each) => works(each)))
    await expect.poll(() => namesOfSessions()).toHaveLength(2)
    const affliction = await server.inflict(poolerRestart)
    expect(affliction.target).toBe('1 poolers')
    await expect(new Client({ connectionString: pooler.url }).connect()).rejects.toThrow('ECONNREFUSED')
    await affliction.heal()
    await works(fencepost)
  })

  test('that is not there cannot be restarted', async () => {
    const affliction = await server.inflict(poolerRestart)
    expect(affliction.target).toBe('nothing: there is no pooler')
  })
})
