import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { EmbeddedServer } from '../src/database/embedded-server.ts'
import { Fencepost } from '../src/index.ts'
import { type HandOver, compareHandOver } from './hand-over.ts'
import { type TakeOver, measureTakeOver } from './take-over.ts'

/** Measures hand-over and crash take-over on a server of its own, which counts statements, and prints them. */
export async function measureWaiting(
  rounds: number,
  forMs: number,
): Promise<{ readonly handOver: HandOver[]; readonly takeOver: TakeOver }> {
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-bench-'))
  const settings = { max_connections: '1200', shared_preload_libraries: 'pg_stat_statements' }
  const server = await EmbeddedServer.start({ directory, settings })
  try {
    await Fencepost.migrate({ connectionString: server.url })
    const setup = new Client({ connectionString: server.url })
    await setup.connect()
    await setup.query('create extension pg_stat_statements')
    await setup.query('create table bench_lock (id integer primary key, holder integer)')
    await setup.query('insert into bench_lock values (1, null)')
    await setup.end()
    const handOver: HandOver[] = []
    for (const [waiters, floor] of [
      [2, 'notify'],
      [2, 'advisory'],
      [50, 'advisory'],
      [1000, 'advisory'],
    ] as const) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other: they share two cores.
      const result = await compareHandOver(server.url, waiters, rounds, forMs, floor)
      handOver.push(result)
      const { median, min, max } = result.ratio
      console.log(
        `hand-over ${String(waiters).padStart(4)} waiters ÷ ${floor.padEnd(8)}  ${median.toFixed(2)} (${min.toFixed(2)} … ` +
          `${max.toFixed(2)})  ${result.ms.toFixed(2)} ms, floor ${result.floorMs.toFixed(2)} ms, ${result.tries.toFixed(2)} questions and ` +
          `${result.statements.toFixed(2)} statements each`,
      )
    }
    const takeOver = await measureTakeOver(server.url, rounds)
    const { ratio, lateMs, questionsPerTtl } = takeOver
    console.log(
      `take-over ÷ TTL of ${takeOver.ttlMs} ms  ${ratio.median.toFixed(2)} (${ratio.min.toFixed(2)} … ${ratio.max.toFixed(2)}), ` +
        `${lateMs.median.toFixed(1)} ms (${lateMs.min.toFixed(1)} … ${lateMs.max.toFixed(1)}) after the expiry, ` +
        `${questionsPerTtl.toFixed(2)} questions per TTL while waiting`,
    )
    return { handOver, takeOver }
  } finally {
    await server.stop('fast')
    await rm(directory, { recursive: true, force: true })
  }
}
