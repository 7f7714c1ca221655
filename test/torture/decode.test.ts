import { randomBytes, randomUUID } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LogReader } from '../../torture/decode/log-reader.ts'
import { createTortureTables } from '../../torture/decode/tables.ts'
import type { Change, Committed, HolderChange, LeaseChange } from '../../torture/history.ts'
import { OwnServer } from '../support/own-server.ts'

let server: OwnServer

beforeAll(async () => {
  server = await OwnServer.start({ wal_level: 'logical' })
  const client = await server.session()
  await createTortureTables(client)
  await client.end()
})

afterAll(async () => {
  await server[Symbol.asyncDispose]()
})

/** A reader, and a way to read all that has been committed since it was made. */
async function reading(slot: string): Promise<{ reader: LogReader; rest: () => Promise<Committed[]> }> {
  const client = await server.session()
  const reader = await LogReader.create(client, { slot })
  await client.end()
  return {
    reader,
    rest: async () => {
      const session = await server.session()
      const transactions = await reader.readRest(session)
      await session.query('select pg_drop_replication_slot($1)', [slot])
      await session.end()
      return transactions
    },
  }
}

function changesOf(transactions: readonly Committed[]): Change[] {
  return transactions.flatMap(({ changes }) => changes)
}

function leaseChanges(transactions: readonly Committed[], name: string): LeaseChange[] {
  return changesOf(transactions).filter(
    (change) => change.table === 'lease' && change.name === name,
  ) as LeaseChange[]
}

function holderChanges(transactions: readonly Committed[], id: string): HolderChange[] {
  return changesOf(transactions).filter(
    (change) => change.table === 'holder' && change.id === id,
  ) as HolderChange[]
}

test('a grant and its release are read as they were committed, with times by the server', async () => {
  const { rest } = await reading('a_grant')
  const name = `it's "quoted": lease[text]:'x' \\ 'null'`
  await using fencepost = await server.open({ label: 'c1' })
  const beforeUs = Date.now() * 1000
  const lease = await fencepost.acquire(name, { ttl: 1500 })
  await lease.release()
  const afterUs = (Date.now() + 1) * 1000
  const transactions = await rest()

  const { holderId } = lease.term
  const token = `${lease.token}`
  const none = { deadlineUs: null, availableAtUs: null }
  expect(leaseChanges(transactions, name)).toEqual([
    expect.objectContaining({ how: 'insert', token: '0', holderId: null, ...none }),
    expect.objectContaining({ how: 'update', token, holderId, ...none }),
    expect.objectContaining({ how: 'update', token, holderId: null, ...none }),
  ])
  const { grantedAtUs } = leaseChanges(transactions, name)[1]!
  expect(grantedAtUs).toBeGreaterThanOrEqual(beforeUs)
  expect(grantedAtUs).toBeLessThanOrEqual(afterUs)
  const grant = transactions.find(({ changes }) => changes.some((change) => change.table === 'lease'))!
  expect(grant.atUs).toBeGreaterThanOrEqual(grantedAtUs!)
  expect(grant.atUs).toBeLessThanOrEqual(afterUs)
  expect(grant).toMatchObject({
    lsn: expect.stringMatching(/^[0-9A-F]+\/[0-9A-F]+$/),
    xid: expect.stringMatching(/^\d+$/),
  })

  const [joined] = holderChanges(transactions, holderId)
  expect(joined).toMatchObject({ how: 'insert', label: 'c1', ttlUs: 1_500_000, endedAtUs: null })
  expect(joined!.expiresAtUs).toBeGreaterThanOrEqual(beforeUs + 1_500_000)
  expect(joined!.expiresAtUs).toBeLessThanOrEqual(afterUs + 1_500_000)
})

test('a term with bounds says from when and until when, and an ended holder since when', async () => {
  const { rest } = await reading('bounds')
  await using fencepost = await server.open({ label: 'c1' })
  const lease = await fencepost.acquire('bounded', { ttl: '1s', minHold: '2s', maxHold: '1m' })
  await fencepost.close()
  const transactions = await rest()
  const [, granted] = leaseChanges(transactions, 'bounded')
  expect(granted!.availableAtUs! - granted!.grantedAtUs!).toBe(2_000_000)
  expect(granted!.deadlineUs! - granted!.grantedAtUs!).toBe(60_000_000)
  const last = holderChanges(transactions, lease.term.holderId).at(-1)!
  expect(last.endedAtUs).toBeGreaterThan(granted!.grantedAtUs!)
  expect(last.endedAtUs).toBeLessThan(last.expiresAtUs)
})

test('tokens and times are exact, whatever the session is set to', async () => {
  const { reader } = await reading('settings')
  const [id, day] = [randomUUID(), randomUUID()]
  await server.query(`insert into fencepost.holder (id, label, ttl, expires_at) values
    ('${id}', '', '1 hour 2 minutes 3.004005 seconds', '2026-02-03 04:05:06.000007+00'),
    ('${day}', 'd', '1 day', '2030-12-31 23:59:59.9+00')`)
  await server.query(`insert into fencepost.lease (name, token, holder_id, granted_at, deadline, available_at) values
    ('exact', 9223372036854775807, '${id}', '2026-07-03 04:05:06.000007+02', 'infinity', '-infinity')`)
  const client = await server.session()
  await client.query(
    `set timezone = 'Asia/Kolkata'; set datestyle = 'German'; set intervalstyle = 'sql_standard'`,
  )
  const transactions = await reader.readRest(client)
  const { rows } = await client.query<Record<string, string>>('show intervalstyle')
  expect(rows).toEqual([{ IntervalStyle: 'sql_standard' }])
  await client.query('select pg_drop_replication_slot($1)', ['settings'])
  await client.end()

  expect(holderChanges(transactions, id)).toEqual([
    {
      table: 'holder',
      how: 'insert',
      id,
      label: '',
      ttlUs: 3_723_004_005,
      expiresAtUs: Date.UTC(2026, 1, 3, 4, 5, 6) * 1000 + 7,
      endedAtUs: null,
    },
  ])
  expect(holderChanges(transactions, day)[0]).toMatchObject({
    ttlUs: 86_400_000_000,
    expiresAtUs: Date.UTC(2030, 11, 31, 23, 59, 59, 900) * 1000,
  })
  expect(leaseChanges(transactions, 'exact')).toEqual([
    {
      table: 'lease',
      how: 'insert',
      name: 'exact',
      token: '9223372036854775807',
      holderId: id,
      grantedAtUs: Date.UTC(2026, 6, 3, 2, 5, 6) * 1000 + 7,
      deadlineUs: null,
      availableAtUs: null,
    },
  ])
  await server.query(`delete from fencepost.lease where name = 'exact'`)
})

test('a long label is known also where the log leaves it out', async () => {
  const { rest } = await reading('toast')
  const id = randomUUID()
  // Too random to be pressed into the row.
  const label = randomBytes(20_000).toString('base64')
  await server.query('select fencepost.join_holder($1, $2, null, null, null, 60000)', [id, label])
  await server.query('select fencepost.beat($1)', [id])
  await server.query('select fencepost.end_holder($1)', [id])
  await server.query('delete from fencepost.holder where id = $1', [id])
  const transactions = await rest()
  const changes = holderChanges(transactions, id)
  expect(changes.map(({ how }) => how)).toEqual(['insert', 'update', 'update', 'delete'])
  expect(changes.every((change) => change.label === label)).toBe(true)
  expect(changes.at(-1)!.endedAtUs).not.toBeNull()
})

test('a lease that is purged is named with its last term', async () => {
  const { rest } = await reading('purge')
  await using fencepost = await server.open({ label: 'c1' })
  const lease = await fencepost.acquire('purged', { ttl: '1s' })
  await lease.release()
  await server.query(`select fencepost.purge('0')`)
  const last = leaseChanges(await rest(), 'purged').at(-1)
  expect(last).toMatchObject({ how: 'delete', token: `${lease.token}`, holderId: null })
})

test('writes are read in the order in which they were committed, and nothing else is', async () => {
  const { rest } = await reading('writes')
  const [first, second] = [await server.session(), await server.session()]
  const write = `insert into torture.write (lease, token, row, client, op) values ('L', 9007199254740993, 'r', 'c1', `
  await first.query('begin')
  await first.query(`${write} 1)`)
  await first.query(`insert into torture.row (row, lease, stamp) values ('r', 'L', null)`)
  await second.query('begin')
  await second.query(`${write} 2)`)
  await second.query('rollback')
  await second.query(`create table unwatched (n integer); insert into unwatched values (1)`)
  await second.query(`begin; ${write} 3); savepoint s; ${write} 4); rollback to s; commit`)
  await first.query(`update torture.row set stamp = 9007199254740993`)
  await first.query('commit')
  await Promise.all([first.end(), second.end()])
  const transactions = await rest()

  const written = { table: 'write', lease: 'L', token: '9007199254740993', row: 'r', client: 'c1' }
  expect(transactions.map(({ changes }) => changes)).toEqual([
    [{ ...written, op: 3 }],
    [
      { ...written, op: 1 },
      { table: 'row', row: 'r', lease: 'L', stamp: null },
      { table: 'row', row: 'r', lease: 'L', stamp: '9007199254740993' },
    ],
  ])
})

test('what is read in portions is neither lost nor repeated, whenever the server crashes', async () => {
  const client = await server.session()
  const reader = await LogReader.create(client, { slot: 'portions', portion: 5 })
  // So that the crashes below take the slot back to here.
  await client.query('checkpoint')
  await client.end()
  const ops: number[] = []
  const take = (transactions: readonly Committed[]): void => {
    for (const change of changesOf(transactions)) if (change.table === 'write') ops.push(change.op)
  }
  const write = async (from: number, to: number): Promise<void> => {
    const session = await server.session()
    for (let op = from; op <= to; op += 1) {
      // oxlint-disable-next-line no-await-in-loop -- Each in a transaction of its own.
      await session.query(`insert into torture.write values ('L', 1, 'r', 'c1', $1)`, [op])
    }
    await session.end()
  }

  await write(1, 12)
  const session = await server.session()
  take(await reader.read(session))
  expect(ops.length).toBeGreaterThan(0)
  expect(ops.length).toBeLessThan(12)
  // The slot has not heard of what was read, and then what it has heard is lost.
  await server.stop('immediate')
  await expect(reader.read(session)).rejects.toThrow()
  await server.startAgain()
  await write(13, 20)
  const again = await server.session()
  take(await reader.read(again))
  take(await reader.read(again))
  await server.stop('immediate')
  await server.startAgain()
  await write(21, 25)
  const last = await server.session()
  take(await reader.readRest(last))
  expect(ops).toEqual(Array.from({ length: 25 }, (_, index) => index + 1))
  expect(await reader.read(last)).toEqual([])
  await last.query('select pg_drop_replication_slot($1)', ['portions'])
  await last.end()
})

test('a portion without anything to tell is not the end', async () => {
  const client = await server.session()
  const reader = await LogReader.create(client, { slot: 'unwatched', portion: 2 })
  await client.query('create table other (n integer)')
  for (let n = 0; n < 10; n += 1) {
    // oxlint-disable-next-line no-await-in-loop -- Each in a transaction of its own.
    await client.query('insert into other values ($1)', [n])
  }
  await client.query(`insert into torture.write values ('L', 1, 'r', 'c1', 1)`)
  expect(changesOf(await reader.read(client))).toHaveLength(1)
  await client.query('select pg_drop_replication_slot($1)', ['unwatched'])
  await client.end()
})

test('nothing is guessed where rows are taken away behind the log', async () => {
  const { rest } = await reading('truncated')
  await server.query('truncate torture.write')
  await expect(rest()).rejects.toThrow('torture.write was truncated')
  await server.query('select pg_drop_replication_slot($1)', ['truncated'])
})
