import { setTimeout as sleep } from 'node:timers/promises'
import { Child } from '../child.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

export interface TakeOverFigures {
  readonly ttlMs: number
  /** From the kill to the grant, ÷ the TTL. */
  readonly ratio: Spread
  /** From the expiry of the dead holder to the grant, by the database's clock. */
  readonly lateMs: Spread
  /** Questions of the waiter for each TTL that it waited. */
  readonly questionsPerTtl: Spread
}

/** A process holds a lease for a few TTLs while another one waits for it, and is killed. */
export const takeOver: Measure<TakeOverFigures> = {
  name: 'take-over',
  group: 'waiting',
  what: 'from the death of a holder (SIGKILL) to the grant to a waiter ÷ the TTL, and how long after the expiry that is; less is better',
  async run(effort) {
    const ttlMs = 1000
    const holdForMs = 3.3 * ttlMs
    await using server = await BenchServer.start({ counted: true })
    const { url, db } = server
    const fencepost = await server.open({ ttl: ttlMs })
    const taken: number[] = []
    const late: number[] = []
    const questions: number[] = []
    for (let round = 0; round <= effort.rounds; round += 1) {
      const name = `take-over-${round}`
      await using child = await Child.start('many', ['hold', url, name, 0, 1, ttlMs])
      const waiting = fencepost.acquire(`${name}-0`)
      await sleep(500)
      // The first wait also opens the connection that listens.
      await db.query('select pg_stat_statements_reset()')
      // Out of step with the heartbeats.
      await sleep(holdForMs + (round * ttlMs) / 27)
      child.signal('SIGKILL')
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
          [`${name}-0`, child.pid],
        ),
      ]
      await lease.release()
      if (round === 0) continue
      taken.push(takenMs / ttlMs)
      late.push(Number(times.rows[0]!.late))
      questions.push(Number(counted.rows[0]!.calls) / ((holdForMs + takenMs) / ttlMs))
    }
    const figures = { ttlMs, ratio: spread(taken), lateMs: spread(late), questionsPerTtl: spread(questions) }
    console.log(
      `÷ TTL of ${ttlMs} ms  ${shown(figures.ratio)}, ${shown(figures.lateMs)} ms after the expiry, ` +
        `${shown(figures.questionsPerTtl)} questions per TTL while waiting`,
    )
    return figures
  },
}
