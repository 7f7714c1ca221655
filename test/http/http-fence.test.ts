import {
  type IncomingMessage,
  type Server,
  type ServerResponse,
  createServer,
  request as httpRequest,
} from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Pool } from 'pg'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { HttpFence, type HttpFenceOptions } from '../../src/http/http-fence.ts'
import type { Passage } from '../../src/http/passage.ts'
import { RequestRefusedError } from '../../src/http/request-refused.ts'
import { Fencepost } from '../../src/index.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { fenceOnlyDatabase, installed, takeOut, waitsOrAnswers } from '../support/fence-only.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'

const database = useDatabase()
const fenceOnly = fenceOnlyDatabase()
const unguarded = useDatabase()

let resources = 0
let resource: string
let pool: Pool
let servers: Server[] = []

beforeAll(() => {
  pool = database.newPool({ max: 20 })
})

beforeEach(() => {
  resources += 1
  resource = `file/${resources}`
})

afterEach(async () => {
  for (const server of servers) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
  servers = []
})

const tokenHeader = (token: number | bigint | string) => ({ 'Fencing-Token': String(token) })

type Handler = (request: Request, passage: Passage) => Response | Promise<Response>

/** A server of the fetch style, as node:http can be one. */
async function serve(handler: Handler, options: HttpFenceOptions = {}, of: Pool = pool): Promise<string> {
  const wrapped = new HttpFence(of, options).wrap(resource, handler)
  return listen(async (incoming, outgoing) => {
    const aborted = new AbortController()
    outgoing.on('close', () => aborted.abort(new Error('the client went away')))
    const response = await wrapped(
      new Request(`http://service${incoming.url}`, {
        method: incoming.method!,
        headers: new Headers(
          Object.entries(incoming.headersDistinct).flatMap(([name, values]) =>
            values!.map((value): [string, string] => [name, value]),
          ),
        ),
        signal: aborted.signal,
      }),
    )
    outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(await response.text())
  })
}

async function listen(
  handler: (incoming: IncomingMessage, outgoing: ServerResponse) => Promise<void>,
): Promise<string> {
  const server = createServer((incoming, outgoing) => {
    handler(incoming, outgoing).catch((error: unknown) => {
      if (!outgoing.headersSent) outgoing.writeHead(500)
      outgoing.end(String(error))
    })
  })
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
}

const put = (url: string, token?: number | bigint | string): Promise<Response> =>
  fetch(url, { method: 'PUT', headers: token === undefined ? {} : tokenHeader(token) })

interface Problem {
  readonly status: number
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly token?: string
  readonly currentToken?: string
}

async function problemOf(response: Response): Promise<Problem> {
  expect(response.headers.get('content-type')).toBe('application/problem+json')
  const problem = (await response.json()) as Problem
  expect(problem.status).toBe(response.status)
  return problem
}

/** A handler that tells when it runs, and runs until it is told to go on. */
class Gate {
  readonly #entered = Promise.withResolvers<Passage>()
  readonly #goOn = Promise.withResolvers<void>()
  get entered(): Promise<Passage> {
    return this.#entered.promise
  }
  open(): void {
    this.#goOn.resolve()
  }
  async pass(passage: Passage): Promise<void> {
    this.#entered.resolve(passage)
    await this.#goOn.promise
  }
}

describe('a request', () => {
  test('with a token is handled, and the answer passes unchanged', async () => {
    const url = await serve(
      async (request, passage) =>
        new Response(`${await request.text()}${passage.token} ${passage.resource}`, {
          status: 201,
          headers: { 'x-mine': 'yes' },
        }),
    )
    const response = await put(url, 33)
    expect(response.status).toBe(201)
    expect(response.headers.get('x-mine')).toBe('yes')
    expect(await response.text()).toBe(`33 ${resource}`)
  })

  test('may come again with the same token and with a higher one, and not with a lower one', async () => {
    let handled = 0
    const url = await serve(() => {
      handled += 1
      return new Response()
    })
    for (const token of [33, 33, 34, 34, 9223372036854775807n])
      expect((await put(url, token)).status).toBe(200)
    const refused = await put(url, 34)
    expect(refused.status).toBe(412)
    expect(refused.headers.get('retry-after')).toBeNull()
    expect(await problemOf(refused)).toMatchObject({
      code: 'STALE_TOKEN',
      title: 'Precondition Failed',
      token: '34',
      currentToken: '9223372036854775807',
    })
    expect(handled).toBe(5)
    expect(await database.query('select token from fencepost.resource where name = $1', [resource])).toEqual([
      { token: '9223372036854775807' },
    ])
  })

  test('of one resource has nothing to do with another', async () => {
    const fence = new HttpFence(pool)
    const wrapped = fence.wrap(
      async (request) => `${resource}${new URL(request.url).pathname}`,
      () => new Response(),
    )
    const ask = (path: string, token: number) =>
      wrapped(new Request(`http://service${path}`, { headers: tokenHeader(token) }))
    expect((await ask('/a', 34)).status).toBe(200)
    expect((await ask('/b', 33)).status).toBe(200)
    expect((await ask('/a', 33)).status).toBe(412)
  })

  test('without a token is told that it needs one', async () => {
    const url = await serve(() => new Response())
    const refused = await put(url)
    expect(refused.status).toBe(428)
    expect(await problemOf(refused)).toMatchObject({ code: 'TOKEN_MISSING', title: 'Precondition Required' })
  })

  test.each([
    '0',
    '-1',
    '+1',
    '1.0',
    '1e3',
    '0x10',
    '007',
    'abc',
    '9223372036854775808',
    '1'.repeat(40),
    '1,2',
    '1 2',
    '٣',
  ])('with the token "%s" is malformed', async (token) => {
    const fence = new HttpFence(pool)
    const headers = { 'fencing-token': token }
    await expect(fence.enter(headers, resource)).rejects.toMatchObject({
      code: 'TOKEN_MALFORMED',
      status: 400,
    })
  })

  test('with several tokens is malformed, however the server hands them over', async () => {
    const url = await serve(() => new Response())
    const { promise, resolve } = Promise.withResolvers<IncomingMessage>()
    httpRequest(url, { headers: { 'Fencing-Token': ['33', '34'] } }, resolve).end()
    const response = await promise
    response.resume()
    expect(response.statusCode).toBe(400)
    const fence = new HttpFence(pool)
    for (const headers of [
      { 'fencing-token': ['33', '34'] },
      { 'fencing-token': '33', 'Fencing-Token': '34' },
      new Headers([
        ['fencing-token', '33'],
        ['Fencing-Token', '33'],
      ]),
    ]) {
      await expect(fence.enter(headers, resource)).rejects.toMatchObject({ status: 400 })
    }
  })

  test('may carry the header in any case, and as a list of one', async () => {
    const fence = new HttpFence(pool)
    for (const headers of [
      { 'FENCING-TOKEN': '5' },
      { 'fencing-token': ['5'] },
      new Headers(tokenHeader(5)),
    ]) {
      await using passage = await fence.enter(headers, resource)
      expect(passage.token).toBe(5n)
    }
  })

  test('of a lease sends its token, and is refused once a newer term has come', async () => {
    const url = await serve(() => new Response())
    const fencepost = await database.open()
    const lease = await fencepost.acquire(resource)
    const headers = { 'Fencing-Token': String(lease.token) }
    expect((await fetch(url, { headers })).status).toBe(200)
    await lease.release()
    const next = await fencepost.acquire(resource)
    expect((await put(url, next.token)).status).toBe(200)
    expect((await fetch(url, { headers })).status).toBe(412)
  })

  test('is fenced in a database that only guards data as well', async () => {
    const url = await serve(() => new Response(), {}, fenceOnly.pool)
    expect((await put(url, 34)).status).toBe(200)
    expect((await put(url, 33)).status).toBe(412)
  })
})

describe('order', () => {
  /** A store that cannot compare tokens, and a race for it. Returns the tokens in the order in which they were written. */
  async function lateWriter(of: TestDatabase): Promise<number[]> {
    const store: number[] = []
    const slow = new Gate()
    const url = await serve(
      async (_, passage) => {
        if (passage.token === 33n) await slow.pass(passage)
        store.push(Number(passage.token))
        return new Response()
      },
      {},
      of.newPool({ max: 20 }),
    )
    const late = put(url, 33)
    await slow.entered
    const next = put(url, 34)
    await waitsOrAnswers(of, next)
    slow.open()
    expect((await Promise.all([late, next])).map((response) => response.status)).toEqual([200, 200])
    return store
  }

  test('a request that was let in and is delayed writes before the newer token, which waits for it', async () => {
    expect(await lateWriter(database)).toEqual([33, 34])
  })

  test.each<[what: string, functionName: string, text: RegExp, instead: string]>([
    [
      'the lock of a request on its own row',
      'enter_resource',
      /r\.token = p_token for share;/,
      'r.token = p_token;',
    ],
    ['the wait for older requests', 'drain_resource', /\n\s*for update\)/, '\n for update skip locked)'],
  ])(
    '%s is what keeps it: without it the older one writes last',
    async (what, functionName, text, instead) => {
      const before = await Promise.all(
        ['enter_resource', 'drain_resource'].map((name) => installed(unguarded, name)),
      )
      await takeOut(unguarded, functionName, text, instead)
      if (what === 'the wait for older requests')
        await takeOut(unguarded, 'enter_resource', /or exists \(select from resource r[^)]*\)/, '')
      try {
        expect(await lateWriter(unguarded)).toEqual([34, 33])
      } finally {
        for (const source of before) await unguarded.query(source)
      }
    },
  )

  /** A request that has found its token to be the highest, and then sees a newer one come and go before it has its lock. */
  async function enteredTooLate(of: TestDatabase): Promise<string> {
    const [older, newer] = [await of.session(), await of.session()]
    const ask = async (client: typeof older, token: number): Promise<string> =>
      (
        await client.query<{ outcome: string }>(
          'select outcome from fencepost.enter_resource($1, $2, 10000, 10000)',
          [resource, token],
        )
      ).rows[0]!.outcome
    // The row of 33 comes late: when 34 looks for older ones, it is not there yet.
    await older.query('begin')
    await older.query('select fencepost.see_token($1, 33, 10000)', [resource])
    await newer.query('select fencepost.see_token($1, 34, 10000)', [resource])
    await newer.query('select fencepost.drain_resource($1, 34, 10000)', [resource])
    await newer.query('begin')
    expect(await ask(newer, 34)).toBe('entered')
    await older.query('commit; begin')
    const outcome = await ask(older, 33)
    await older.query('rollback')
    await newer.query('rollback')
    return outcome
  }

  test('a token that was remembered late does not get in beside a newer one', async () => {
    expect(await enteredTooLate(database)).toBe('stale')
  })

  test('the comparison is what refuses it: without it both are in', async () => {
    const before = await installed(unguarded, 'enter_resource')
    await takeOut(
      unguarded,
      'enter_resource',
      /if highest > p_token then\s+outcome := 'stale';\s+return;\s+elsif highest is distinct from p_token/,
      'if highest is null',
    )
    await takeOut(
      unguarded,
      'enter_resource',
      /if highest > p_token then\s+outcome := 'stale';\s+elsif not/,
      'if not',
    )
    try {
      expect(await enteredTooLate(unguarded)).toBe('entered')
    } finally {
      await unguarded.query(before)
    }
  })

  test('older tokens are refused from the moment a newer one is seen, also while that still waits', async () => {
    const slow = new Gate()
    const url = await serve(async (_, passage) => {
      if (passage.token === 33n) await slow.pass(passage)
      return new Response()
    })
    const first = put(url, 33)
    await slow.entered
    const next = put(url, 34)
    await waitsOrAnswers(database, next)
    const refused = await put(url, 33)
    expect(refused.status).toBe(412)
    expect(await problemOf(refused)).toMatchObject({ currentToken: '34' })
    slow.open()
    expect((await Promise.all([first, next])).map((response) => response.status)).toEqual([200, 200])
  })

  test('requests with one token run side by side', async () => {
    const gates = Array.from({ length: 5 }, () => new Gate())
    let next = 0
    const url = await serve(async (_, passage) => {
      await gates[next++]!.pass(passage)
      return new Response()
    })
    const answers = gates.map(() => put(url, 7))
    await Promise.all(gates.map((gate) => gate.entered))
    for (const gate of gates) gate.open()
    expect((await Promise.all(answers)).map((response) => response.status)).toEqual([200, 200, 200, 200, 200])
  })

  test('of many tokens at once, what is written rises', async () => {
    const store: number[] = []
    const url = await serve(async (_, passage) => {
      await pool.query('select 1')
      store.push(Number(passage.token))
      return new Response()
    })
    const tokens = Array.from({ length: 40 }, (_, index) => 1 + ((index * 7) % 40))
    const statuses = (await Promise.all(tokens.map((token) => put(url, token)))).map(
      (response) => response.status,
    )
    expect(statuses.filter((status) => status !== 200 && status !== 412)).toEqual([])
    expect(store).toEqual(store.toSorted((a, b) => a - b))
    expect(store.at(-1)).toBe(40)
  })

  test('a newer token that waits too long is refused for now, and older ones stay shut out', async () => {
    const fence = new HttpFence(pool)
    const passage = await fence.enter(tokenHeader(33), resource)
    const impatient = new HttpFence(pool, { wait: '500ms' }).wrap(resource, () => new Response())
    const refused = await impatient(new Request('http://service/', { headers: tokenHeader(34) }))
    expect(refused.status).toBe(503)
    expect(refused.headers.get('retry-after')).toBe('1')
    expect(await problemOf(refused)).toMatchObject({ code: 'RESOURCE_BUSY', token: '34' })
    await expect(fence.enter(tokenHeader(33), resource)).rejects.toMatchObject({ status: 412 })
    expect(await passage.leave()).toBe(true)
    await (await fence.enter(tokenHeader(34), resource)).leave()
  })
})

describe('a handler', () => {
  test('that throws lets newer tokens in, and its error passes', async () => {
    const wrapped = new HttpFence(pool).wrap(resource, () => Promise.reject(new Error('of my own')))
    const ask = (token: number) => wrapped(new Request('http://service/', { headers: tokenHeader(token) }))
    await expect(ask(33)).rejects.toThrow('of my own')
    await expect(ask(34)).rejects.toThrow('of my own')
    expect((await ask(33)).status).toBe(412)
  })

  test('keeps its place when its client goes away, until it is done', async () => {
    const slow = new Gate()
    const url = await serve(async (request, passage) => {
      if (passage.token === 33n) await slow.pass(passage)
      return new Response(String(request.signal.aborted))
    })
    const client = new AbortController()
    const gone = fetch(url, { headers: tokenHeader(33), signal: client.signal })
    const passage = await slow.entered
    client.abort()
    await expect(gone).rejects.toThrow()
    const next = put(url, 34)
    await waitsOrAnswers(database, next)
    expect(passage.signal.aborted).toBe(false)
    slow.open()
    expect((await next).status).toBe(200)
  })

  test('is not called for a client that goes away while it waits', async () => {
    const fence = new HttpFence(pool)
    const passage = await fence.enter(tokenHeader(33), resource)
    const client = new AbortController()
    let isCalled = false
    const next = fence.wrap(resource, () => {
      isCalled = true
      return new Response()
    })(new Request('http://service/', { headers: tokenHeader(34), signal: client.signal }))
    next.catch(() => {})
    await waitsOrAnswers(database, next)
    client.abort(new Error('gone'))
    await expect(next).rejects.toThrow('gone')
    expect(isCalled).toBe(false)
    await passage.leave()
    await expect(
      fence.enter(tokenHeader(35), resource, { signal: AbortSignal.abort(new Error('before')) }),
    ).rejects.toThrow('before')
  })

  test('that takes too long is told by its signal before a newer token is let in', async () => {
    const events: string[] = []
    const slow = new Gate()
    const url = await serve(
      async (_, passage) => {
        events.push(`enter ${passage.token}`)
        if (passage.token !== 33n) return new Response()
        passage.signal.addEventListener('abort', () => events.push('abort 33'))
        await slow.pass(passage)
        return new Response('late')
      },
      { timeout: '500ms' },
    )
    const late = put(url, 33)
    const passage = await slow.entered
    expect((await put(url, 34)).status).toBe(200)
    expect(events).toEqual(['enter 33', 'abort 33', 'enter 34'])
    expect(passage.signal.reason).toMatchObject({ code: 'PASSAGE_LOST' })
    // Its session has been ended by the server, so its answer would be a claim that nobody can make.
    slow.open()
    const answer = await late
    expect(answer.status).toBe(500)
    expect(await problemOf(answer)).toMatchObject({ code: 'PASSAGE_LOST' })
  })

  test('is told when its connection breaks', async () => {
    const fence = new HttpFence(pool)
    const passage = await fence.enter(tokenHeader(33), resource)
    const aborted = new Promise((resolve) => passage.signal.addEventListener('abort', resolve))
    await database.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and state = 'idle in transaction'`,
    )
    await aborted
    expect(passage.signal.reason).toMatchObject({ code: 'PASSAGE_LOST' })
    expect(await passage.leave()).toBe(false)
    expect(await passage.leave()).toBe(false)
    await (await fence.enter(tokenHeader(34), resource)).leave()
  })

  test('that leaves in time learns that it was in order, and hears of nothing afterwards', async () => {
    const fence = new HttpFence(pool, { timeout: '10s' })
    const passage = await fence.enter(tokenHeader(33), resource)
    expect(await passage.leave()).toBe(true)
    expect(await passage.leave()).toBe(true)
    expect(passage.signal.aborted).toBe(false)
  })
})

describe('connections', () => {
  test('are borrowed up to the bound, half of the pool by default, and are given back', async () => {
    const small = database.newPool({ max: 4 })
    const fence = new HttpFence(small, { wait: '1s' })
    const passages = [
      await fence.enter(tokenHeader(1), resource),
      await fence.enter(tokenHeader(1), resource),
    ]
    await expect(fence.enter(tokenHeader(1), resource)).rejects.toMatchObject({
      code: 'RESOURCE_BUSY',
      status: 503,
    })
    expect(small.totalCount).toBe(2)
    // The handlers' own use of the pool is not starved.
    await small.query('select 1')
    const waiting = new HttpFence(small, { maxConnections: 1 })
    const first = await waiting.enter(tokenHeader(1), resource)
    const second = waiting.enter(tokenHeader(1), resource)
    await first.leave()
    await (await second).leave()
    for (const passage of passages) await passage.leave()
    expect(small.idleCount).toBe(small.totalCount)
    expect(small.ended).toBe(false)
  })

  test('a pool that has none to give is given up in time, and what it gives later goes back', async () => {
    const single = database.newPool({ max: 1 })
    const taken = await single.connect()
    const fence = new HttpFence(single, { wait: '50ms' })
    await expect(fence.enter(tokenHeader(1), resource)).rejects.toMatchObject({ code: 'RESOURCE_BUSY' })
    taken.release()
    await single.query('select 1')
    expect(single.idleCount).toBe(1)
  })

  test('refusals leave no session behind in a transaction', async () => {
    const fence = new HttpFence(pool)
    await (await fence.enter(tokenHeader(34), resource)).leave()
    for (let count = 0; count < 30; count += 1)
      await expect(fence.enter(tokenHeader(33), resource)).rejects.toMatchObject({ status: 412 })
    expect(
      await database.query(`select from pg_stat_activity
        where datname = current_database() and state like 'idle in transaction%'`),
    ).toEqual([])
    expect(pool.idleCount).toBe(pool.totalCount)
  })
})

describe('a database that cannot be asked', () => {
  const cases: [what: string, of: () => Pool, code: string][] = [
    [
      'is away',
      () => database.newPool({ connectionString: 'postgres://u:geheim@127.0.0.1:1/x' }),
      'DATABASE_UNAVAILABLE',
    ],
    [
      'has no schema',
      () => database.newPool({ connectionString: new URL('/postgres', database.url).href }),
      'SCHEMA_MISSING',
    ],
  ]
  test.each(cases)('and %s makes a 503 that tells the client nothing more', async (_, of, code) => {
    const logged: string[] = []
    const logger = { debug() {}, info() {}, warn() {}, error: (message: string) => void logged.push(message) }
    const url = await serve(() => new Response(), { logger }, of())
    const refused = await put(url, 1)
    expect(refused.status).toBe(503)
    expect(refused.headers.get('retry-after')).toBe('1')
    const problem = await problemOf(refused)
    expect(problem).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    expect(JSON.stringify(problem)).not.toMatch(/geheim|127\.0\.0\.1|schema/)
    expect(logged).toHaveLength(1)
    await expect(new HttpFence(of()).enter(tokenHeader(1), resource)).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
      cause: { code },
    })
  })

  test('and a pool that has ended is named', async () => {
    const ended = database.newPool()
    await ended.end()
    await expect(new HttpFence(ended).enter(tokenHeader(1), resource)).rejects.toMatchObject({
      status: 503,
      cause: { code: 'POOL_ENDED' },
    })
  })

  test('and does not answer is given up in time', async () => {
    const proxy = await TcpProxy.start(database.url)
    const proxied = database.newPool({ connectionString: proxy.url })
    await (await new HttpFence(proxied).enter(tokenHeader(1), resource)).leave()
    proxy.drop()
    const fence = new HttpFence(proxied, { wait: '200ms' })
    await expect(fence.enter(tokenHeader(1), resource)).rejects.toMatchObject({
      code: 'RESOURCE_BUSY',
      status: 503,
    })
    proxy.restore()
    await proxy.stop()
  })

  test('comes back, and the highest token with it', async () => {
    const proxy = await TcpProxy.start(database.url)
    const proxied = database.newPool({ connectionString: proxy.url })
    const url = await serve(() => new Response(), {}, proxied)
    expect((await put(url, 34)).status).toBe(200)
    proxy.cut()
    await new Promise<void>((resolve) => {
      const look = (): void => (proxied.totalCount === 0 ? resolve() : void setImmediate(look))
      look()
    })
    expect((await put(url, 33)).status).toBe(412)
    expect((await put(url, 34)).status).toBe(200)
    await proxied.end()
    await proxy.stop()
  })
})

describe('the low-level way', () => {
  test('works with node:http', async () => {
    const fence = new HttpFence(pool)
    const url = await listen(async (incoming, outgoing) => {
      try {
        await using passage = await fence.enter(incoming.headers, resource)
        outgoing.writeHead(200).end(String(passage.token))
      } catch (error) {
        if (!(error instanceof RequestRefusedError)) throw error
        error.writeTo(outgoing)
      }
    })
    expect(await (await put(url, 34)).text()).toBe('34')
    const refused = await put(url, 33)
    expect(refused.status).toBe(412)
    expect(await problemOf(refused)).toMatchObject({ code: 'STALE_TOKEN' })
    expect((await put(url)).status).toBe(428)
  })

  test('gives frameworks what they look for in an error: status and headers, and getResponse()', async () => {
    const fence = new HttpFence(pool)
    await (await fence.enter(tokenHeader(34), resource)).leave()
    const error: unknown = await fence.enter(tokenHeader(33), resource).catch((refused: unknown) => refused)
    expect(error).toMatchObject({
      name: 'RequestRefusedError',
      status: 412,
      resource,
      token: 33n,
      currentToken: 34n,
      headers: { 'content-type': 'application/problem+json' },
    })
    const response = (error as RequestRefusedError).getResponse()
    expect(response.status).toBe(412)
    // What the service calls it stays its own.
    expect(await response.text()).not.toContain(resource)
  })
})

test('what is out of bounds is named before anything is asked', async () => {
  const fence = new HttpFence(pool)
  for (const wrong of [undefined, null, {}, 'postgres://'])
    expect(() => new HttpFence(wrong as never)).toThrow(expect.objectContaining({ argument: 'pool' }))
  for (const [options, argument] of [
    [{ wait: 0 }, 'wait'],
    [{ timeout: '2h' }, 'timeout'],
    [{ maxConnections: 0 }, 'maxConnections'],
    [{ maxConnections: 1.5 }, 'maxConnections'],
  ] as const)
    expect(() => new HttpFence(pool, options)).toThrow(expect.objectContaining({ argument }))
  for (const wrong of ['', 'x'.repeat(513), 'a\n', 7, undefined]) {
    expect(() => fence.wrap(wrong as string, () => new Response())).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
    )
    await expect(fence.enter(tokenHeader(1), wrong as string)).rejects.toMatchObject({ argument: 'resource' })
  }
  expect(() => fence.wrap('x', undefined as never)).toThrow(expect.objectContaining({ argument: 'handler' }))
  await expect(fence.enter(undefined as never, 'x')).rejects.toMatchObject({ argument: 'headers' })
})

test('what was refused once stays refused after removal and re-installation', async () => {
  const fence = new HttpFence(fenceOnly.pool)
  await (await fence.enter(tokenHeader(34), resource)).leave()
  const options = { connectionString: fenceOnly.url, fenceOnly: true }
  await Fencepost.migrate({ ...options, direction: 'down' })
  await Fencepost.migrate(options)
  await expect(fence.enter(tokenHeader(33), resource)).rejects.toMatchObject({ status: 412 })
})
