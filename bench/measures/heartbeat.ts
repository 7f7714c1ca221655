import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import { Child } from '../child.ts'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, number, ratios, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

/** All of it: of a process that holds 100,000 leases ÷ of one that holds one. */
export interface HeartbeatFigures {
  readonly leases: number
  readonly beats: number
  /** The server's time for a heartbeat. */
  readonly time: Spread
  readonly walBytes: Spread
  /** By how much the tables of holders and of leases have grown over all heartbeats. */
  readonly heapGrowth: number
  /** CPU time of the two processes, with everything that they do while they hold. */
  readonly clientCpu: Spread
  /** For orientation only. */
  readonly beatMs: number
}

interface Cost {
  readonly calls: number
  readonly ms: number
  readonly walBytes: number
  readonly cpuMs: number
}

const ttlMs = 3000
const beats = 60

export const heartbeat: Measure<HeartbeatFigures> = {
  name: 'heartbeat',
  group: 'scale',
  what: 'a heartbeat of a process that holds 100,000 leases ÷ of one that holds one, at the same time on the same server; less is better',
  async run({ rounds, isQuick }) {
    const leases = isQuick ? 10_000 : 100_000
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start({ counted: true }))
    // A database each, so that the server counts their statements apart.
    const held = async (name: string, count: number): Promise<Held> => {
      const url = await server.createDatabase(name)
      const child = closing.use(await Child.start('many', ['hold', url, 'lease', 0, count, ttlMs]))
      const db = new Client({ connectionString: url })
      closing.defer(() => db.end())
      await db.connect()
      return new Held(child, server.db, db, name)
    }
    const both = [await held('one', 1), await held('many', leases)] as const
    // What the grants have left behind is not what heartbeats cost.
    for (const { db } of both) await db.query('vacuum analyze fencepost.lease, fencepost.holder')
    await server.db.query('checkpoint')
    await sleep(ttlMs)

    const heapBefore = await Promise.all(both.map((each) => each.heapBytes()))
    const windows: (readonly [Cost, Cost])[] = []
    const windowMs = (((isQuick ? 12 : beats) / rounds) * ttlMs) / 3
    for (let round = 0; round < rounds; round += 1) {
      const before = await Promise.all(both.map((each) => each.cost()))
      await sleep(windowMs)
      const after = await Promise.all(both.map((each) => each.cost()))
      windows.push([difference(before[0]!, after[0]!), difference(before[1]!, after[1]!)])
    }
    const heapAfter = await Promise.all(both.map((each) => each.heapBytes()))

    const over = (of: (cost: Cost) => number): Spread =>
      spread(
        ratios(
          windows.map(([, many]) => of(many)),
          windows.map(([one]) => of(one)),
        ),
      )
    const figures: HeartbeatFigures = {
      leases,
      beats: windows.reduce((sum, [, many]) => sum + many.calls, 0),
      time: over((cost) => cost.ms / cost.calls),
      walBytes: over((cost) => cost.walBytes / cost.calls),
      heapGrowth: heapAfter[1]! / heapBefore[1]! / (heapAfter[0]! / heapBefore[0]!),
      clientCpu: over((cost) => cost.cpuMs),
      beatMs: spread(windows.map(([, many]) => many.ms / many.calls)).median,
    }
    console.log(`${figures.beats} heartbeats of the process with ${leases} leases ÷ of the one with one:`)
    console.log(`time of the server  ${shown(figures.time)}, ${number(figures.beatMs)} ms each`)
    console.log(`WAL                 ${shown(figures.walBytes)}`)
    console.log(`heap growth         ${number(figures.heapGrowth)}`)
    console.log(`CPU of the client   ${shown(figures.clientCpu)}`)
    return figures
  },
}

class Held {
  readonly db: Client
  readonly #child: Child
  readonly #counter: Client
  readonly #name: string

  constructor(child: Child, counter: Client, db: Client, name: string) {
    this.#child = child
    this.#counter = counter
    this.db = db
    this.#name = name
  }

  async cost(): Promise<Cost> {
    const { rows } = await this.#counter.query<{ calls: string; ms: string; wal: string }>(
      `select sum(s.calls) as calls, sum(s.total_exec_time) as ms, sum(s.wal_bytes) as wal
         from pg_stat_statements s join pg_database d on d.oid = s.dbid
        where d.datname = $1 and s.toplevel and s.query ~ 'fencepost.beat'`,
      [this.#name],
    )
    const { calls, ms, wal } = rows[0]!
    const cpuMs = await this.#child.ask<number>('cpu')
    return { calls: Number(calls), ms: Number(ms), walBytes: Number(wal), cpuMs }
  }

  async heapBytes(): Promise<number> {
    const { rows } = await this.db.query<{ bytes: string }>(
      `select pg_relation_size('fencepost.holder') + pg_relation_size('fencepost.lease') as bytes`,
    )
    return Number(rows[0]!.bytes)
  }
}

function difference(before: Cost, after: Cost): Cost {
  return {
    calls: after.calls - before.calls,
    ms: after.ms - before.ms,
    walBytes: after.walBytes - before.walBytes,
    cpuMs: after.cpuMs - before.cpuMs,
  }
}
