import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, onTestFinished, test } from 'vitest'
import {
  type Election,
  type ElectionOptions,
  type Fencepost,
  InvalidArgumentError,
  type Leader,
  type Lease,
  type LeaseOptions,
} from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import type { ElectorNote } from './children/elector.ts'
import { ElectorProcess } from './elector-process.ts'

const database = useDatabase()
let names = 0
const uniqueName = (): string => `election-${(names += 1)}`

/** An election that keeps a record, in a list that several may share. */
class Elector {
  readonly election: Election<Lease>
  readonly tokens: bigint[] = []
  mostAtOnce = 0
  #running = 0

  constructor(
    fencepost: Fencepost,
    name: string,
    options: ElectionOptions & LeaseOptions & { readonly who: string; readonly log: string[] },
    lead: (lease: Lease) => Promise<void> = untilAborted,
  ) {
    const { who, log } = options
    this.election = fencepost.elect(name, { retryDelay: '20ms', ...options }, async (lease) => {
      this.#running += 1
      this.mostAtOnce = Math.max(this.mostAtOnce, this.#running)
      try {
        await lead(lease)
      } finally {
        this.#running -= 1
      }
    })
    this.election.on('elected', ({ token }) => {
      this.tokens.push(token)
      log.push(`${who} elected`)
    })
    this.election.on('ended', ({ reason }) => log.push(`${who} ended ${reason}`))
  }
}

async function untilAborted(lease: Lease): Promise<void> {
  if (lease.signal.aborted) return
  await new Promise((resolve) => lease.signal.addEventListener('abort', resolve, { once: true }))
}

const soon = { timeout: 20_000, interval: 5 }
const until = (log: string[], entry: string, times = 1) =>
  expect.poll(() => log.filter((each) => each === entry).length, soon).toBe(times)

/** Somebody stands in the database's line for the lease. */
const waits = (name: string) =>
  expect
    .poll(
      async () => (await database.query('select from fencepost.waiter where lease = $1', [name])).length,
      soon,
    )
    .toBeGreaterThan(0)

describe('a leader', () => {
  const proxies: TcpProxy[] = []
  const throughProxy = async (): Promise<{ proxy: TcpProxy; fencepost: Fencepost }> => {
    const proxy = await TcpProxy.start(database.url)
    proxies.push(proxy)
    const fencepost = await database.open({ connectionString: proxy.url, requestTimeout: '300ms' })
    return { proxy, fencepost }
  }
  afterEach(async () => {
    await Promise.all(proxies.splice(0).map((proxy) => proxy.stop()))
  })

  test('that is cut off ends its term before another one is elected, and stands again when it is back', async () => {
    const name = uniqueName()
    const log: string[] = []
    const { proxy, fencepost } = await throughProxy()
    const a = new Elector(fencepost, name, { who: 'a', log, ttl: '600ms' })
    await until(log, 'a elected')
    const b = new Elector(await database.open(), name, { who: 'b', log, ttl: '600ms' })
    proxy.drop()
    await until(log, 'b elected')
    expect(log).toEqual(['a elected', 'a ended lost', 'b elected'])
    proxy.restore()
    await b.election.stop()
    await until(log, 'a elected', 2)
    await a.election.stop()
    expect(log).toEqual([
      'a elected',
      'a ended lost',
      'b elected',
      'b ended stopped',
      'a elected',
      'a ended stopped',
    ])
    expect(a.tokens[0]).toBeLessThan(b.tokens[0]!)
    expect(b.tokens[0]).toBeLessThan(a.tokens[1]!)
  })

  test('whose database is gone, again and again, leads again each time, and never in two leads at once', async () => {
    const name = uniqueName()
    const log: string[] = []
    const { proxy, fencepost } = await throughProxy()
    const a = new Elector(fencepost, name, { who: 'a', log, ttl: '400ms' }, async (lease) => {
      await untilAborted(lease)
      // Work that takes its time to notice.
      await sleep(300)
    })
    for (let turn = 1; turn <= 3; turn += 1) {
      await until(log, 'a elected', turn)
      proxy.drop()
      await until(log, 'a ended lost', turn)
      await sleep(turn * 200)
      proxy.restore()
    }
    await until(log, 'a elected', 4)
    expect(await a.election.stop()).toBe('released')
    expect(log).toEqual([
      ...Array.from({ length: 3 }, () => ['a elected', 'a ended lost']).flat(),
      'a elected',
      'a ended stopped',
    ])
    expect(a.tokens).toEqual(a.tokens.toSorted((one, other) => Number(one - other)))
    expect(new Set(a.tokens).size).toBe(4)
    expect(a.mostAtOnce).toBe(1)
  })

  test('that is stopped while a beat is on the wire ends its term once, and gives the lease back', async () => {
    const name = uniqueName()
    const log: string[] = []
    const { proxy, fencepost } = await throughProxy()
    const a = new Elector(fencepost, name, { who: 'a', log, ttl: '3s' })
    await until(log, 'a elected')
    const { promise: isBeating, resolve } = Promise.withResolvers<void>()
    proxy.onReply((_, sent) => {
      if (!sent.includes('fencepost_beat')) return 'pass'
      resolve()
      return 'swallow'
    })
    await isBeating
    expect(await a.election.stop()).toBe('released')
    expect(log).toEqual(['a elected', 'a ended stopped'])
    expect(
      await database.query('select from fencepost.leases where name = $1 and state <> $2', [name, 'free']),
    ).toEqual([])
  })
})

test('a lead longer than the TTL is one term', async () => {
  const name = uniqueName()
  const log: string[] = []
  const { promise: work, resolve } = Promise.withResolvers<void>()
  const a = new Elector(await database.open(), name, { who: 'a', log, ttl: '3s' }, async (lease) => {
    // Three of them make a TTL.
    let renewals = 0
    lease.on('renewed', () => {
      renewals += 1
      if (renewals === 4) log.push('a has led for longer than the TTL')
    })
    await work
  })
  const b = new Elector(await database.open(), name, { who: 'b', log, ttl: '3s' })
  await until(log, 'a has led for longer than the TTL')
  expect(log).toEqual(['a elected', 'a has led for longer than the TTL'])
  expect(a.election.isLeader).toBe(true)
  resolve()
  await until(log, 'b elected')
  expect(log).toEqual(['a elected', 'a has led for longer than the TTL', 'a ended returned', 'b elected'])
  await Promise.all([a.election.stop(), b.election.stop()])
})

test('stop, also twice, hands the lease straight to the next candidate', async () => {
  const name = uniqueName()
  const log: string[] = []
  const a = new Elector(await database.open(), name, { who: 'a', log, ttl: '1h' })
  await until(log, 'a elected')
  const b = new Elector(await database.open(), name, { who: 'b', log, ttl: '1h' })
  await waits(name)
  expect(await Promise.all([a.election.stop(), a.election.stop()])).toEqual(['handed-over', 'handed-over'])
  await until(log, 'b elected')
  expect(log).toEqual(['a elected', 'a ended stopped', 'b elected'])
  expect(b.tokens[0]).toBeGreaterThan(a.tokens[0]!)
  expect(await b.election.stop()).toBe('released')
})

test('a lead that never returns keeps the lease from nobody for longer than the TTL, and is never overlapped before', async () => {
  const name = uniqueName()
  const log: string[] = []
  const stuck = await database.open()
  const a = new Elector(stuck, name, { who: 'a', log, ttl: '600ms', stopTimeout: '100ms' }, () => {
    return new Promise(() => {})
  })
  await until(log, 'a elected')
  const b = new Elector(await database.open(), name, { who: 'b', log, ttl: '600ms' })
  expect(await a.election.stop()).toBe('abandoned')
  expect(log).toEqual(['a elected'])
  await until(log, 'b elected')
  expect(log).toEqual(['a elected', 'a ended abandoned', 'b elected'])
  await b.election.stop()
})

test('a Fencepost that is closed ends the term and the election', async () => {
  const name = uniqueName()
  const log: string[] = []
  const fencepost = await database.open()
  const a = new Elector(fencepost, name, { who: 'a', log, ttl: '1h' })
  await until(log, 'a elected')
  const b = new Elector(await database.open(), name, { who: 'b', log, ttl: '1h' })
  await fencepost.close()
  await until(log, 'b elected')
  expect(log).toEqual(['a elected', 'a ended closed', 'b elected'])
  expect(await a.election.stop()).toBe('not-leading')
  await b.election.stop()
})

test('who leads is known to one that is no candidate, and its wrong options are refused at once', async () => {
  const name = uniqueName()
  const log: string[] = []
  const watching = await database.open({ label: 'watcher' })
  const watcher = watching.elect(name, { candidate: false, ttl: '400ms' })
  const seen: (bigint | undefined)[] = []
  watcher.on('leader', (leader: Leader | undefined) => seen.push(leader?.token))
  expect(await watcher.leader()).toBeUndefined()
  const a = new Elector(await database.open({ label: 'first' }), name, { who: 'a', log, ttl: '400ms' })
  await until(log, 'a elected')
  expect(await watcher.leader()).toMatchObject({ holder: 'first', pid: process.pid, token: a.tokens[0] })
  await expect.poll(() => seen.at(-1), soon).toBe(a.tokens[0])
  const b = new Elector(await database.open({ label: 'second' }), name, { who: 'b', log, ttl: '400ms' })
  await a.election.stop()
  await until(log, 'b elected')
  await expect.poll(() => seen.at(-1), soon).toBe(b.tokens[0])
  await Promise.all([watcher.stop(), b.election.stop()])
  expect(log.some((entry) => entry.startsWith('watcher'))).toBe(false)
  expect(() => watching.elect(name, { ttl: 0 }, async () => {})).toThrow(InvalidArgumentError)
  expect(() => watching.elect('', {}, async () => {})).toThrow(InvalidArgumentError)
})

/** What can be said for certain about when a process led, by the clock that all processes of a machine share. */
interface Interval {
  readonly who: number
  readonly token: bigint
  readonly from: bigint
  readonly to: bigint
  readonly how: string
}

/**
 * From the call of `lead`, which comes after the grant. Up to its end where it led to its end; where the lease was lost or the
 * process killed, up to the last time at which it asked and was told that it holds the lease. A process that was paused cannot
 * know that it is not the leader before it runs again, and then it must be told so before anything else: an answer "held"
 * that came too late is found here as an overlap.
 */
function intervals(who: number, notes: readonly ElectorNote[]): Interval[] {
  return notes
    .filter((note) => note.what === 'lead')
    .map(({ token, at }) => {
      const own = notes.filter((note) => note.token === token)
      const how = own.find((note) => note.what === 'ended')?.reason ?? 'killed'
      const isWhole = ['returned', 'failed', 'stopped'].includes(how)
      const last = own.findLast((note) => note.what === (isWhole ? 'settled' : 'held'))
      return { who, token: BigInt(token), from: BigInt(at), to: BigInt(last?.at ?? at), how }
    })
}

test('two leaders never overlap: three processes, 200 forced changes, with pauses and kills', async () => {
  await database.query('create table led (place bigserial primary key, token bigint not null)')
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-electors-'))
  const name = uniqueName()
  const ttlMs = 300
  const started: ElectorProcess[] = []
  const standing = new Set<ElectorProcess>()
  const leaders: { readonly by: ElectorProcess; readonly token: bigint }[] = []
  let onElected: () => void = () => {}
  const start = async (): Promise<void> => {
    const record = join(directory, `${started.length}.jsonl`)
    await writeFile(record, '')
    const elector = new ElectorProcess({
      url: database.url,
      name,
      ttlMs,
      record,
      onElected: (token) => {
        leaders.push({ by: elector, token })
        onElected()
      },
    })
    started.push(elector)
    standing.add(elector)
  }
  const successor = async (to: bigint): Promise<(typeof leaders)[number]> => {
    for (;;) {
      const next = leaders.findLast(({ token }) => token > to)
      if (next !== undefined) return next
      await new Promise<void>((resolve) => (onElected = resolve))
    }
  }
  onTestFinished(async () => {
    await Promise.all(started.map((elector) => elector.kill()))
    await rm(directory, { recursive: true })
  })

  // Twenty changes of which most are graceful, because those are quick and go wrong in the most interesting ways.
  const plan =
    'stop return stop pause stop return block stop throw stop kill stop return stop stop throw stop return stop stop'
  const hows = plan.split(' ')
  const forced = new Map<string, number>()
  let changes = 0
  for (let count = 0; count < 3; count += 1) await start()
  let current = await successor(0n)
  for (let turn = 0; changes < 200; turn += 1) {
    const how = hows[turn % hows.length]!
    const { by, token } = current
    switch (how) {
      case 'stop':
      case 'return':
      case 'throw':
        by.send({ do: how })
        break
      case 'block':
        by.send({ do: 'block', ms: 2 * ttlMs })
        break
      case 'pause':
        by.signal('SIGSTOP')
        break
      default:
        standing.delete(by)
        await by.kill()
        await start()
    }
    current = await successor(token)
    // Only now, when another one leads, may it find out.
    if (how === 'pause') by.signal('SIGCONT')
    if (current.by !== by) {
      changes += 1
      forced.set(how, (forced.get(how) ?? 0) + 1)
    }
  }
  await Promise.all([...standing].map((elector) => elector.leave()))

  const all = started.map((elector) => elector.notes())
  const terms = all
    .flatMap((notes, who) => intervals(who, notes))
    .toSorted((a, b) => Number(a.token - b.token))
  for (const [index, term] of terms.entries()) {
    const next = terms[index + 1]
    if (next === undefined) continue
    const what = `term ${term.token} of ${term.who} (${term.how}) and term ${next.token} of ${next.who}`
    expect(next.token, what).toBeGreaterThan(term.token)
    expect(term.to, `${what} overlap by ${term.to - next.from} ns`).toBeLessThanOrEqual(next.from)
  }
  for (const [who, notes] of all.entries()) {
    const own = notes.filter(({ what }) => what === 'elected' || what === 'ended')
    const wasKilled = !standing.has(started[who]!)
    for (let at = 0; at < own.length; at += 2) {
      expect(own[at]!.what).toBe('elected')
      // Who was killed in a term could not say any more that it ended.
      if (wasKilled && at === own.length - 1) continue
      expect(own[at + 1]).toMatchObject({ what: 'ended', token: own[at]!.token })
    }
    expect(notes.filter(({ running = 1 }) => running > 1)).toEqual([])
    expect(started[who]!.stderr).toBe('')
  }
  const written = await database.query<{ token: string }>('select token::text from led order by place')
  const tokens = written.map((row) => BigInt(row.token))
  expect(tokens).toEqual(tokens.toSorted((a, b) => Number(a - b)))
  expect(tokens.length).toBeGreaterThan(150)
  // It would prove nothing if the changes had been of one kind.
  for (const how of ['stop', 'return', 'throw', 'block', 'pause', 'kill']) {
    expect(forced.get(how), how).toBeGreaterThan(5)
  }
  const losses = terms.filter(({ how }) => how === 'lost' || how === 'killed').length
  console.log(`election: ${terms.length} terms, ${changes} changes of leader, ${losses} of them by a loss`)
}, 120_000)
