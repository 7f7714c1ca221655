import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { fullDisk } from '../../torture/faults/disk-data.ts'
import { fullWal } from '../../torture/faults/disk-wal.ts'
import { SmallDisk } from '../../torture/faults/small-disk.ts'
import { AfflictedServer } from './afflicted.ts'

const reason = await SmallDisk.reason()
const why = reason === undefined ? '' : ` (skipped: ${reason})`

async function isMounted(path: string): Promise<boolean> {
  return (await readFile('/proc/mounts', 'utf8')).includes(` ${path} `)
}

describe.skipIf(reason !== undefined).each([why])('a disk%s', () => {
  let server: AfflictedServer

  beforeAll(async () => {
    server = await AfflictedServer.start()
  })
  afterAll(() => server[Symbol.asyncDispose]())

  async function mounts(): Promise<string[]> {
    const folder = join(server.embedded.dataDirectory, '..')
    return (await readFile('/proc/mounts', 'utf8')).split('\n').filter((line) => line.includes(folder))
  }

  test('of the tables that is full refuses what needs room, and no more once it has some', async () => {
    const fencepost = await server.open()
    const lease = await fencepost.acquire('while full', { ttl: '3s' })
    const affliction = await server.inflict(fullDisk)
    const write = `insert into job (note) select repeat('x', 1000) from generate_series(1, 100)`
    await expect(server.query(write)).rejects.toMatchObject({ code: '53100' })
    // The heartbeat finds room in its page.
    const expiry = (): Promise<unknown[]> =>
      server.query('select expires_at from fencepost.holder where id = $1', [lease.term.holderId])
    const before = await expiry()
    await expect.poll(expiry).not.toEqual(before)
    await affliction.heal()
    expect(await mounts()).toEqual([])
    expect(
      await server.query(`select from pg_tablespace where spcname not in ('pg_default', 'pg_global')`),
    ).toEqual([])
    await server.query(write)
    expect(await lease.release()).toBe('released')
    await server.stop('immediate')
    await server.startAgain()
    expect(await server.query('select count(*)::int as count from job')).toEqual([{ count: 100 }])
    await (await fencepost.acquire('while full', { wait: '20s' })).release()
  })

  test('of the log that is full has the server panic, and it goes on once it has room', async () => {
    const fencepost = await server.open()
    const lease = await fencepost.acquire('without a log', { ttl: '30s' })
    const affliction = await server.inflict(fullWal)
    // Then it recovers, which may find a little room and end in the same way again, or may end it for good.
    const log = join(server.embedded.dataDirectory, '..', 'server.log')
    await expect.poll(() => readFile(log, 'utf8')).toMatch(/PANIC:.*No space left on device/)
    await affliction.heal()
    expect(await mounts()).toEqual([])
    expect(await server.query(`select token from fencepost.lease where name = 'without a log'`)).toEqual([
      { token: lease.term.token.toString() },
    ])
    await server.query(`insert into job (note) values ('after')`)
    await lease.release()
    const next = await fencepost.acquire('without a log', { wait: '20s' })
    expect(next.term.token).toBeGreaterThan(lease.term.token)
    await next.release()
  })

  test('is unmounted when the process that mounted it is killed', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'fencepost-small-'))
    onTestFinished(() => rm(folder, { recursive: true }))
    const path = join(folder, 'disk')
    const script = `
      const { SmallDisk } = await import(${JSON.stringify(new URL('../../torture/faults/small-disk.ts', import.meta.url).href)})
      await SmallDisk.mount(${JSON.stringify(path)}, 65536, ${JSON.stringify(folder)})
      console.log('mounted')
      setInterval(() => {}, 1000)`
    const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    await once(child.stdout, 'data')
    expect(await isMounted(path)).toBe(true)
    child.kill('SIGKILL')
    await expect.poll(() => isMounted(path)).toBe(false)
  })
})
