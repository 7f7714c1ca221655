import { Client } from 'pg'
import { Fencepost, type Lease } from '../src/index.ts'
import { median } from './side-by-side.ts'

interface Ratio {
  readonly median: number
  readonly min: number
  readonly max: number
}

export interface WallFigures {
  /** Duration on a protected table ÷ on a plain one, by statement and kind of protection. */
  readonly bulk: Record<string, Ratio>
  /** The longest time that one of 8 writers had to wait for an update, in ms, with and without the change. */
  readonly locks: Record<string, { readonly longestMs: number; readonly usualLongestMs: number }>
}

const lease = 'bench-wall'
const rowCount = 100_000
const tables = ['plain', 'checked', 'stamped', 'by_row'] as const

/** What the wall costs in bulk, and for how long it holds writers up while it is built. */
export async function measureWall(url: string, fencepost: Fencepost, rounds: number): Promise<WallFigures> {
  const client = new Client({ connectionString: url })
  await client.connect()
  await using held = await fencepost.acquire(lease)
  try {
    return {
      bulk: await measureBulk(url, client, held, rounds),
      locks: await measureLocks(url, client, held),
    }
  } finally {
    await client.end()
  }
}

async function measureBulk(
  url: string,
  client: Client,
  held: Lease,
  rounds: number,
): Promise<Record<string, Ratio>> {
  for (const table of tables) {
    await client.query(
      `create table ${table} (id integer primary key, owner text not null default '${lease}', value integer not null,
                              fence_token bigint not null default 0) with (fillfactor = 50)`,
    )
    await client.query(`insert into ${table} (id, value) select n, 0 from generate_series(1, ${rowCount}) n`)
  }
  await Fencepost.protect('checked', { connectionString: url, lease })
  await Fencepost.protect('stamped', { connectionString: url, lease, stamp: true })
  await Fencepost.protect('by_row', { connectionString: url, lease: '{owner}' })
  const run = async (table: string, statement: (table: string) => string): Promise<number> => {
    // What earlier rounds have left behind must not fall to this one.
    await client.query(`vacuum ${table}`)
    await client.query('checkpoint')
    await client.query('begin')
    await held.fence(client)
    const started = performance.now()
    await client.query(statement(table))
    const took = performance.now() - started
    await client.query('rollback')
    return took
  }
  const statements = {
    update: (table: string) => `update ${table} set value = value + 1`,
    insert: (table: string) =>
      `insert into ${table} (id, value) select n, 0 from generate_series(${rowCount + 1}, ${2 * rowCount}) n`,
    delete: (table: string) => `delete from ${table}`,
  }
  console.log('\nbulk: duration of 100,000 rows in one statement ÷ on a plain table; less is better')
  const figures: Record<string, Ratio> = {}
  for (const [name, statement] of Object.entries(statements)) {
    const ratios: Record<string, number[]> = {}
    for (let round = 0; round <= rounds; round += 1) {
      const plain = await run('plain', statement)
      for (const table of tables.slice(1)) {
        const ratio = (await run(table, statement)) / plain
        if (round > 0) (ratios[table] ??= []).push(ratio)
      }
    }
    for (const [table, values] of Object.entries(ratios)) {
      const ratio = { median: median(values), min: Math.min(...values), max: Math.max(...values) }
      figures[`${name} ${table}`] = ratio
      console.log(
        `bulk   ${name.padEnd(7)} ${table.padEnd(8)} ${ratio.median.toFixed(2)} (${ratio.min.toFixed(2)} … ${ratio.max.toFixed(2)})`,
      )
    }
  }
  return figures
}

async function measureLocks(url: string, client: Client, held: Lease): Promise<WallFigures['locks']> {
  await client.query('create table large (id integer primary key, value integer not null)')
  await client.query('insert into large select n, 0 from generate_series(1, 1000000) n')
  await client.query('vacuum analyze large')
  const writers = await Promise.all(
    Array.from({ length: 8 }, async () => {
      // Each has its fence, so that it can go on writing once the table is protected.
      const writer = new Client({ connectionString: url, options: held.environment['FENCEPOST_PGOPTIONS'] })
      await writer.connect()
      return writer
    }),
  )
  /** The longest wait of any writer while `change` runs. */
  const longestWait = async (change: () => Promise<unknown>): Promise<number> => {
    const done = new AbortController()
    let longest = 0
    const loops = writers.map(async (writer, index) => {
      for (let id = index + 1; !done.signal.aborted; id += 8) {
        const started = performance.now()
        await writer.query('update large set value = value + 1 where id = $1', [id])
        longest = Math.max(longest, performance.now() - started)
      }
    })
    await change()
    done.abort()
    await Promise.all(loops)
    return longest
  }
  const figures: Record<string, { longestMs: number; usualLongestMs: number }> = {}
  console.log('\nlocks: the longest that one of 8 writers waited for an update of a table of 1,000,000 rows')
  for (const [name, change] of [
    ['protect', () => Fencepost.protect('large', { connectionString: url, lease })],
    [
      'protect again, with row stamps',
      () => Fencepost.protect('large', { connectionString: url, lease, stamp: true }),
    ],
    ['unprotect', () => Fencepost.unprotect('large', { connectionString: url })],
  ] as const) {
    const started = performance.now()
    const longestMs = await longestWait(change)
    const took = performance.now() - started
    // The same time again without the change, for what a writer waits anyhow.
    const usualLongestMs = await longestWait(() => new Promise((resolve) => setTimeout(resolve, took)))
    figures[name] = { longestMs, usualLongestMs }
    console.log(
      `locks  ${name.padEnd(36)} ${longestMs.toFixed(0)} ms; ${usualLongestMs.toFixed(0)} ms without it; the change took ${took.toFixed(0)} ms`,
    )
  }
  await Promise.all(writers.map((writer) => writer.end()))
  return figures
}
