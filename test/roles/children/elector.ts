// A process that stands for election, leads as it is told over its parent's channel, and writes down when.
import { openSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Pool } from 'pg'
import { Fencepost, type Lease } from '../../../src/index.ts'

export type ElectorOrder =
  | { readonly do: 'return' }
  | { readonly do: 'throw' }
  /** Stops the election and stands anew. */
  | { readonly do: 'stop' }
  | { readonly do: 'block'; readonly ms: number }
  | { readonly do: 'leave' }

export interface ElectorReport {
  readonly elected?: string
  readonly left?: boolean
}

/**
 * A line of the elector's record: `held`, that the lease was held at that time; `settled`, that `lead` was about to settle.
 * Times are nanoseconds of the machine's monotonic clock, which all processes share.
 */
export interface ElectorNote {
  readonly what: 'elected' | 'lead' | 'held' | 'settled' | 'ended'
  readonly token: string
  readonly at: string
  /** How many leads this process was in, itself included. */
  readonly running?: number
  readonly reason?: string
}

const connectionString = process.env['FENCEPOST_DATABASE_URL']!
const ttl = Number(process.env['ELECTOR_TTL'])
const name = process.env['ELECTOR_NAME']!
// Written at once, so that nothing of it is lost when the process is killed.
const record = openSync(process.env['ELECTOR_RECORD']!, 'a')
const note = (line: Omit<ElectorNote, 'at'>, at = process.hrtime.bigint()): void => {
  writeSync(record, `${JSON.stringify({ ...line, at: at.toString() })}\n`)
}

const pool = new Pool({ connectionString, max: 1 })
pool.on('error', () => {})
const fencepost = await Fencepost.open({ connectionString, minTtl: '100ms', requestTimeout: '2s' })
let running = 0
/** Aborted, with what to do as its reason, when `lead` is to settle. */
let order = new AbortController()

async function lead(lease: Lease): Promise<void> {
  const token = lease.token.toString()
  order = new AbortController()
  const over = AbortSignal.any([lease.signal, order.signal])
  running += 1
  note({ what: 'lead', token, running })
  process.send!({ elected: token } satisfies ElectorReport)
  try {
    await lease
      .transaction(pool, (client) => client.query('insert into led (token) values ($1)', [token]))
      .catch(() => {})
    while (!over.aborted) {
      // The time is taken before the question: what is true after it was true then, too.
      const before = process.hrtime.bigint()
      if (lease.isHeld) note({ what: 'held', token }, before)
      await sleep(5, undefined, { signal: over }).catch(() => {})
    }
    // Nobody stops on the spot.
    await sleep(Math.random() * 15)
    if (order.signal.reason === 'throw') throw new Error('as I was told')
  } finally {
    note({ what: 'settled', token })
    running -= 1
  }
}

function stand(): ReturnType<typeof fencepost.elect> {
  const election = fencepost.elect(name, { ttl, retryDelay: '10ms' }, lead)
  election.on('elected', ({ token }) => note({ what: 'elected', token: token.toString() }))
  election.on('ended', ({ token, reason }) => note({ what: 'ended', token: token.toString(), reason }))
  return election
}

let election = stand()

async function obey(told: ElectorOrder): Promise<void> {
  switch (told.do) {
    case 'return':
    case 'throw':
      order.abort(told.do)
      return
    case 'block':
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, told.ms)
      return
    case 'stop':
      await election.stop()
      election = stand()
      return
    case 'leave':
      await election.stop()
      await fencepost.close()
      await pool.end()
      process.send!({ left: true } satisfies ElectorReport)
      process.disconnect()
  }
}

// Without its parent nobody would end it.
process.on('disconnect', () => setTimeout(() => process.exit(), 2000).unref())
process.on('message', (told: ElectorOrder) => void obey(told))
