import { Pool } from 'pg'
import { describe, expect, onTestFinished, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
const reason = pgbouncerReason()
const why = reason === undefined ? '' : ` (skipped: ${reason})`

/** A pooler whose connections to the server can be cut: then it tells its clients so, in words of its own. */
async function cutBehind(): Promise<{ url: string; proxy: TcpProxy }> {
  const proxy = await TcpProxy.start(database.url)
  onTestFinished(() => proxy.stop())
  const bouncer = await PgBouncer.start(proxy.url)
  onTestFinished(() => bouncer.stop())
  return { url: bouncer.url, proxy }
}

describe.skipIf(reason !== undefined).each([why])('a pooler that loses its server%s', () => {
  test('leaves the outcome of a COMMIT unknown: it may have been done', async () => {
    const { url, proxy } = await cutBehind()
    await database.query('create table kept (id integer primary key)')
    const fencepost = await database.open()
    const pool = new Pool({ connectionString: url })
    pool.on('error', () => {})
    onTestFinished(() => pool.end())
    const lease = await fencepost.acquire('in doubt', { ttl: '30s' })
    const writing = lease.transaction(pool, async (client) => {
      await client.query('insert into kept values (1)')
      proxy.onReply((_reply, sent) => (/commit/i.test(sent.toString('latin1')) ? 'cut' : 'pass'))
    })
    await expect(writing).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    proxy.onReply(undefined)
    expect(await database.query('select id from kept')).toEqual([{ id: 1 }])
    await lease.release()
  })

  test('is waited for', async () => {
    const { url, proxy } = await cutBehind()
    const fencepost = await database.open({ connectionString: url })
    await (await fencepost.acquire('waited for')).release()
    let cuts = 0
    proxy.onReply((_reply, sent) => {
      if (!sent.toString('latin1').includes('fencepost.acquire') || cuts > 0) return 'pass'
      cuts += 1
      return 'cut'
    })
    const lease = await fencepost.acquire('waited for', { wait: '20s' })
    expect(cuts).toBe(1)
    expect(lease.isHeld).toBe(true)
    await lease.release()
  })
})
