import { setTimeout as sleep } from 'node:timers/promises'
import type { Client } from 'pg'
import { expect, test } from 'vitest'
import { DatabaseError, FencepostError, fencedTransaction } from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { SqlHolder } from '../support/sql-holder.ts'

const database = useDatabase()

const forMs = 20_000
const leases = ['x', 'y', 'z']
const ttlMs = 200

/** A grant, and until when its holder believed in it. All in one process, so one clock orders them all. */
interface Belief {
  readonly name: string
  readonly token: bigint
  readonly from: number
  until: number
}

// Half of the sixteen use the library, half speak to the functions like a client in another language, with every bad
// habit: pauses, late beats, releases of terms that are over, fenced transactions longer than the TTL.
test('sixteen clients on three leases for 20 s: no overlap, no token out of order, no SQLSTATE for the caller', async () => {
  await database.query(
    'create table written (place bigserial primary key, name text not null, token bigint not null)',
  )
  const end = performance.now() + forMs
  const beliefs: Belief[] = []
  const unexpected: unknown[] = []
  const counts = { fenced: 0, refused: 0, cutOff: 0, tooSlow: 0 }
  const running = (): boolean => performance.now() < end
  const insert = 'insert into written (name, token) values ($1, $2)'

  async function libraryClient(): Promise<void> {
    const fencepost = await database.open({ minTtl: ttlMs, ttl: ttlMs })
    const pool = database.newPool({ max: 2 })
    while (running()) {
      const name = leases[Math.floor(Math.random() * leases.length)]!
      try {
        const lease = await fencepost.acquire(name, { wait: Math.random() < 0.5 ? 0 : 300 })
        const belief: Belief = {
          name,
          token: lease.token,
          from: performance.now(),
          until: Number.POSITIVE_INFINITY,
        }
        beliefs.push(belief)
        const stopBelieving = (): void => {
          belief.until = Math.min(belief.until, performance.now())
        }
        lease.signal.addEventListener('abort', stopBelieving)
        try {
          for (let turn = 0; turn < 2 && running(); turn += 1) {
            if (Math.random() < 0.3) await sleep(Math.random() * 40)
            const dice = Math.random()
            await lease.transaction(pool, async (client) => {
              if (dice < 0.1) await client.query('select pg_sleep($1)', [Math.random() * 0.3])
              else if (dice < 0.2) await sleep(Math.random() * 1.5 * ttlMs)
              await client.query(insert, [name, lease.token.toString()])
            })
            counts.fenced += 1
          }
        } finally {
          // Nobody ends a holder here while one of its leases is believed in: that would be no fault of the lease.
          stopBelieving()
          if (Math.random() < 0.7) await lease.release()
          else await database.query('select fencepost.end_holder($1)', [lease.term.holderId])
        }
        // A write by a program that kept the term.
        await fencedTransaction({ term: lease.term }, pool, (client) =>
          client.query(insert, [name, lease.token.toString()]),
        )
        if (lease.state === 'released') unexpected.push(`a released term of ${name} has written`)
      } catch (error) {
        note(error)
      }
    }
    await fencepost.close()
  }

  function note(error: unknown): void {
    const code = error instanceof FencepostError ? error.code : (error as { code?: string }).code
    switch (code) {
      case 'NOT_ACQUIRED':
        return
      case 'DATABASE_UNAVAILABLE':
        // On a machine that is busy with other things an answer can take longer than such a TTL or such a wait allows.
        // Then a lease must not be handed out, and the caller is told why, without an SQLSTATE.
        if (error instanceof DatabaseError && error.sqlState === undefined) counts.tooSlow += 1
        else unexpected.push(error)
        return
      case 'STALE_TERM':
      case 'HOLDER_EXPIRED':
      case 'LEASE_LOST':
      case 'LEASE_RELEASED':
      case 'FP001':
      case 'FP002':
        counts.refused += 1
        return
      case 'TRANSACTION_CUT_OFF':
      case '25P03':
        counts.cutOff += 1
        return
      default:
        unexpected.push(error)
    }
  }

  async function rawWrite(
    client: Client,
    holder: SqlHolder,
    name: string,
    token: bigint,
    pauseMs: number,
  ): Promise<boolean> {
    try {
      await client.query('begin')
      await holder.fence(client, name, token)
      if (pauseMs > 0) await sleep(pauseMs)
      await client.query(insert, [name, token.toString()])
      await client.query('commit')
      counts.fenced += 1
      return true
    } catch (error) {
      const isLost =
        (error as { code?: string }).code === '25P03' || (error as { code?: string }).code === undefined
      if (isLost) counts.cutOff += 1
      else note(error)
      if (!isLost) await client.query('rollback').catch(() => {})
      return !isLost
    }
  }

  async function rawClient(): Promise<void> {
    let client = await database.session()
    while (running()) {
      const sentAt = performance.now()
      const holder = await SqlHolder.join(database.pool, ttlMs)
      let until = sentAt + ttlMs
      const held = new Map<string, Belief>()
      while (running() && performance.now() < until) {
        const dice = Math.random()
        try {
          if (dice < 0.35) {
            const names = leases.filter((name) => !held.has(name) && Math.random() < 0.5)
            for (const row of names.length === 0 ? [] : await holder.acquire(...names)) {
              if (row.token === null || performance.now() >= until) continue
              const belief = { name: row.name, token: BigInt(row.token), from: performance.now(), until }
              held.set(row.name, belief)
              beliefs.push(belief)
            }
          } else if (dice < 0.55) {
            const beatAt = performance.now()
            if (!(await holder.beat()) || performance.now() >= until) break
            until = beatAt + ttlMs
            for (const belief of held.values()) belief.until = until
          } else if (dice < 0.7) {
            const belief = [...held.values()][0]
            if (belief === undefined) continue
            belief.until = Math.min(belief.until, performance.now())
            await holder.release(belief.name, belief.token)
            held.delete(belief.name)
          } else if (dice < 0.9) {
            const belief = [...held.values()][0]
            if (belief === undefined) continue
            if (
              !(await rawWrite(
                client,
                holder,
                belief.name,
                belief.token,
                Math.random() < 0.3 ? Math.random() * 1.5 * ttlMs : 0,
              ))
            ) {
              client = await database.session()
              break
            }
          } else await sleep(Math.random() * (Math.random() < 0.2 ? 2 * ttlMs : 8))
        } catch (error) {
          note(error)
          break
        }
      }
      // A late beat, harmless or refused; and a stale writer that wakes up.
      try {
        if (Math.random() < 0.5) await holder.beat()
        for (const belief of held.values()) {
          if (!(await rawWrite(client, holder, belief.name, belief.token, 0)))
            client = await database.session()
        }
      } catch (error) {
        note(error)
      }
    }
  }

  await Promise.all(Array.from({ length: 8 }, () => [libraryClient(), rawClient()]).flat())

  expect(unexpected).toEqual([])
  for (const name of leases) {
    const terms = beliefs.filter((belief) => belief.name === name).toSorted((a, b) => a.from - b.from)
    for (const [index, term] of terms.entries()) {
      const next = terms[index + 1]
      if (next === undefined) continue
      expect(next.token, `tokens of ${name}`).toBeGreaterThan(term.token)
      expect(term.until, `the term ${term.token} of ${name}, before ${next.token}`).toBeLessThanOrEqual(
        next.from,
      )
    }
  }
  const outOfOrder = await database.query(`
    select * from (select name, token, lag(token) over (partition by name order by place) as before from written) w
     where before > token`)
  expect(outOfOrder).toEqual([])
  // It would prove nothing if hardly anything had happened.
  expect(beliefs.length).toBeGreaterThan(100)
  expect(counts.tooSlow).toBeLessThan(beliefs.length / 10)
  expect(counts.fenced).toBeGreaterThan(50)
  expect(counts.refused).toBeGreaterThan(20)
  console.log(
    `stress: ${beliefs.length} grants, ${counts.fenced} fenced transactions, ${counts.refused} refused, ${counts.cutOff} cut off, ${counts.tooSlow} answered too slowly`,
  )
})
