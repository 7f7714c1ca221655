import { randomUUID } from 'node:crypto'
import type { Client } from 'pg'
import { beforeAll, describe, expect, test } from 'vitest'
import { type Compiled, compile, translate } from '../../spec/compiled-model.ts'
import { simulate, type Step } from '../../spec/traces.ts'
import type { Server, Term, Tx, World } from '../../spec/world.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'

// What Quint's simulator has done with the model is done with the functions of the database, step by step, and each state compared: the
// first primary is one database, its standby and successor another. A tick is an hour, moved by hand in the rows, so no two moments
// that are compared ever fall together.

const file = new URL('../../spec/controls.qnt', import.meta.url).pathname
const ttlTicks = 2
const servers = [useDatabase(), useDatabase()]
let alone: readonly (readonly Step[])[] = []
let failingOver: readonly (readonly Step[])[] = []
let compiled: Compiled

const simulating = { file, steps: 25, seed: 4 }

// Each of these starts Quint once.
beforeAll(async () => {
  alone = await simulate({ ...simulating, main: 'crowd', step: 'lively', traces: 24 })
})
beforeAll(async () => {
  failingOver = await simulate({ ...simulating, main: 'sound', step: 'livelyStep', traces: 12 })
})
beforeAll(async () => {
  compiled = await compile(file, 'fencepost', 'sound')
})
beforeAll(async () => {
  for (const server of servers) {
    await server.query('create table written (lease text, token bigint, holder uuid)')
  }
})

const leaseName = (lease: number): string => `lease ${lease}`
const txName = ({ server, holder, lease, token }: Tx): string => [server, holder, lease, token].join()

/** Thrown where the database does not do what the model does. */
class Disagreement extends Error {}

function agree(what: string, database: unknown, model: unknown): void {
  const [is, should] = [JSON.stringify(database), JSON.stringify(model)]
  if (is !== should) throw new Disagreement(`${what}: the database says ${is}, the model ${should}`)
}

const answerOf: Readonly<Record<string, string>> = { FP001: 'stale', FP002: 'expired', FP003: 'unknown' }

/** What an error means in the words of the model. */
function refusal(error: unknown): string {
  const answer = answerOf[(error as { readonly code?: string }).code ?? '']
  if (answer === undefined) throw error
  return answer
}

/** The model's world, made of two databases. */
class Real {
  readonly #ids: ReadonlyMap<number, string>
  readonly #sessions = new Map<string, Client>()
  /** Which of two functions that do the same is called. */
  #isPlain = false
  readonly #committed: string[] = []

  constructor(world: World) {
    this.#ids = new Map(Object.keys(world.processes).map((h) => [Number(h), randomUUID()]))
  }

  static async begin(world: World): Promise<Real> {
    for (const server of servers) {
      await server.query('truncate fencepost.waiter, fencepost.lease, fencepost.holder, written')
      await server.query('update fencepost.token_sequence set last_token = 0')
    }
    return new Real(world)
  }

  /** Ends what is still open. */
  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#sessions.values()].map((session) => session.end()))
  }

  async take({ action, picks, world }: Step): Promise<void> {
    this.#isPlain = !this.#isPlain
    const { s, h, l, t, x } = picks
    const server = servers[s ?? 0]!
    const id = this.#ids.get(h ?? 0)
    switch (action) {
      // What happens in processes and in the network only.
      case 'sendBeat':
      case 'hearBeat':
      case 'loseBeat':
      case 'crash':
        break
      case 'tick':
      case 'promote':
        await Promise.all(
          servers.map((each) =>
            each.query(
              `update fencepost.holder set expires_at = expires_at - interval '1 hour', ended_at = ended_at - interval '1 hour'`,
            ),
          ),
        )
        break
      case 'replicate':
        await this.#replicate()
        break
      case 'join':
        await server.query(`select fencepost.join_holder($1, 'model', null, null, null, $2)`, [
          id,
          ttlTicks * 3_600_000,
        ])
        break
      case 'end':
        await server.query('select fencepost.end_holder($1)', [id])
        break
      case 'forget':
        await server.query('delete from fencepost.lease where name = $1 and holder_id is null', [
          leaseName(l!),
        ])
        break
      case 'beat': {
        const [row] = await server.query<{ alive: boolean }>('select fencepost.beat($1) as alive', [id])
        agree('beat', row!.alive ? 'alive' : 'over', world.answer)
        break
      }
      case 'acquire':
        agree(
          'acquire',
          await this.#acquire(server, id!, l!),
          world.answer === 'took over' ? 'granted' : world.answer,
        )
        break
      case 'release':
        agree('release', await this.#release(server, id!, t!), world.answer)
        break
      case 'fence':
        agree('fence', await this.#fence({ server: s!, holder: h!, ...t! }), world.answer)
        break
      case 'commit':
        await this.#finish(x!, 'commit')
        this.#committed.push(txName(x!))
        break
      case 'abort':
        await this.#finish(x!, 'rollback')
        break
      default:
        throw new Error(`the model does "${action}", which is not replayed`)
    }
    await this.#compare(world)
  }

  async #replicate(): Promise<void> {
    const [primary, standby] = servers as [TestDatabase, TestDatabase]
    for (const table of ['holder', 'lease', 'token_sequence']) {
      const [row] = await primary.query<{ rows: string }>(
        `select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text as rows from fencepost.${table} t`,
      )
      await standby.query(`delete from fencepost.${table}`)
      await standby.query(
        `insert into fencepost.${table} select * from jsonb_populate_recordset(null::fencepost.${table}, $1)`,
        [row!.rows],
      )
    }
  }

  async #acquire(server: TestDatabase, id: string, lease: number): Promise<string> {
    const name = this.#isPlain ? 'acquire' : 'acquire_batch'
    try {
      const [row] = await server.query<{ token: string | null; reason: string | null }>(
        `select token, reason from fencepost.${name}($1, $2)`,
        [[leaseName(lease)], id],
      )
      return row!.token === null ? row!.reason! : 'granted'
    } catch (error) {
      return refusal(error)
    }
  }

  async #release(server: TestDatabase, id: string, { lease, token }: Term): Promise<string> {
    const name = this.#isPlain ? 'release' : 'release_batch'
    const [row] = await server.query<{ outcome: string }>(
      `select outcome from fencepost.${name}($1, $2, $3)`,
      [[leaseName(lease)], [token], id],
    )
    return row!.outcome
  }

  async #fence(tx: Tx): Promise<string> {
    const session = await servers[tx.server]!.session()
    const term = [leaseName(tx.lease), tx.token, this.#ids.get(tx.holder)]
    try {
      await session.query('begin')
      await session.query('select fencepost.fence($1, $2, $3)', term)
      await session.query('insert into written (lease, token, holder) values ($1, $2, $3)', term)
    } catch (error) {
      await session.end()
      return refusal(error)
    }
    // The model knows two of one term as one.
    await this.#sessions.get(txName(tx))?.end()
    this.#sessions.set(txName(tx), session)
    return 'fenced'
  }

  async #finish(tx: Tx, how: 'commit' | 'rollback'): Promise<void> {
    const session = this.#sessions.get(txName(tx))!
    this.#sessions.delete(txName(tx))
    await session.query(how)
    await session.end()
  }

  async #compare({ now, servers: modelled, txs }: World): Promise<void> {
    agree('open transactions', [...this.#sessions.keys()].toSorted(), txs.map(txName).toSorted())
    await Promise.all(servers.map((server, s) => this.#compareServer(server, s, now, modelled[s]!, txs)))
  }

  async #compareServer(
    server: TestDatabase,
    s: number,
    now: number,
    modelled: Server,
    txs: readonly Tx[],
  ): Promise<void> {
    const [row] = await server.query<{ holders: Rows; leases: Rows; last: number }>(
      `select (select coalesce(jsonb_object_agg(id, jsonb_build_array(
                        ceil(extract(epoch from expires_at - clock_timestamp()) / 3600), ended_at is not null)), '{}')
                 from fencepost.holder) as holders,
              (select coalesce(jsonb_object_agg(name, jsonb_build_array(token, holder_id, fencepost.is_fenced(name))), '{}')
                 from fencepost.lease) as leases,
              (select last_token::integer from fencepost.token_sequence where name = 'default') as last`,
    )
    agree('last token', row!.last, modelled.lastToken)
    for (const [h, { isThere, expiresAt, isEnded }] of Object.entries(modelled.holders)) {
      const found = row!.holders[this.#ids.get(Number(h))!]
      agree(`holder ${h} of server ${s}`, found ?? null, isThere ? [expiresAt - now, isEnded] : null)
    }
    for (const [l, { token, holder }] of Object.entries(modelled.leases)) {
      const found = row!.leases[leaseName(Number(l))]
      const isFenced = txs.some((tx) => tx.server === s && tx.lease === Number(l))
      const expected = [token, holder === 0 ? null : this.#ids.get(holder), isFenced]
      agree(`lease ${l} of server ${s}`, found ?? null, token === 0 ? null : expected)
    }
  }

  /** Everything that was committed is there, and nothing else. */
  async expectWritten(): Promise<void> {
    const found: string[] = []
    for (const [s, server] of servers.entries()) {
      for (const { lease, token, holder } of await server.query('select * from written')) {
        const [h] = [...this.#ids].find(([, id]) => id === holder)!
        found.push([s, h, String(lease).replace('lease ', ''), token].join())
      }
    }
    agree('committed writes', found.toSorted(), this.#committed.toSorted())
  }
}

type Rows = Readonly<Record<string, unknown>>

/** Rejects where the database and the model differ. */
async function replay(trace: readonly Step[]): Promise<void> {
  await using real = await Real.begin(trace[0]!.world)
  for (const [number, step] of trace.entries()) {
    if (number === 0) continue
    try {
      await real.take(step)
    } catch (error) {
      if (error instanceof Disagreement)
        error.message = `step ${number}, ${step.action} ${JSON.stringify(step.picks)}: ${error.message}`
      throw error
    }
  }
  await real.expectWritten()
}

/** How many traces the database agrees with. */
async function replayAll(traces: readonly (readonly Step[])[]): Promise<number> {
  let count = 0
  for (const trace of traces) {
    await replay(trace)
    count += 1
  }
  return count
}

test('whatever the model does, the database does', async () => {
  expect(await replayAll(alone)).toBe(24)
})

test('whatever the model does in a failover, two databases do', async () => {
  expect(await replayAll(failingOver)).toBe(12)
})

test('the traces have all that the model can do and say in them', () => {
  const seen = (of: (step: Step) => string): readonly string[] =>
    [...new Set([...alone, ...failingOver].flat().map(of))].toSorted()
  expect(seen(({ action }) => action)).toEqual(
    [
      ...[
        'abort',
        'acquire',
        'beat',
        'commit',
        'crash',
        'end',
        'fence',
        'forget',
        'hearBeat',
        'init',
        'join',
        'loseBeat',
      ],
      ...['promote', 'release', 'replicate', 'sendBeat', 'tick'],
    ].toSorted(),
  )
  expect(seen(({ action, world }) => `${action} ${world.answer}`)).toEqual(
    expect.arrayContaining([
      ...['acquire granted', 'acquire took over', 'acquire held', 'acquire draining', 'acquire expired'],
      ...['release released', 'release not_held', 'release draining', 'beat alive', 'beat over'],
      ...['fence fenced', 'fence stale', 'fence expired', 'fence unknown'],
    ]),
  )
})

test('the translation of the model does what Quint does', () => {
  for (const [instance, own] of [
    ['crowd', alone],
    ['sound', failingOver],
  ] as const) {
    const model = translate<World>(compiled, instance)
    let before: World | undefined
    for (const { action, world } of own.flat()) {
      const found: World[] = []
      if (action === 'init') found.push(model.init())
      else model.step(before!, (next, [name]) => name === action && found.push(next))
      expect(found.map((one) => JSON.stringify(one))).toContain(JSON.stringify(world))
      before = world
    }
  }
})

describe('a database that does something else is found out:', () => {
  test.for([
    { what: 'a fence without its lock', name: 'fence', from: 'for share of l', to: '' },
    {
      what: 'a fence that looks at the token only',
      name: 'fence',
      from: 'and l.holder_id = p_holder',
      to: '',
    },
    {
      what: 'a beat that revives',
      name: 'beat',
      from: 'where id = p_id and ended_at is null',
      to: 'where id = p_id',
    },
    {
      what: 'a taker that leaves the old holder be',
      name: 'acquire',
      from: 'set ended_at = clock_timestamp()',
      to: 'set ended_at = ended_at',
    },
    {
      what: 'a release that does not look at the token',
      name: 'release',
      from: 'l.token = p_tokens[1] and ',
      to: '',
    },
  ])('$what', async ({ name, from, to }) => {
    const definitions = await servers[0]!.query<{ text: string }>(
      `select pg_get_functiondef(p.oid) as text from pg_proc p where p.pronamespace = 'fencepost'::regnamespace and p.proname = $1`,
      [name],
    )
    const patched = definitions.filter(({ text }) => text.includes(from))
    expect(patched).toHaveLength(1)
    const [{ text }] = patched as [{ text: string }]
    const define = async (definition: string): Promise<void> => {
      for (const server of servers) await server.query(definition)
    }
    await define(text.replaceAll(from, to))
    try {
      await expect(replayAll([...alone, ...failingOver])).rejects.toThrow(Disagreement)
    } finally {
      await define(text)
    }
  })
})
