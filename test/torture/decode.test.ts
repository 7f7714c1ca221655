import { afterAll, beforeAll, expect, test } from 'vitest'
import { LogReader } from '../../torture/decode/log-reader.ts'
import { createTortureTables } from '../../torture/decode/tables.ts'
import type { Change, Committed } from '../../torture/history.ts'
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

function changesOf(transactions: readonly Committed[]): Change[] {
  return transactions.flatMap(({ changes }) => changes)
}

test('a grant and its release are read as they were committed', async () => {
  const client = await server.session()
  const reader = await LogReader.create(client, 'a_grant')
  const fencepost = await server.open({ label: 'c1' })
  const lease = await fencepost.acquire('it\'s "quoted"', { ttl: 1500 })
  await lease.release()
  const changes = changesOf(await reader.readRest(client))

  const { holderId } = lease.term
  expect(changes.filter(({ table }) => table === 'lease')).toEqual([
    expect.objectContaining({ how: 'insert', name: 'it\'s "quoted"', token: '0', holderId: null }),
    expect.objectContaining({
      how: 'update',
      name: 'it\'s "quoted"',
      token: `${lease.token}`,
      holderId,
      deadlineUs: null,
    }),
    expect.objectContaining({
      how: 'update',
      name: 'it\'s "quoted"',
      token: `${lease.token}`,
      holderId: null,
    }),
  ])
  expect(changes.find(({ table }) => table === 'holder')).toMatchObject({
    id: holderId,
    label: 'c1',
    ttlUs: 1_500_000,
    endedAtUs: null,
  })
  expect(await reader.read(client)).toEqual([])
  await client.end()
})
