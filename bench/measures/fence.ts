import { Kysely, PostgresDialect } from 'kysely'
import { Fencepost, type FencedTransactionOptions } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

export const fence: Measure<readonly Figure[]> = {
  name: 'fence',
  group: 'throughput',
  what: 'a fenced transaction with one update ÷ the same transaction without the fence, on a pg pool and on Kysely, begun at once and with its first statement, and on a protected table; more is better',
  async run(effort) {
    await using server = await BenchServer.start()
    await server.createFloor()
    await server.createFloor('wall')
    const fencepost = await server.open()
    const held = await fencepost.acquire('bench-fence')
    await Fencepost.protect('wall', { connectionString: server.url, lease: 'bench-fence' })
    const unfenced: Contender = {
      name: 'unfenced',
      server,
      run(workers, forMs) {
        const pool = server.pool(workers)
        return load(workers, forMs, async (worker) => {
          const client = await pool.connect()
          await client.query('begin')
          await client.query(update('floor', worker))
          await client.query('commit')
          client.release()
        })
      },
    }
    const fenced = (name: string, table: string, options?: FencedTransactionOptions): Contender => ({
      name,
      server,
      run(workers, forMs) {
        const pool = server.pool(workers)
        return load(workers, forMs, (worker) =>
          held.transaction(pool, (client) => client.query(update(table, worker)), options),
        )
      },
    })
    // The least that keeps the next term away, written by hand for this one lease: its row is locked, and nothing else looked at.
    const byHand = (name: string, isWithFirst: boolean): Contender => ({
      name,
      server,
      run(workers, forMs) {
        const pool = server.pool(workers, { pipeline: true })
        const { lease, token, holderId } = held.term
        const lock = {
          name: 'lock',
          text: 'select from fencepost.lease where name = $1 and token = $2 and holder_id = $3 for share',
          values: [lease, token, holderId],
        }
        return load(workers, forMs, async (worker) => {
          const client = await pool.connect()
          const begun = Promise.all([client.query('begin'), client.query(lock)])
          if (!isWithFirst) await begun
          await client.query(update('floor', worker))
          await begun
          await client.query('commit')
          client.release()
        })
      },
    })
    const databases = new Map<number, Kysely<Database>>()
    const on = (workers: number): Kysely<Database> => {
      let db = databases.get(workers)
      if (db === undefined) {
        db = new Kysely({ dialect: new PostgresDialect({ pool: server.pool(workers) }) })
        databases.set(workers, db)
      }
      return db
    }
    const unfencedOnKysely: Contender = {
      name: 'unfenced, Kysely',
      server,
      run: (workers, forMs) =>
        load(workers, forMs, (worker) =>
          on(workers)
            .transaction()
            .execute((tx) => updateOn(tx, worker).execute()),
        ),
    }
    const fencedOnKysely = (name: string, options?: FencedTransactionOptions): Contender => ({
      name,
      server,
      run: (workers, forMs) =>
        load(workers, forMs, (worker) =>
          held.transaction(on(workers), (tx) => updateOn(tx, worker).execute(), options),
        ),
    })
    const withFirst = { begin: 'with-first-statement' } as const
    const figures = await interleave(
      [
        unfenced,
        fenced('fenced', 'floor'),
        fenced('fenced, with the first statement', 'floor', withFirst),
        byHand('by hand', false),
        byHand('by hand, with the first statement', true),
        fenced('fenced, protected table', 'wall'),
        unfencedOnKysely,
        fencedOnKysely('fenced, Kysely'),
        fencedOnKysely('fenced, Kysely, with the first statement', withFirst),
      ],
      [1, 8, 64],
      effort,
    )
    console.log(figureTable(figures))
    return figures
  },
}

interface Database {
  floor: { id: number; value: number }
}

function updateOn(db: Kysely<Database>, worker: number) {
  return db
    .updateTable('floor')
    .set((eb) => ({ value: eb('value', '+', 1) }))
    .where('id', '=', worker)
}

function update(table: string, worker: number): { name: string; text: string; values: unknown[] } {
  return { name: table, text: `update ${table} set value = value + 1 where id = $1`, values: [worker] }
}
