import { setTimeout as sleep } from 'node:timers/promises'
import { Kysely, PostgresDialect, sql } from 'kysely'
import { Pool, type PoolClient, Query, type QueryConfig } from 'pg'
import {
  FencedRepository,
  type Fence,
  type FenceBounds,
  type Lease,
  fencedTransaction,
} from '../../src/index.ts'
import type { Answered } from '../history.ts'
import { outcomeOf, outcomeOfCommit } from './outcome.ts'
import type { Recorder } from './recorder.ts'
import type { WritePlan } from './round.ts'
import { at } from './steps.ts'

interface Tables {
  'torture.write': { lease: string; token: string; row: string; client: string; op: number }
  'torture.row': { row: string; lease: string; stamp: string | null }
}

class Rows extends FencedRepository<Tables, 'torture.row', 'row', 'stamp'> {}
class Writes extends FencedRepository<Tables, 'torture.write', 'client' | 'op', 'token'> {}

/** One row of a plan, and the number under which it was asked. */
interface Write {
  readonly row: string
  readonly op: number
}

const insertWrite = 'insert into torture.write (lease, token, row, client, op) values ($1, $2, $3, $4, $5)'
const stampRow = 'update torture.row set lease = $1, stamp = $2 where row = $3'
const largeResult = `select n, repeat('x', 500) as filling from generate_series(1, 3000) n`

/** Writes under terms, in every way there is, on an application's pool. */
export class Writer {
  readonly #client: string
  readonly #recorder: Recorder
  readonly #pool: Pool
  readonly #db: Kysely<Tables>
  readonly #rows: Rows
  readonly #writes: Writes
  #dawdleMs = 0

  constructor(url: string, client: string, recorder: Recorder) {
    this.#client = client
    this.#recorder = recorder
    // Each bound is the application's own: without one it would wait for a lost answer for ever.
    const bounds = { connectionTimeoutMillis: 2000, query_timeout: 5000 }
    this.#pool = new Pool({ connectionString: url, max: 4, application_name: 'application', ...bounds })
    this.#pool.on('error', () => {})
    this.#pool.on('connect', (session) => {
      session.on('error', () => {})
      watchCommits(session)
    })
    this.#db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: this.#pool }) })
    this.#rows = new Rows(this.#db, 'torture.row', { key: 'row', fenceColumn: 'stamp' })
    this.#writes = new Writes(this.#db, 'torture.write', { key: ['client', 'op'], fenceColumn: 'token' })
  }

  /** Keeps the next transaction open for so long. */
  dawdle(forMs: number): void {
    this.#dawdleMs = forMs
  }

  /** Carries a plan out, and records and returns what has come of it. Never throws. */
  async write(lease: Lease, plan: WritePlan): Promise<Answered['outcome']> {
    const rows = plan.way === 'statement' ? plan.rows.slice(0, 1) : plan.rows
    const writes = rows.map((row) => {
      const op = this.#recorder.asked('write', lease.name, { token: lease.token, row })
      return { row, op }
    })
    const { outcome, code } = await this.#carryOut(lease, plan, writes)
    this.#recorder.sample()
    for (const { op } of writes) {
      this.#recorder.answered(op, outcome, {
        token: lease.token,
        ...(code === undefined ? {} : { code }),
      })
    }
    return outcome
  }

  async end(): Promise<void> {
    await this.#db.destroy()
  }

  async #carryOut(
    lease: Lease,
    plan: WritePlan,
    writes: readonly Write[],
  ): Promise<{ outcome: 'won' | 'busy' | 'lost' | 'unknown'; code?: string }> {
    if (plan.way === 'by hand') return this.#byHand(lease, plan, writes)
    try {
      await this.#fenced(lease, plan, writes)
      return { outcome: 'won' }
    } catch (error) {
      return outcomeOf(error)
    }
  }

  async #fenced(lease: Lease, plan: WritePlan, writes: readonly Write[]): Promise<void> {
    const bounds = boundsOf(plan)
    const work = (session: PoolClient): Promise<void> => this.#work(session, lease, plan, writes)
    switch (plan.way) {
      case 'pool':
        return lease.transaction(this.#pool, work, bounds)
      case 'careless':
        // Only the term, without what the process knows of it: nothing but the database can refuse this.
        return fencedTransaction({ term: lease.term }, this.#pool, work, bounds)
      case 'kysely':
        return lease.transaction(this.#db, (tx) => this.#workInKysely(tx, lease, plan, writes), bounds)
      case 'statement': {
        const [{ row, op }] = writes as [Write]
        await this.#writes.insert(lease, { lease: lease.name, row, client: this.#client, op })
        return
      }
      case 'by hand':
        throw new Error('It has a way of its own.')
    }
  }

  /** As it stands on the first page for other clients: begin, fence, statements, commit. */
  async #byHand(
    lease: Lease,
    plan: WritePlan,
    writes: readonly Write[],
  ): Promise<{ outcome: 'won' | 'busy' | 'lost' | 'unknown'; code?: string }> {
    let session: PoolClient
    try {
      session = await this.#pool.connect()
    } catch (error) {
      return { ...outcomeOf(error), outcome: 'busy' }
    }
    let isSpoilt = true
    try {
      try {
        await session.query('begin')
        at('after begin')
        await lease.fence(session, boundsOf(plan))
        await this.#work(session, lease, plan, writes)
      } catch (error) {
        await session.query('rollback').then(
          () => (isSpoilt = false),
          () => {},
        )
        return outcomeOf(error)
      }
      try {
        const { command } = await session.query('commit')
        isSpoilt = false
        return command === 'COMMIT' ? { outcome: 'won' } : { outcome: 'busy', code: command }
      } catch (error) {
        return outcomeOfCommit(error)
      }
    } finally {
      session.release(isSpoilt)
    }
  }

  async #work(session: PoolClient, lease: Lease, plan: WritePlan, writes: readonly Write[]): Promise<void> {
    const token = lease.token.toString()
    at('after fence')
    const dawdleMs = this.#takeDawdle()
    // Statements that take long: silence would be cut off. Before the writes and after them.
    const linger = async (): Promise<void> => {
      if (dawdleMs > 0) await session.query('select pg_sleep($1)', [dawdleMs / 2000])
    }
    await linger()
    if (plan.readsMuch) await readMuch(session)
    for (const [number, { row, op }] of writes.entries()) {
      // oxlint-disable no-await-in-loop -- One after the other, as programs do.
      if (number > 0) at('between writes')
      if (number > 0 && plan.pauseMs > 0) await sleep(plan.pauseMs)
      await session.query(insertWrite, [lease.name, token, row, this.#client, op])
      await session.query(stampRow, [lease.name, token, row])
      // oxlint-enable no-await-in-loop
    }
    await linger()
  }

  async #workInKysely(
    tx: Kysely<Tables> & Fence,
    lease: Lease,
    plan: WritePlan,
    writes: readonly Write[],
  ): Promise<void> {
    at('after fence')
    const dawdleMs = this.#takeDawdle()
    const linger = async (): Promise<void> => {
      if (dawdleMs > 0) await sql`select pg_sleep(${dawdleMs / 2000})`.execute(tx)
    }
    await linger()
    for (const [number, { row, op }] of writes.entries()) {
      // oxlint-disable no-await-in-loop -- One after the other, as programs do.
      if (number > 0) at('between writes')
      if (number > 0 && plan.pauseMs > 0) await sleep(plan.pauseMs)
      await this.#writes.insert(tx, { lease: lease.name, row, client: this.#client, op })
      await this.#rows.update(tx, row, { lease: lease.name })
      // oxlint-enable no-await-in-loop
    }
    await linger()
  }

  #takeDawdle(): number {
    const forMs = this.#dawdleMs
    this.#dawdleMs = 0
    return forMs
  }
}

function boundsOf({ silenceMs }: WritePlan): FenceBounds {
  return silenceMs === undefined ? {} : { idleTimeout: silenceMs }
}

/** Reads a large result, and is met in the middle of it. */
async function readMuch(session: PoolClient): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  // By callback: where there is a query timeout, `pg` tells a query without one of no error.
  const callback = (error: Error | null): void => (error === null ? resolve() : reject(error))
  const query = new Query({ text: largeResult, callback } as QueryConfig)
  let rows = 0
  query.on('row', () => {
    rows += 1
    if (rows === 10) at('while reading')
  })
  session.query(query)
  await promise
}

/** The last moment before the answer to a COMMIT: it has left this process. */
function watchCommits(session: PoolClient): void {
  const { stream } = (session as unknown as { connection: { stream: Writing } }).connection
  const write = stream.write.bind(stream)
  stream.write = (data, ...rest) => {
    const more = write(data, ...rest)
    if (typeof data === 'object' && isCommit(Buffer.from(data.buffer, data.byteOffset, data.byteLength))) {
      at('after COMMIT was sent')
    }
    return more
  }
}

interface Writing {
  write(data: string | Uint8Array, ...rest: unknown[]): boolean
}

function isCommit(data: Buffer): boolean {
  return data.length < 40 && /commit/i.test(data.toString('latin1'))
}
