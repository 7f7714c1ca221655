import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Fencepost, FencepostError, type Lease } from '../../src/index.ts'
import { check, checkLiveness, renderVerdict } from '../../torture/check/check.ts'
import { LogReader } from '../../torture/decode/log-reader.ts'
import { createTortureTables } from '../../torture/decode/tables.ts'
import type { Answered, Asked, HistoryEvent } from '../../torture/history.ts'
import { OwnServer } from '../support/own-server.ts'

const ttlMs = 400
const rounds = 12

let server: OwnServer

beforeAll(async () => {
  server = await OwnServer.start({ wal_level: 'logical' })
})

afterAll(async () => {
  await server[Symbol.asyncDispose]()
})

const lostCodes = ['LEASE_LOST', 'STALE_TERM', 'HOLDER_EXPIRED']

function outcomeOf(error: unknown): Answered['outcome'] {
  const code = error instanceof FencepostError ? error.code : ''
  return code === 'OUTCOME_UNKNOWN' || code === 'CLOSED'
    ? 'unknown'
    : lostCodes.includes(code)
      ? 'lost'
      : 'busy'
}

/** A client in this process that writes down what it asks and hears. */
class Client {
  readonly #name: string
  readonly #events: HistoryEvent[]
  readonly #pool: Pool
  #fencepost: Fencepost | undefined
  #ops = 0

  constructor(name: string, events: HistoryEvent[]) {
    this.#name = name
    this.#events = events
    this.#pool = new Pool({ connectionString: server.url, max: 2 })
    this.#pool.on('error', () => {})
    this.#pool.on('connect', (session) => void session.on('error', () => {}))
  }

  async round(number: number): Promise<void> {
    this.#fencepost ??= await this.#open()
    const name = number % 3 === 0 ? 'M' : 'L'
    const lease = await this.#acquire(this.#fencepost, name)
    if (lease === undefined) return
    this.#sample(lease)
    await this.#write(lease, 'a')
    this.#sample(lease)
    if (number % 4 === 1) void lease.letExpire()
    else if (number % 5 === 4) await this.close()
    else {
      const op = this.#ask('release', name, { token: `${lease.token}` })
      const outcome = await lease.release()
      this.#tell(op, outcome === 'released' ? 'won' : outcome === 'unknown' ? 'unknown' : 'lost')
    }
    // By one who has not noticed.
    await this.#write(lease, 'b')
    this.#sample(lease)
  }

  async close(): Promise<void> {
    const op = this.#ask('close', '')
    await this.#fencepost?.close()
    this.#fencepost = undefined
    this.#tell(op, 'won')
  }

  async end(): Promise<void> {
    await this.close()
    await this.#pool.end()
  }

  async #open(): Promise<Fencepost> {
    for (;;) {
      try {
        // oxlint-disable-next-line no-await-in-loop -- Until it is open.
        return await Fencepost.open({
          connectionString: server.url,
          label: this.#name,
          minTtl: '100ms',
          logger: silent,
        })
      } catch (error) {
        if (!isDown) throw error
        // oxlint-disable-next-line no-await-in-loop
        await isUp
      }
    }
  }

  async #acquire(fencepost: Fencepost, name: string): Promise<Lease | undefined> {
    const op = this.#ask('acquire', name)
    try {
      const lease = await fencepost.acquire(name, { ttl: ttlMs, wait: '5s' })
      this.#tell(op, 'won', `${lease.token}`)
      return lease
    } catch (error) {
      this.#tell(op, outcomeOf(error))
      return undefined
    }
  }

  async #write(lease: Lease, row: string): Promise<void> {
    const token = `${lease.token}`
    const op = this.#ask('write', lease.name, { token, row })
    try {
      await lease.transaction(this.#pool, async (tx) => {
        await tx.query(
          'insert into torture.write (lease, token, row, client, op) values ($1, $2, $3, $4, $5)',
          [lease.name, token, row, this.#name, op],
        )
        await tx.query(
          `insert into torture.row (row, lease, stamp) values ($1, $2, $3)
           on conflict (row) do update set stamp = excluded.stamp`,
          [`${lease.name}/${row}`, lease.name, token],
        )
      })
      this.#tell(op, 'won')
    } catch (error) {
      this.#tell(op, outcomeOf(error))
    }
  }

  #ask(what: Asked['what'], lease: string, more: { token?: string; row?: string } = {}): number {
    this.#ops += 1
    this.#events.push({
      kind: 'asked',
      atUs: nowUs(),
      client: this.#name,
      op: this.#ops,
      what,
      lease,
      ...more,
    })
    return this.#ops
  }

  #tell(op: number, outcome: Answered['outcome'], token?: string): void {
    const more = token === undefined ? {} : { token }
    this.#events.push({ kind: 'answered', atUs: nowUs(), client: this.#name, op, outcome, ...more })
  }

  #sample(lease: Lease): void {
    const [atUs, isHeld] = [nowUs(), lease.isHeld]
    this.#events.push({
      kind: 'trusted',
      atUs,
      client: this.#name,
      lease: lease.name,
      token: `${lease.token}`,
      isHeld,
    })
  }
}

/** Between a crash and the time at which it is over. */
let isDown = false
let isUp = Promise.resolve()

const silent = { debug() {}, info() {}, warn() {}, error() {} }

function nowUs(): number {
  return Date.now() * 1000
}

test('fencepost is found to keep its promises, also through a crash; and a log that lacks a grant is noticed', async () => {
  const session = await server.session()
  await createTortureTables(session)
  const reader = await LogReader.create(session)
  await session.end()
  const events: HistoryEvent[] = []
  const clients = ['c1', 'c2', 'c3'].map((name) => new Client(name, events))
  let healedAtUs = 0
  const crash = async (): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>()
    isUp = promise
    isDown = true
    events.push({ kind: 'fault', atUs: nowUs(), fault: 'crash', phase: 'begins', target: 'the server' })
    await server.stop('immediate')
    await server.startAgain()
    healedAtUs = nowUs()
    events.push({ kind: 'fault', atUs: healedAtUs, fault: 'crash', phase: 'ends', target: 'the server' })
    isDown = false
    resolve()
  }
  await Promise.all(
    clients.map(async (client, place) => {
      for (let number = 0; number < rounds; number += 1) {
        // oxlint-disable no-await-in-loop -- Round after round.
        if (place === 0 && number === rounds / 2) {
          const before = await server.session()
          events.push(...(await reader.read(before)))
          await before.end()
          await crash()
        }
        await client.round(number)
        // oxlint-enable no-await-in-loop
      }
    }),
  )
  await Promise.all(clients.map((client) => client.end()))
  const last = await server.session()
  events.push(...(await reader.readRest(last)))
  await last.end()

  const verdict = check(events)
  expect(renderVerdict(verdict)).toMatch(/^No violation\./)
  expect(verdict.summary.grants).toBeGreaterThan(rounds)
  expect(verdict.summary.writes).toBeGreaterThan(rounds)
  expect(verdict.summary.refusedWrites).toBeGreaterThan(0)
  const bounds = { healedAtUs, ttlUs: ttlMs * 1000, longestTransactionUs: 1_000_000, retryUs: 5_000_000 }
  expect(checkLiveness(events, bounds)).toEqual([])

  const told = events.find((event) => event.kind === 'answered' && event.token !== undefined) as Answered
  const forgetful = events.filter(
    (event) =>
      event.kind !== 'committed' ||
      !event.changes.some(
        (change) => change.table === 'lease' && change.token === told.token && change.holderId !== null,
      ),
  )
  expect(check(forgetful).violations.map(({ kind }) => kind)).toContain('won-grant-missing')
})
