import { Kysely, PostgresDialect } from 'kysely'
import { FencedRepository } from '../../src/index.ts'
import { type Contender, type Figure, interleave, load } from '../rounds.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, ratios, shown, spread } from '../spread.ts'
import { figureTable } from '../table.ts'
import type { Measure } from './measure.ts'

interface Row {
  id: number
  value: number
  fence_token: string
}

interface Database {
  floor: Row
  many: Row
}

class Repository<T extends keyof Database> extends FencedRepository<Database, T> {}

export interface RepositoryFigures {
  readonly single: readonly Figure[]
  /** The duration of one update of 10,000 rows through a repository ÷ the plain one's. */
  readonly tenThousand: Spread
}

const manyRows = 10_000

export const repository: Measure<RepositoryFigures> = {
  name: 'repository',
  group: 'throughput',
  what: 'a write through a fenced repository, outside a transaction ÷ the same plain write through Kysely; more is better. 10,000 rows: duration ÷ the plain one, less is better',
  async run(effort) {
    await using server = await BenchServer.start()
    await server.createFloor()
    const fencepost = await server.open()
    const held = await fencepost.acquire('bench-repository')
    const on = (workers: number): Kysely<Database> =>
      new Kysely({ dialect: new PostgresDialect({ pool: server.pool(workers) }) })
    const plain: Contender = {
      name: 'plain, Kysely',
      server,
      run(workers, forMs) {
        const db = on(workers)
        return load(workers, forMs, (worker) =>
          db
            .updateTable('floor')
            .set({ value: worker })
            .where('id', '=', worker)
            .returningAll()
            .executeTakeFirst(),
        )
      },
    }
    const fenced: Contender = {
      name: 'repository',
      server,
      run(workers, forMs) {
        const floor = new Repository(on(workers), 'floor', { key: 'id' })
        return load(workers, forMs, (worker) => floor.update(held, worker, { value: worker }))
      },
    }
    const prepared: Contender = {
      name: 'plain, prepared with pg',
      server,
      run(workers, forMs) {
        const pool = server.pool(workers)
        const text = 'update floor set value = $2 where id = $1 returning *'
        return load(workers, forMs, (worker) => pool.query({ name: 'plain', text, values: [worker, worker] }))
      },
    }
    const single = await interleave([plain, fenced, prepared], [1, 8, 64], effort)
    console.log(figureTable(single))

    await server.db.query('create table many (like floor including all) with (fillfactor = 50)')
    await server.db.query(`insert into many (id, value) select n, 0 from generate_series(1, ${manyRows}) n`)
    const db = on(1)
    const many = new Repository(db, 'many', { key: 'id' })
    const timed = async (write: () => Promise<number>): Promise<number> => {
      // What earlier rounds have left behind must not fall to this one.
      await server.db.query('vacuum many')
      await server.db.query('checkpoint')
      const startedMs = performance.now()
      const written = await write()
      const tookMs = performance.now() - startedMs
      if (written !== manyRows) throw new Error(`${written} rows were written`)
      return tookMs
    }
    const [plainMs, fencedMs]: [number[], number[]] = [[], []]
    for (let round = 0; round <= effort.rounds; round += 1) {
      const base = await timed(async () => {
        const result = await db
          .updateTable('many')
          .set({ value: round })
          .where('id', '>', 0)
          .executeTakeFirst()
        return Number(result.numUpdatedRows)
      })
      const own = await timed(() => many.updateWhere(held, (eb) => eb('id', '>', 0), { value: round }))
      if (round === 0) continue
      plainMs.push(base)
      fencedMs.push(own)
    }
    const tenThousand = spread(ratios(fencedMs, plainMs))
    console.log(`10,000 rows in one statement, duration ÷ plain: ${shown(tenThousand)}`)
    return { single, tenThousand }
  },
}
