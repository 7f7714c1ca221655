import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost, FencedRepository, StaleTermError } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'

const reason = pgbouncerReason()
if (reason !== undefined) console.log(`the pooler's tests are skipped: ${reason}`)

const database = useDatabase()
const empty = useDatabase({ migrated: false })

interface Tables {
  accounts: { id: number; status: string; fence_token: string }
}

// Skipped only where PgBouncer is not installed; CI installs it.
describe.skipIf(reason !== undefined)(
  'behind PgBouncer in transaction mode, with two server sessions',
  () => {
    let bouncer: PgBouncer

    beforeAll(async () => {
      await database.query(`create table accounts
      (id integer primary key, status text not null, fence_token bigint not null default 0)`)
      bouncer = await PgBouncer.start(database.url)
    })
    afterAll(() => bouncer.stop())

    const through = (url: string): string => {
      const pooled = new URL(bouncer.url)
      pooled.pathname = new URL(url).pathname
      return pooled.href
    }

    test('many processes take, keep, guard and give back leases', async () => {
      const connectionString = through(database.url)
      const all = await Promise.all(Array.from({ length: 10 }, () => database.open({ connectionString })))
      const db = database.kysely<Tables>({ connectionString })
      const accounts = new FencedRepository<Tables, 'accounts'>(db, 'accounts', { key: 'id' })
      let inside = 0
      await Promise.all(
        all.map(async (fencepost, index) => {
          for (let turn = 0; turn < 5; turn += 1) {
            await fencepost.withLease('shared', { ttl: '2s', wait: '60s' }, async (lease) => {
              inside += 1
              expect(inside).toBe(1)
              await lease.transaction(db, (tx) => accounts.upsert(tx, { id: 1, status: `${index}/${turn}` }))
              await accounts.update(lease, 1, { status: 'done' })
              inside -= 1
            })
          }
        }),
      )
      const lease = await all[0]!.acquire('stale here')
      const { term } = lease
      await lease.release()
      await all[1]!.acquire('stale here')
      await expect(accounts.upsert({ term }, { id: 1, status: 'stale' })).rejects.toThrow(StaleTermError)
      await Promise.all(all.map((fencepost) => fencepost.close()))
    })

    test('heartbeats go on', async () => {
      const fencepost = await database.open({ connectionString: through(database.url) })
      const lease = await fencepost.acquire('beating', { ttl: '300ms' })
      const expiry = async (): Promise<Date> =>
        (
          await database.query<{ at: Date }>('select expires_at as at from fencepost.holder where id = $1', [
            lease.term.holderId,
          ])
        )[0]!.at
      const first = await expiry()
      await expect
        .poll(async () => (await expiry()).getTime() - first.getTime(), { timeout: 10_000 })
        .toBeGreaterThan(600)
      expect(lease.isHeld).toBe(true)
    })

    test('nothing of a session is left behind for others: no setting, no lock, no prepared statement', async () => {
      const fencepost = await database.open({ connectionString: through(database.url) })
      const lease = await fencepost.acquire('tidy')
      const pool = database.newPool({ connectionString: through(database.url), max: 4 })
      await lease.transaction(pool, (client) => client.query('select 1'))
      await lease.release()
      for (let turn = 0; turn < 20; turn += 1) {
        const { rows } = await pool.query<Record<string, string>>(`
        select coalesce(current_setting('fencepost.fence', true), '') as fence,
               current_setting('idle_in_transaction_session_timeout') as idle,
               current_setting('synchronous_commit') as durable,
               current_setting('transaction_isolation') as isolation,
               (select count(*) from pg_prepared_statements)::text as prepared,
               (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())::text as locks`)
        expect(rows[0]).toEqual({
          fence: '',
          idle: '0',
          durable: 'on',
          isolation: 'read committed',
          prepared: '0',
          locks: '0',
        })
      }
    })

    test('a stricter default isolation is neither changed for others nor shown to callers', async () => {
      const name = new URL(database.url).pathname.slice(1)
      await database.query(`alter database ${name} set default_transaction_isolation = 'serializable'`)
      const strict = await PgBouncer.start(database.url)
      try {
        const all = await Promise.all(
          Array.from({ length: 4 }, () => database.open({ connectionString: strict.url, ttl: '2s' })),
        )
        await Promise.all(
          all.map(async (fencepost) => {
            for (let turn = 0; turn < 10; turn += 1) {
              await fencepost.withLease('strict', { wait: '60s' }, async (lease) => {
                expect(lease.isHeld).toBe(true)
              })
            }
          }),
        )
        const pool = database.newPool({ connectionString: strict.url })
        expect((await pool.query('show transaction_isolation')).rows).toEqual([
          { transaction_isolation: 'serializable' },
        ])
        await Promise.all(all.map((fencepost) => fencepost.close()))
      } finally {
        await database.query(`alter database ${name} reset default_transaction_isolation`)
        await strict.stop()
      }
    })

    test('the schema is installed, by many at once, and no lock stays', async () => {
      const connectionString = through(empty.url)
      const results = await Promise.all(
        Array.from({ length: 8 }, () => Fencepost.migrate({ connectionString })),
      )
      // One of them has done it all.
      expect(results.filter((result) => result.migrations.length > 0)).toHaveLength(1)
      expect(
        await empty.query(`select from pg_locks where locktype = 'advisory'
      and database = (select oid from pg_database where datname = current_database())`),
      ).toEqual([])
    })
  },
)
