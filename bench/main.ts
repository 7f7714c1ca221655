// npm run bench [-- --rounds N] [--ms N] [--json FILE] [--only throughput|waiting|start-up]
//
// Compares fencepost with what the same PostgreSQL does at least for the same effect, side by side in one run:
//   lease     acquire + release of one lease per worker ÷ two prepared one-row UPDATEs by primary key, each committed
//   fence     a fenced transaction with one update ÷ the same transaction without the fence
//   wall      a fenced transaction with one update of a protected table ÷ the same on a plain table
//   session   one update of a protected table, in a session that has its fence (PGOPTIONS) ÷ the same on a plain table
// and, by duration, so that less is better (see wall.ts):
//   bulk      100,000 rows in one statement on a protected table ÷ the same on a plain table
//   locks     how long writers are held up while a table of 1,000,000 rows is protected and unprotected
//   hand-over from "release is called" to "the next one has it" ÷ the same of a blocking advisory lock, and of the least that a
//             durable lock with wake-ups can do (see hand-over.ts)
//   take-over from the death of a holder to the next grant ÷ the TTL (see take-over.ts)
//   start-up  from the start of a process to its first lease ÷ a bare script's (see start-up.ts)
// The server is the embedded PostgreSQL with durable settings, on this machine's disk.
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Pool, type PoolConfig } from 'pg'
import { EmbeddedServer } from '../src/database/embedded-server.ts'
import { Fencepost } from '../src/index.ts'
import { type Comparison, type Contender, compare, throughput } from './side-by-side.ts'
import { measureStartUp } from './start-up.ts'
import { measureWaiting } from './waiting.ts'
import { measureWall } from './wall.ts'

const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string', default: '9' },
    ms: { type: 'string', default: '1000' },
    json: { type: 'string' },
    only: { type: 'string' },
  },
})
const rounds = Number(options.rounds)
const forMs = Number(options.ms)
const poolSize = (workers: number): number => Math.min(workers, 20)

/** One set of connections per number of workers, opened once. */
function pools(url: string, config: PoolConfig = {}): { of(workers: number): Pool; end(): Promise<unknown> } {
  const bySize = new Map<number, Pool>()
  return {
    of(workers) {
      const size = poolSize(workers)
      const pool = bySize.get(size) ?? new Pool({ connectionString: url, max: size, min: size, ...config })
      bySize.set(size, pool)
      return pool
    },
    end: () => Promise.all([...bySize.values()].map((pool) => pool.end())),
  }
}

async function measureThroughput(): Promise<object> {
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-bench-'))
  const server = await EmbeddedServer.start({ directory })
  try {
    await Fencepost.migrate({ connectionString: server.url })
    const shared = pools(server.url)
    const fencepost = await Fencepost.open({ connectionString: server.url })
    const setup = shared.of(1)
    await setup.query(
      'create table floor (id integer primary key, value integer not null) with (fillfactor = 50)',
    )
    await setup.query('insert into floor select n, 0 from generate_series(0, 1023) n')

    const twoUpdates: Contender = (workers, ms) => {
      const pool = shared.of(workers)
      const update = (worker: number) =>
        pool.query({
          name: 'floor',
          text: 'update floor set value = value + 1 where id = $1',
          values: [worker],
        })
      return throughput(workers, ms, async (worker) => {
        await update(worker)
        await update(worker)
      })
    }
    const lease: Contender = (workers, ms) =>
      throughput(workers, ms, async (worker) => {
        const held = await fencepost.acquire(`bench-${worker}`)
        await held.release()
      })

    const held = await fencepost.acquire('bench-fence')
    const write = 'update floor set value = value + 1 where id = $1'
    const plain: Contender = (workers, ms) => {
      const pool = shared.of(workers)
      return throughput(workers, ms, async (worker) => {
        const client = await pool.connect()
        await client.query('begin')
        await client.query({ name: 'write', text: write, values: [worker] })
        await client.query('commit')
        client.release()
      })
    }
    const fenced: Contender = (workers, ms) => {
      const pool = shared.of(workers)
      return throughput(workers, ms, (worker) =>
        held.transaction(pool, (client) => client.query({ name: 'write', text: write, values: [worker] })),
      )
    }

    await setup.query('create table wall (like floor including all); insert into wall select * from floor')
    await Fencepost.protect('wall', { connectionString: server.url, lease: 'bench-fence' })
    const walled: Contender = (workers, ms) => {
      const pool = shared.of(workers)
      return throughput(workers, ms, (worker) =>
        held.transaction(pool, (client) =>
          client.query({
            name: 'wall',
            text: 'update wall set value = value + 1 where id = $1',
            values: [worker],
          }),
        ),
      )
    }
    const sessions = pools(server.url, { options: held.environment['FENCEPOST_PGOPTIONS'] })
    const single =
      (table: string): Contender =>
      (workers, ms) => {
        const pool = sessions.of(workers)
        return throughput(workers, ms, (worker) =>
          pool.query({
            name: table,
            text: `update ${table} set value = value + 1 where id = $1`,
            values: [worker],
          }),
        )
      }

    const results: Record<string, Comparison[]> = { lease: [], fence: [], wall: [], session: [] }
    console.log(
      `acquire + release ("lease"), fenced transactions ("fence"), and writes of a protected table ("wall", "session") per second ÷ ` +
        `their floors; more is better, 1.00 is the floor.\n` +
        `${rounds} rounds of ${forMs} ms each, A B A B …: median (lowest … highest)\n`,
    )
    for (const [name, floor, contender, counts] of [
      ['lease', twoUpdates, lease, [1, 8, 64, 512]],
      ['fence', plain, fenced, [1, 8, 64]],
      ['wall', fenced, walled, [1, 8, 64]],
      ['session', single('floor'), single('wall'), [1, 8, 64]],
    ] as const) {
      for (const workers of counts) {
        const result = await compare(floor, contender, workers, rounds, forMs)
        results[name]!.push(result)
        const { median, min, max } = result.ratio
        console.log(
          `${name.padEnd(7)} ${String(workers).padStart(4)} workers  ${median.toFixed(2)} (${min.toFixed(2)} … ${max.toFixed(2)})` +
            `  floor ${result.floorPerSecond}/s`,
        )
      }
    }
    const wall = await measureWall(server.url, fencepost, rounds)
    await fencepost.close()
    await Promise.all([shared.end(), sessions.end()])
    return { ...results, ...wall }
  } finally {
    await server.stop('fast')
    await rm(directory, { recursive: true, force: true })
  }
}

const measures: Readonly<Record<string, () => Promise<object>>> = {
  throughput: measureThroughput,
  waiting: () => measureWaiting(rounds, forMs),
  'start-up': () => measureStartUp(rounds),
}
const results = {}
for (const [name, measure] of Object.entries(measures)) {
  if (options.only === undefined || options.only === name) Object.assign(results, await measure())
}
if (options.json !== undefined) await writeFile(options.json, `${JSON.stringify(results, undefined, 2)}\n`)
