import { Fencepost } from '../../src/index.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, ratios, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

const lease = 'bench-bulk'
const rowCount = 100_000
const tables = ['plain', 'checked', 'stamped', 'by_row'] as const

/** By statement and kind of protection. */
export type BulkFigures = Readonly<Record<string, Spread>>

export const bulk: Measure<BulkFigures> = {
  name: 'bulk',
  group: 'wall',
  what: '100,000 rows in one statement on a protected table, duration ÷ the same on a plain table; less is better',
  async run(effort) {
    await using server = await BenchServer.start()
    const { url, db } = server
    const fencepost = await server.open()
    const held = await fencepost.acquire(lease)
    for (const table of tables) {
      await db.query(
        `create table ${table} (id integer primary key, owner text not null default '${lease}', value integer not null,
                                fence_token bigint not null default 0) with (fillfactor = 50)`,
      )
      await db.query(`insert into ${table} (id, value) select n, 0 from generate_series(1, ${rowCount}) n`)
    }
    await Fencepost.protect('checked', { connectionString: url, lease })
    await Fencepost.protect('stamped', { connectionString: url, lease, stamp: true })
    await Fencepost.protect('by_row', { connectionString: url, lease: '{owner}' })
    const run = async (table: string, statement: (table: string) => string): Promise<number> => {
      // What earlier rounds have left behind must not fall to this one.
      await db.query(`vacuum ${table}`)
      await db.query('checkpoint')
      await db.query('begin')
      await held.fence(db)
      const started = performance.now()
      await db.query(statement(table))
      const took = performance.now() - started
      await db.query('rollback')
      return took
    }
    const statements = {
      update: (table: string) => `update ${table} set value = value + 1`,
      insert: (table: string) =>
        `insert into ${table} (id, value) select n, 0 from generate_series(${rowCount + 1}, ${2 * rowCount}) n`,
      delete: (table: string) => `delete from ${table}`,
    }
    const figures: Record<string, Spread> = {}
    for (const [name, statement] of Object.entries(statements)) {
      const taken: Record<string, number[]> = {}
      for (let round = 0; round <= effort.rounds; round += 1) {
        for (const table of tables) {
          const ms = await run(table, statement)
          if (round > 0) (taken[table] ??= []).push(ms)
        }
      }
      for (const table of tables.slice(1)) {
        const ratio = spread(ratios(taken[table]!, taken['plain']!))
        figures[`${name} ${table}`] = ratio
        console.log(`${name.padEnd(7)} ${table.padEnd(8)} ${shown(ratio)}`)
      }
    }
    return figures
  },
}
