import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { RunReport } from '../../src/cli/run-report.ts'
import { SignalGuard } from '../../src/cli/signal-guard.ts'
import { supervise } from '../../src/cli/supervise.ts'
import { eventually } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()
let directory = ''

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'fencepost-supervise-'))
})
afterAll(async () => {
  await rm(directory, { recursive: true, force: true })
})

const report = new RunReport({ lease: 'any', write: () => {} })
const hourMs = 3_600_000

test('a command is not started under a lease that was lost before', async () => {
  using guard = new SignalGuard()
  const marker = join(directory, 'lost')
  const fencepost = await database.open()
  const lease = await fencepost.acquire('lost')
  await fencepost.close()
  expect(await supervise(lease, ['touch', marker], { graceMs: 0, guard, report })).toEqual({
    code: undefined,
    loss: 'lost',
  })
  expect(existsSync(marker)).toBe(false)
})

test('a command is not started when a signal has come before', async () => {
  using guard = new SignalGuard()
  const marker = join(directory, 'stopped')
  const fencepost = await database.open()
  await using lease = await fencepost.acquire('stopped')
  process.emit('SIGTERM', 'SIGTERM')
  expect(guard.received).toBe('SIGTERM')
  expect(await supervise(lease, ['touch', marker], { graceMs: 0, guard, report })).toEqual({
    code: undefined,
    loss: undefined,
  })
  expect(existsSync(marker)).toBe(false)
})

test('a command is started under a lease that is held', async () => {
  using guard = new SignalGuard()
  const marker = join(directory, 'held')
  const fencepost = await database.open()
  await using lease = await fencepost.acquire('held')
  expect(await supervise(lease, ['touch', marker], { graceMs: 0, guard, report })).toEqual({
    code: 0,
    loss: undefined,
  })
  expect(existsSync(marker)).toBe(true)
})

test.for(['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const)(
  'the grace after a loss is ended by %s, and by no signal that only tells something',
  async (signal) => {
    using guard = new SignalGuard()
    const marker = join(directory, signal)
    const fencepost = await database.open()
    const lease = await fencepost.acquire(signal, { ttl: '1d' })
    const script = `exec 2>/dev/null; trap "" INT TERM HUP QUIT; trap "touch ${marker}.told" USR1; touch ${marker}; while test -e ${marker}; do sleep 0.01; done`
    const end = supervise(lease, ['sh', '-c', script], { graceMs: hourMs, guard, report })
    await eventually(() => existsSync(marker))
    await fencepost.close()
    process.emit('SIGUSR1', 'SIGUSR1')
    await eventually(() => existsSync(`${marker}.told`))
    process.emit(signal, signal)
    expect(await end).toEqual({ code: 137, loss: 'lost' })
  },
)
