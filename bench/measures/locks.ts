import { Client } from 'pg'
import { Fencepost } from '../../src/index.ts'
import { BenchServer } from '../servers/bench-server.ts'
import type { Measure } from './measure.ts'

const lease = 'bench-locks'

/** By what was done to the table. */
export type LockFigures = Readonly<
  Record<string, { readonly longestMs: number; readonly usualLongestMs: number }>
>

/** Once each: what is told is the worst wait, of which no median says anything. */
export const locks: Measure<LockFigures> = {
  name: 'locks',
  group: 'wall',
  what: 'the longest that one of 8 writers waited for an update while a table of 1,000,000 rows was protected and unprotected',
  async run() {
    await using closing = new AsyncDisposableStack()
    const server = closing.use(await BenchServer.start())
    const { url, db } = server
    const fencepost = await server.open()
    const held = await fencepost.acquire(lease)
    await db.query('create table large (id integer primary key, value integer not null)')
    await db.query('insert into large select n, 0 from generate_series(1, 1000000) n')
    await db.query('vacuum analyze large')
    const writers = await Promise.all(
      Array.from({ length: 8 }, async () => {
        // Each has its fence, so that it can go on writing once the table is protected.
        const writer = new Client({ connectionString: url, options: held.environment['FENCEPOST_PGOPTIONS'] })
        await writer.connect()
        closing.defer(() => writer.end())
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
        `${name.padEnd(36)} ${longestMs.toFixed(0)} ms; ${usualLongestMs.toFixed(0)} ms without it; the change took ${took.toFixed(0)} ms`,
      )
    }
    return figures
  },
}
