import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { systemClock } from '../../src/clock.ts'
import { Connection } from '../../src/database/connection.ts'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { RequestFailure } from '../../src/database/failure.ts'
import { silent } from '../../src/logger.ts'
import { eventually } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { awaitStandby, cancelWaits } from '../support/standby.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { startEmbedded } from '../support/embedded.ts'

const database = useDatabase()
const lockKey = 7_700_090
const timeoutMs = 60_000

let proxy: TcpProxy
/** What clients have sent through the proxy. */
let sent = ''

beforeAll(async () => {
  proxy = await TcpProxy.start(database.url)
  proxy.onRequest((data) => {
    sent += data.toString('latin1')
  })
})

afterAll(() => proxy.stop())

const connectionTo = (connectionString: string) => {
  const connection = new Connection(
    {
      config: { connectionString },
      applicationName: 'fencepost connection test',
      clock: systemClock,
      logger: silent,
    },
    { columns: {}, check() {} },
  )
  onTestFinished(() => connection.close())
  return connection
}

const isSent = (text: string) => eventually(async () => sent.includes(text))

/** A request that the database answers when the returned function is called. */
async function held(connection: Connection) {
  const blocker = await database.session()
  await blocker.query(`select pg_advisory_lock(${lockKey})`)
  const answer = connection.query({
    text: `select 'held' as text from pg_advisory_xact_lock(${lockKey})`,
    timeoutMs,
  })
  answer.catch(() => {})
  await eventually(
    async () =>
      (await database.query(`select from pg_locks where objid = ${lockKey} and not granted`)).length === 1,
  )
  return { answer, letGo: () => blocker.query(`select pg_advisory_unlock(${lockKey})`) }
}

describe('requests on one connection', () => {
  test('are sent before the last one is answered, and answered in their order', async () => {
    const connection = connectionTo(proxy.url)
    await connection.connect(timeoutMs)
    const first = await held(connection)
    const second = connection.query({ text: `select 'the second' as text`, timeoutMs })
    await isSent('the second')
    const order: unknown[] = []
    const both = [first.answer, second].map(async (answer) => order.push((await answer)[0]))
    await first.letGo()
    await Promise.all(both)
    expect(order).toEqual([{ text: 'held' }, { text: 'the second' }])
  })

  test('are transactions of their own: what one is refused does not touch the next', async () => {
    const connection = connectionTo(proxy.url)
    await connection.connect(timeoutMs)
    const first = await held(connection)
    const refused = connection.query({ text: 'select 1 / 0', timeoutMs })
    refused.catch(() => {})
    const next = connection.query({ text: `select 'the next' as text`, timeoutMs })
    await isSent('the next')
    await first.letGo()
    await expect(refused).rejects.toMatchObject({ effect: 'refused', sqlState: '22012' })
    expect(await next).toEqual([{ text: 'the next' }])
  })

  test('are all unknown when the connection breaks, and the next one connects anew', async () => {
    const connection = connectionTo(proxy.url)
    await connection.connect(timeoutMs)
    const first = await held(connection)
    const second = connection.query({ text: `select 'cut off'`, timeoutMs })
    second.catch(() => {})
    await isSent('cut off')
    proxy.cut()
    for (const answer of [first.answer, second]) {
      // oxlint-disable-next-line no-await-in-loop
      const error: unknown = await answer.catch((reason: unknown) => reason)
      expect(error).toBeInstanceOf(RequestFailure)
      expect(error).toMatchObject({ effect: 'unknown' })
    }
    await first.letGo()
    expect(await connection.query({ text: `select 'anew' as text`, timeoutMs })).toEqual([{ text: 'anew' }])
  })

  test('are answered before the connection closes, and none is taken after that', async () => {
    const connection = connectionTo(proxy.url)
    await connection.connect(timeoutMs)
    const first = await held(connection)
    const second = connection.query({ text: `select 'before the end' as text`, timeoutMs })
    await isSent('before the end')
    const closing = connection.close()
    await expect(connection.query({ text: 'select 1', timeoutMs })).rejects.toMatchObject({
      effect: 'unsent',
    })
    await first.letGo()
    expect(await first.answer).toEqual([{ text: 'held' }])
    expect(await second).toEqual([{ text: 'before the end' }])
    await closing
  })

  test('that have no answer in time take those after them along', async () => {
    const connection = connectionTo(proxy.url)
    await connection.connect(timeoutMs)
    const blocker = await held(connection)
    const late = connection.query({ text: `select 'too late'`, timeoutMs: 50 })
    const behind = connection.query({ text: `select 'behind it'`, timeoutMs })
    behind.catch(() => {})
    await expect(late).rejects.toMatchObject({ effect: 'unknown' })
    await expect(behind).rejects.toMatchObject({ effect: 'unknown' })
    await expect(blocker.answer).rejects.toMatchObject({ effect: 'unknown' })
    await blocker.letGo()
  })

  test.skipIf(pgbouncerReason() !== undefined)('wait for each other before a pooler', async () => {
    await using pooler = await PgBouncer.start(database.url)
    const between = await TcpProxy.start(pooler.url)
    onTestFinished(() => between.stop())
    let heard = ''
    between.onRequest((data) => {
      heard += data.toString('latin1')
    })
    const connection = connectionTo(between.url)
    await connection.connect(timeoutMs)
    const first = await held(connection)
    const second = connection.query({ text: `select 'in turn' as text`, timeoutMs })
    // A turn of the event loop is what a request takes to be sent.
    await new Promise((resolve) => setImmediate(resolve))
    expect(heard).not.toContain('in turn')
    await first.letGo()
    expect(await second).toEqual([{ text: 'in turn' }])
    expect(heard).toContain('in turn')
  })
})

describe('a wait for a synchronous standby that is cancelled', () => {
  let server: EmbeddedServer
  let directory: string
  let watcher: Client

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'fencepost-standby-'))
    server = await startEmbedded({ directory, settings: { fsync: 'off' } })
    watcher = new Client({ connectionString: server.url })
    await watcher.connect()
    await watcher.query('set synchronous_commit = local')
    await watcher.query('create table notes (id integer)')
    await awaitStandby(watcher, server.url)
  })

  afterAll(async () => {
    await watcher.end()
    await server.stop('immediate')
    await rm(directory, { recursive: true, force: true })
  })

  const write = 'insert into notes values (1)'
  const look = `select 'looked' as text`

  test.each([
    ['first', [write, look], ['unknown', 'answered']],
    ['last', [look, write], ['answered', 'unknown']],
    ['in the middle', [look, write, look], ['answered', 'unknown', 'answered']],
  ])('puts the request in doubt that it was about, and no other: the %s one', async (_, texts, outcomes) => {
    const connection = connectionTo(server.url)
    await connection.connect(timeoutMs)
    const answers = texts.map((text) =>
      connection.query({ text, timeoutMs }).then(
        () => 'answered',
        (error: unknown) => (error instanceof RequestFailure ? error.effect : error),
      ),
    )
    await eventually(() => cancelWaits(watcher))
    expect(await Promise.all(answers)).toEqual(outcomes)
  })
})
