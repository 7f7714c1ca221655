// A process in which many workers want one lock, again and again: each waits for it, holds it for a moment and gives it back. Told by its
// parent when to begin and to stop; answers with the moments, by the machine's monotonic clock, at which each term began and was
// given back.
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import { Fencepost } from '../../src/index.ts'

export interface Terms {
  /** Milliseconds of the machine's monotonic clock: granted, given back. */
  readonly terms: readonly (readonly [number, number])[]
}

export type Kind = 'fencepost' | 'polling' | 'advisory'

const [kind, url = '', workersText, holdText] = process.argv.slice(2)
const workers = Number(workersText)
const holdMs = Number(holdText)
const monotonicMs = (): number => Number(process.hrtime.bigint()) / 1e6

interface Lock {
  take(signal: AbortSignal): Promise<unknown>
  give(taken: unknown): Promise<unknown>
  close(): Promise<unknown>
}

async function fencepostLocks(): Promise<Lock[]> {
  const fencepost = await Fencepost.open({ connectionString: url, ttl: '30s', listen: kind !== 'polling' })
  const lock: Lock = {
    take: (signal) => fencepost.acquire('bench-queue', { signal }),
    give: (lease) => (lease as { release(): Promise<unknown> }).release(),
    close: () => fencepost.close(),
  }
  return Array.from({ length: workers }, () => lock)
}

/** The floor: a session of its own for each waiter, which PostgreSQL itself puts in line and wakes. No TTL, no token, not durable. */
async function advisoryLocks(): Promise<Lock[]> {
  const locks: Lock[] = []
  for (let worker = 0; worker < workers; worker += 1) {
    const client = new Client({ connectionString: url })
    client.on('error', () => {})
    // oxlint-disable-next-line no-await-in-loop -- A thousand at once are more than the server accepts at once.
    await client.connect()
    let isOver = false
    locks.push({
      take: async (signal) => {
        signal.throwIfAborted()
        await client.query({ name: 'lock', text: 'select pg_advisory_lock(4711)' })
        if (!isOver && !signal.aborted) return
        await client.query('select pg_advisory_unlock(4711)')
        signal.throwIfAborted()
      },
      give: () => client.query({ name: 'unlock', text: 'select pg_advisory_unlock(4711)' }),
      close: () => {
        isOver = true
        return client.end()
      },
    })
  }
  return locks
}

const locks = kind === 'advisory' ? await advisoryLocks() : await fencepostLocks()
process.send!('ready')

let controller = new AbortController()
process.on('message', (order: 'begin' | 'stop' | 'end') => {
  if (order === 'begin') void run()
  else if (order === 'stop') controller.abort()
  else void Promise.all(new Set(locks.map((lock) => lock.close()))).then(() => process.exit(0))
})

async function run(): Promise<void> {
  controller = new AbortController()
  const { signal } = controller
  const terms: [number, number][] = []
  await Promise.all(
    locks.map(async (lock) => {
      while (!signal.aborted) {
        try {
          const taken = await lock.take(signal)
          const grantedMs = monotonicMs()
          await sleep(holdMs)
          terms.push([grantedMs, monotonicMs()])
          await lock.give(taken)
        } catch (error) {
          if (!signal.aborted) throw error
        }
      }
    }),
  )
  process.send!({ terms } satisfies Terms)
}
