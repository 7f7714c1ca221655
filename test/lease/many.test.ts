import { expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()

let count = 0
function uniqueNames(length: number): string[] {
  count += 1
  return Array.from({ length }, (_, index) => `${count}/${index}`)
}

test('thousands of independent leases are taken and given back in a few statements', async () => {
  const proxy = await TcpProxy.start(database.url)
  const fencepost = await database.open({ connectionString: proxy.url })
  const statements = { acquire: 0, release: 0 }
  let lastSent: Buffer | undefined
  proxy.onReply((_, sent) => {
    // An answer may come in several pieces.
    if (sent !== lastSent) {
      if (sent.includes('fencepost_acquire')) statements.acquire += 1
      if (sent.includes('fencepost_release')) statements.release += 1
    }
    lastSent = sent
    return 'pass'
  })
  const names = uniqueNames(3000)
  const leases = await fencepost.acquireMany(names)
  expect([...leases.keys()]).toEqual(names)
  expect(new Set([...leases.values()].map((lease) => lease.token)).size).toBe(3000)
  expect([...leases.values()].every((lease) => lease.isHeld)).toBe(true)
  const outcomes = await fencepost.releaseMany(leases.values())
  expect(outcomes).toEqual(Array.from({ length: 3000 }, () => 'released'))
  const held = await database.query(
    'select from fencepost.lease where name = any ($1) and holder_id is not null',
    [names],
  )
  expect(held).toEqual([])
  expect(statements.acquire).toBeGreaterThan(0)
  expect(statements.acquire).toBeLessThanOrEqual(3)
  expect(statements.release).toBeLessThanOrEqual(3)
  await proxy.stop()
})

test('of many leases those that are held are left out', async () => {
  const [fencepost, other] = [await database.open(), await database.open()]
  const names = uniqueNames(5)
  await using held = await other.acquire(names[1]!)
  await using own = await fencepost.acquire(names[3]!)
  expect([held.isHeld, own.isHeld]).toEqual([true, true])
  const leases = await fencepost.acquireMany(names)
  expect([...leases.keys()]).toEqual([names[0], names[2], names[4]])
  expect(await fencepost.releaseMany(leases.values())).toEqual(['released', 'released', 'released'])
})

test('of many leases none stays when a statement failed', async () => {
  const fencepost = await database.open()
  const names = uniqueNames(3)
  await using other = await fencepost.acquire(names[1]!, { sequence: 'another' })
  await other.release()
  await expect(fencepost.acquireMany(names)).rejects.toMatchObject({ code: 'SEQUENCE_MISMATCH' })
  const held = await database.query(
    'select from fencepost.lease where name = any ($1) and holder_id is not null',
    [names],
  )
  expect(held).toEqual([])
})

test.each<[string, unknown]>([
  ['no names', []],
  ['one twice', ['a', 'a']],
  ['more than 10,000', Array.from({ length: 10_001 }, String)],
  ['a name that is none', ['a', '\n']],
])('many leases of %s are refused before any SQL', async (_, names) => {
  const fencepost = await database.open()
  await expect(fencepost.acquireMany(names as string[])).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
})
