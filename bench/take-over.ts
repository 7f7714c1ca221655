import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { Client } from 'pg'
import { Fencepost } from '../src/index.ts'
import { median } from './side-by-side.ts'

const program = fileURLToPath(new URL('children/holder.ts', import.meta.url))

export interface TakeOver {
  readonly ttlMs: number
  /** From the kill to the grant, ÷ the TTL. */
  readonly ratio: { readonly median: number; readonly min: number; readonly max: number }
  /** From the expiry of the dead holder to the grant, by the database's clock. */
  readonly lateMs: { readonly median: number; readonly min: number; readonly max: number }
  /** Questions of the waiter for each TTL that it waited. */
  readonly questionsPerTtl: number
}

/** A process holds a lease for a few TTLs while another one waits for it, and is killed. */
export async function measureTakeOver(url: string, rounds: number): Promise<TakeOver> {
  const ttlMs = 1000
  const holdForMs = 3.3 * ttlMs
  const db = new Client({ connectionString: url })
  await db.connect()
  const fencepost = await Fencepost.open({ connectionString: url, ttl: ttlMs })
  const taken: number[] = []
  const late: number[] = []
  const questions: number[] = []
  try {
    for (let round = 0; round <= rounds; round += 1) {
      const name = `take-over-${round}`
      const child = fork(program, [url, name, String(ttlMs)])
      await new Promise((resolve) => child.once('message', resolve))
      const waiting = fencepost.acquire(name)
      await new Promise((resolve) => setTimeout(resolve, 500))
      // The first wait also opens the connection that listens.
      await db.query('select pg_stat_statements_reset()')
      // Out of step with the heartbeats.
      await new Promise((resolve) => setTimeout(resolve, holdForMs + (round * ttlMs) / 27))
      child.kill('SIGKILL')
      const killedMs = performance.now()
      const lease = await waiting
      const takenMs = performance.now() - killedMs
      const [counted, times] = [
        await db.query<{ calls: string }>(
          `select coalesce(sum(calls), 0) as calls from pg_stat_statements where query ~ 'fencepost.acquire' and toplevel`,
        ),
        await db.query<{ late: string }>(
          `select extract(epoch from l.granted_at - h.expires_at) * 1000 as late
             from fencepost.lease l, fencepost.holder h where l.name = $1 and h.pid = $2`,
          [name, child.pid],
        ),
      ]
      await lease.release()
      if (round === 0) continue
      taken.push(takenMs / ttlMs)
      late.push(Number(times.rows[0]!.late))
      questions.push(Number(counted.rows[0]!.calls) / ((holdForMs + takenMs) / ttlMs))
    }
  } finally {
    await Promise.all([fencepost.close(), db.end()])
  }
  return { ttlMs, ratio: spread(taken), lateMs: spread(late), questionsPerTtl: median(questions) }
}

function spread(values: readonly number[]): { median: number; min: number; max: number } {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) }
}
