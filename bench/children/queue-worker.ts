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

/**
 * `advisory` and `notify` are floors. `advisory`: PostgreSQL's own lock, without TTL, token and durability, a session for each waiter.
 * `notify`: a lock in a row, given back and taken by a prepared UPDATE each (taken durably), with a notification in between: the least that
 * a durable lock can do whose waiters are woken. Nothing in it says whose turn it is, so it is for two workers.
 */
export type Kind = 'fencepost' | 'advisory' | 'notify'

const [kind, url = '', workersText, holdText] = process.argv.slice(2)
const workers = Number(workersText)
const holdMs = Number(holdText)
const monotonicMs = (): number => Number(process.hrtime.bigint()) / 1e6

interface Lock {
  take(signal: AbortSignal): Promise<unknown>
  give(taken: unknown): Promise<unknown>
}

async function fencepostLocks(): Promise<Lock[]> {
  const fencepost = await Fencepost.open({ connectionString: url, ttl: '30s' })
  const lock: Lock = {
    take: (signal) => fencepost.acquire('bench-queue', { signal }),
    give: (lease) => (lease as { release(): Promise<unknown> }).release(),
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
    locks.push({
      take: async (signal) => {
        signal.throwIfAborted()
        await client.query({ name: 'lock', text: 'select pg_advisory_lock(4711)' })
        if (!signal.aborted) return
        await client.query('select pg_advisory_unlock(4711)')
        signal.throwIfAborted()
      },
      give: () => client.query({ name: 'unlock', text: 'select pg_advisory_unlock(4711)' }),
    })
  }
  return locks
}

/** See Kind. */
async function notifiedLocks(): Promise<Lock[]> {
  const [work, listener] = [new Client({ connectionString: url }), new Client({ connectionString: url })]
  await Promise.all([work.connect(), listener.connect()])
  await listener.query('listen bench_lock')
  let asleep = Promise.withResolvers<void>()
  listener.on('notification', () => asleep.resolve())
  const take = `update bench_lock set holder = ${process.pid} where id = 1 and holder is null`
  const give = `update bench_lock set holder = null where id = 1 and set_config('synchronous_commit', 'off', true) is not null`
  const notify = `select set_config('synchronous_commit', 'off', true), pg_notify('bench_lock', '')`
  return Array.from({ length: workers }, () => ({
    take: async (signal) => {
      for (;;) {
        signal.throwIfAborted()
        asleep = Promise.withResolvers<void>()
        if ((await work.query({ name: 'take', text: take })).rowCount === 1) return
        await Promise.race([asleep.promise, sleep(1000)])
      }
    },
    give: async () => {
      await work.query({ name: 'give', text: give })
      await work.query({ name: 'notify', text: notify })
    },
  }))
}

const makers = { fencepost: fencepostLocks, advisory: advisoryLocks, notify: notifiedLocks }
const locks = await makers[kind as Kind]()
process.send!('ready')

let controller = new AbortController()
process.on('message', (order: 'begin' | 'stop') => {
  if (order === 'begin') void run()
  else controller.abort()
})
process.on('disconnect', () => process.exit())

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
