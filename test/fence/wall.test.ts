import type { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import {
  type Attack,
  type Level,
  attacks,
  contents,
  createTarget,
  levels,
  prepareStatements,
  targetTables,
} from './wall-attacks.ts'
import { type GrantedTerm, callFence, grant, refusalOf, setFence } from './wall-terms.ts'

// Every way to write, on every footing, at every isolation level: only a valid fence of the right lease passes. The
// same attacks where there is no wall, or where its triggers are disabled, show that they are attacks.

const database = useDatabase()
const guard = 'the wall'
const beside = 'another lease'
const madeUp = 'aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa'

let version = 0
let hasTwoPhases = false

beforeAll(async () => {
  const [server] = await database.query<{ version: number; two_phase: number }>(
    `select current_setting('server_version_num')::integer as version,
            current_setting('max_prepared_transactions')::integer as two_phase`,
  )
  version = server!.version
  hasTwoPhases = server!.two_phase > 0
  // So that no token is a number that rows are stamped with already.
  await database.query(`select fencepost.raise_token_floor('default', 100)`)
  await createTarget(database, 'walled', '0')
  await createTarget(database, 'open', '-1')
  await createTarget(database, 'breached', '0')
  for (const table of targetTables) {
    await database.query('select fencepost.protect($1, $2)', [`walled.${table}`, guard])
    await database.query('select fencepost.protect($1, $2)', [`breached.${table}`, guard])
  }
  for (const table of [...targetTables, 'entry_east', 'entry_west', 'vehicle']) {
    await database.query(`alter table breached.${table} disable trigger fencepost_guard`)
  }
})

const reset = (schema: string) => database.query(`select ${schema}.reset()`)

/** Why an attack cannot be made on this server. */
function reasonAgainst(attack: Attack): string | undefined {
  if (version < (attack.since ?? 0)) return 'this PostgreSQL does not know the statement'
  if (attack.isTwoPhase === true && !hasTwoPhases) return 'max_prepared_transactions is 0'
  return undefined
}

async function openSession(schema: string): Promise<Client> {
  const session = await database.session()
  await session.query(`set search_path = ${schema}`)
  await prepareStatements(session)
  return session
}

/** A session whose plans, and those of its functions, were all made under a fence that was valid then. */
async function warmSession(schema: string, fence: string): Promise<Client> {
  await reset(schema)
  const session = await openSession(schema)
  await setFence(session, fence)
  for (const attack of attacks) {
    if (attack.isAutocommit === true || reasonAgainst(attack) !== undefined) continue
    await session.query('begin')
    await attack.run(session)
    await session.query('rollback')
  }
  return session
}

type Begin = (session: Client, level: Level) => Promise<unknown>

const begin: Begin = (session, level) => session.query(`begin isolation level ${level}`)

/** Where an attacker comes to stand: its session, how it begins a transaction, and the term that is right or was. */
interface Stand {
  readonly session: Client
  readonly begin?: Begin
  readonly token?: bigint
}

interface Footing {
  /** To end a sentence with. */
  readonly title: string
  /** The SQLSTATE that writes are refused with; undefined when they are not. */
  readonly refusal: (level: Level) => string | undefined
  /** The same in the transaction that follows in the session. */
  readonly refusalNext: string | undefined
  /** A statement without a transaction block cannot stand there. */
  readonly isInTransaction: boolean
  readonly stand: () => Promise<Stand>
}

/** A footing that a session setting gives. */
function bySetting(
  title: string,
  refusal: string | undefined,
  fenceOf: (term: GrantedTerm) => Promise<string> | string,
): Footing {
  return {
    title,
    refusal: () => refusal,
    refusalNext: refusal,
    isInTransaction: false,
    async stand() {
      const term = await grant(database, guard)
      const session = await warmSession('walled', term.fence)
      await setFence(session, await fenceOf(term))
      return { session, token: term.token }
    },
  }
}

/** A footing that the beginning of each transaction gives, in a session that was fenced and is no more. */
function byBeginning(
  title: string,
  refusal: string | undefined,
  prepare: (term: GrantedTerm) => Promise<(session: Client) => Promise<void>>,
): Footing {
  return {
    title,
    refusal: () => refusal,
    refusalNext: 'FP005',
    isInTransaction: true,
    async stand() {
      const term = await grant(database, guard)
      const session = await warmSession('walled', term.fence)
      await session.query('reset fencepost.fence')
      const fence = await prepare(term)
      return {
        session,
        token: term.token,
        async begin(client, level) {
          await begin(client, level)
          await fence(client)
        },
      }
    },
  }
}

/** A footing after a fence() that was refused with a SQLSTATE, which the transaction has survived. */
function byRefusedFence(
  title: string,
  code: string,
  spoil: (term: GrantedTerm) => Promise<unknown>,
  holderId?: string,
): Footing {
  return byBeginning(title, 'FP005', async (term) => {
    await spoil(term)
    return async (session) => {
      await session.query('savepoint before')
      expect(await refusalOf(callFence(session, term, holderId))).toBe(code)
      await session.query('rollback to before')
    }
  })
}

/** A footing without any fence. */
function byNothing(title: string, setting: string | null, stand: () => Promise<Client>): Footing {
  return {
    title,
    refusal: () => 'FP005',
    refusalNext: 'FP005',
    isInTransaction: false,
    async stand() {
      const session = await stand()
      const { rows } = await session.query(`select current_setting('fencepost.fence', true) as setting`)
      expect(rows).toEqual([{ setting }])
      return { session }
    },
  }
}

const footings: readonly Footing[] = [
  byNothing('without a fence, in a fresh session', null, () => openSession('walled')),
  byNothing('with the empty setting that an earlier fenced transaction has left over', '', async () => {
    const session = await openSession('walled')
    await session.query('begin')
    await callFence(session, await grant(database, guard))
    await session.query('update account set balance = balance')
    await session.query('commit')
    return session
  }),
  bySetting('under an empty session fence', 'FP005', () => ''),
  bySetting('under a malformed session fence', 'FP005', (term) => `${term.token}:${term.lease}`),
  bySetting('under a stale session fence', 'FP001', async (term) => {
    await grant(database, guard)
    return term.fence
  }),
  bySetting('under a stale session fence beside a valid one of another lease', 'FP001', async (term) => {
    await grant(database, guard)
    return `${(await grant(database, beside)).fence}\n${term.fence}`
  }),
  bySetting('under the session fence of a released term', 'FP001', async (term) => {
    await term.holder.release(guard, term.token)
    return term.fence
  }),
  bySetting('under the session fence of a lease that was purged', 'FP003', async (term) => {
    await term.holder.end()
    await database.query(`select fencepost.purge('0')`)
    return term.fence
  }),
  byRefusedFence('after a stale fence()', 'FP001', () => grant(database, guard)),
  {
    title: 'under a session fence that went stale after the snapshot was taken',
    refusal: (level) => (level === 'read committed' ? 'FP001' : '40001'),
    refusalNext: 'FP001',
    isInTransaction: true,
    async stand() {
      const session = await warmSession('walled', (await grant(database, guard)).fence)
      return {
        session,
        async begin(client, level) {
          await setFence(client, (await grant(database, guard)).fence)
          await begin(client, level)
          await client.query('select from incoming')
          await grant(database, guard)
        },
      }
    },
  },
  bySetting('under an expired session fence that nobody has taken over', 'FP002', async (term) => {
    await term.holder.expire()
    return term.fence
  }),
  bySetting('under the session fence of a holder that has ended', 'FP002', async (term) => {
    await term.holder.end()
    return term.fence
  }),
  bySetting("under a session fence past its term's hard end", 'FP002', async (term) => {
    await database.query('update fencepost.lease set deadline = clock_timestamp() where name = $1', [guard])
    return term.fence
  }),
  byRefusedFence('after an expired fence()', 'FP002', (term) => term.holder.expire()),
  bySetting('under the session fence of another lease', 'FP006', async () => {
    return (await grant(database, beside)).fence
  }),
  byBeginning('after a fence() of another lease', 'FP006', async () => {
    const other = await grant(database, beside)
    return (session) => callFence(session, other)
  }),
  bySetting('under a session fence with a made-up holder', 'FP001', (term) =>
    term.fence.replace(term.holder.id, madeUp),
  ),
  bySetting(
    'under a session fence with a made-up holder and a token that was never granted',
    'FP003',
    (term) => `${term.token + 1000n}:${madeUp}:${guard}`,
  ),
  bySetting(
    'under a session fence with the right holder and a token that was never granted',
    'FP001',
    (term) => `${term.token + 1000n}:${term.holder.id}:${guard}`,
  ),
  byRefusedFence('after a fence() with a made-up holder', 'FP001', async () => {}, madeUp),
  byBeginning('after a valid fence() that a savepoint has taken back', 'FP005', async (term) => {
    return async (session) => {
      await session.query('savepoint before')
      await callFence(session, term)
      await session.query('rollback to before')
    }
  }),
  bySetting('under a valid session fence', undefined, (term) => term.fence),
  bySetting('under a valid session fence beside one of another lease', undefined, async (term) => {
    return `${(await grant(database, beside)).fence}\n${term.fence}`
  }),
  byBeginning('after a valid fence()', undefined, async (term) => (session) => callFence(session, term)),
  byBeginning('after a valid fence() and one of another lease', undefined, async (term) => {
    const other = await grant(database, beside)
    return async (session) => {
      await callFence(session, other)
      await callFence(session, term)
    }
  }),
]

const valid = footings.filter((footing) => footing.refusal('read committed') === undefined)
const invalid = footings.filter((footing) => !valid.includes(footing))

/** Makes an attack in a transaction. Returns the SQLSTATEs of the refusals: none when it was let through. */
async function attempt(attack: Attack, stand: Stand, level: Level): Promise<string[]> {
  const { session } = stand
  if (attack.isAutocommit === true) {
    await session.query(`set default_transaction_isolation = '${level}'`)
    const refusal = await refusalOf(attack.run(session))
    return refusal === undefined ? [] : [refusal]
  }
  await (stand.begin ?? begin)(session, level)
  const met: string[] = []
  const refusal = await refusalOf(attack.run(session).then((caught) => met.push(...caught)))
  if (refusal !== undefined) {
    // Not ROLLBACK: whoever does not look at errors sends COMMIT.
    expect((await session.query('commit')).command).toBe('ROLLBACK')
    return [refusal]
  }
  const atCommit = await refusalOf(attack.commit?.(session) ?? session.query('commit'))
  return atCommit === undefined ? met : [...met, atCommit]
}

/** The attacks that can be made on a footing, each with what it is called. */
function attacksOn(isInTransaction: boolean): [string, Attack][] {
  return attacks
    .filter((attack) => !(isInTransaction && attack.isAutocommit === true))
    .map((attack) => [attack.what, attack])
}

describe.for(invalid)('$title', (footing) => {
  const codes = [...new Set(levels.map(footing.refusal))]
  const verdict = codes.length === 1 ? codes[0] : `${codes[0]} at read committed and with ${codes[1]} above`
  let stand: Stand
  let before: string[]

  beforeAll(async () => {
    stand = await footing.stand()
    await reset('walled')
    before = (await contents(database, 'walled')).versions
  })
  afterAll(() => stand?.session.end())

  test.for(attacksOn(footing.isInTransaction))(
    `%s is refused with ${verdict}, and leaves nothing`,
    async ([, attack], { skip }) => {
      const reason = reasonAgainst(attack)
      skip(reason !== undefined, reason)
      for (const level of levels) {
        const met = new Set(await attempt(attack, stand, level))
        expect({ level, met: [...met] }).toEqual({ level, met: [footing.refusal(level)] })
        expect((await contents(database, 'walled')).versions).toEqual(before)
      }
    },
  )

  test('the transaction that COMMIT AND CHAIN begins is refused as well', async () => {
    for (const level of levels) {
      await (stand.begin ?? begin)(stand.session, level)
      expect(await refusalOf(stand.session.query('delete from account'))).toBe(footing.refusal(level))
      await stand.session.query('commit and chain')
      expect(await refusalOf(stand.session.query('delete from account'))).toBe(footing.refusalNext)
      expect((await stand.session.query('commit')).command).toBe('ROLLBACK')
      expect((await contents(database, 'walled')).versions).toEqual(before)
    }
  })
})

describe.for(valid)('$title', (footing) => {
  let stand: Stand
  let twin: Stand

  beforeAll(async () => {
    stand = await footing.stand()
    twin = { session: await openSession('open') }
  })
  afterAll(async () => {
    await stand?.session.end()
    await twin?.session.end()
  })

  test.for(attacksOn(footing.isInTransaction))(
    '%s is let through, and the rows that it inserts carry the token',
    async ([, attack], { skip }) => {
      const reason = reasonAgainst(attack)
      skip(reason !== undefined, reason)
      for (const level of levels) {
        await Promise.all([reset('open'), reset('walled')])
        const before = await contents(database, 'walled')
        expect(await attempt(attack, twin, level)).toEqual([])
        expect(await attempt(attack, stand, level)).toEqual([])
        // Where there is no wall, the same attack leaves the same, but -1 for the token.
        const wanted = (await contents(database, 'open')).rows.map((row) =>
          row.replace(',-1', `,${stand.token}`),
        )
        const after = await contents(database, 'walled')
        expect({ level, rows: after.rows }).toEqual({ level, rows: wanted })
        expect(after.rows.join() === before.rows.join()).toBe(attack.isIdle === true)
      }
    },
  )

  const next = footing.refusalNext
  test(`the transaction that COMMIT AND CHAIN begins is ${next === undefined ? 'let through' : `refused with ${next}`}`, async () => {
    for (const level of levels) {
      await reset('walled')
      await (stand.begin ?? begin)(stand.session, level)
      await stand.session.query('delete from account where id = 1')
      await stand.session.query('commit and chain')
      expect(await refusalOf(stand.session.query('delete from account where id = 2'))).toBe(next)
      await stand.session.query('commit')
      const rows = (await contents(database, 'walled')).rows.filter((row) => row.startsWith('account'))
      expect(rows.map((row) => row.slice('account('.length, 'account(1'.length))).toEqual(
        next === undefined ? ['3'] : ['2', '3'],
      )
    }
  })
})

describe('a session fence', () => {
  const holder = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa'
  let session: Client
  let term: GrantedTerm

  beforeAll(async () => {
    await reset('walled')
    session = await openSession('walled')
    term = await grant(database, guard)
  })
  afterAll(() => session.end())

  const write = () => refusalOf(session.query('update account set balance = balance'))

  test.for([
    ['without a holder', `5:${guard}`],
    ['without a lease', `5:${holder}:`],
    ['without a token', `:${holder}:${guard}`],
    ['with a token of letters', `x:${holder}:${guard}`],
    ['with a negative token', `-5:${holder}:${guard}`],
    ['with a space before it', ` 5:${holder}:${guard}`],
    ['with a token above 2^63 - 1', `9223372036854775808:${holder}:${guard}`],
    ['with a token of 20 digits', `10000000000000000000:${holder}:${guard}`],
    ['with a token of 20 digits, of which the first is 0', `00000000000000000005:${holder}:${guard}`],
    ['with a holder of capitals', `5:${holder.toUpperCase()}:${guard}`],
    ['with a holder of other letters', `5:${holder.replace('a', 'g')}:${guard}`],
    ['with a holder without dashes', `5:${holder.replaceAll('-', '')}:${guard}`],
    ['with a holder of dashes', `5:${'-'.repeat(36)}:${guard}`],
    ['with a holder that is too short', `5:${holder.slice(1)}:${guard}`],
    ['of a newline', '\n'],
    ['with a carriage return at its end', `5:${holder}:${guard}\r`],
    ['that begins with a newline', `\n5:${holder}:${guard}`],
    ['that ends in a newline', `5:${holder}:${beside}\n`],
    ['with a malformed one beside it', `5:${holder}:${beside}\n5:${guard}`],
  ])('%s is malformed, and refused with FP005', async ([, fence]) => {
    await setFence(session, fence!)
    expect(await write()).toBe('FP005')
  })

  test.for([
    ['2^63 - 1', `9223372036854775807:${holder}:${guard}`, 'FP003'],
    ['0', `0:${holder}:${guard}`, 'FP001'],
    ['a lease of the same name in capitals', `5:${holder}:${guard.toUpperCase()}`, 'FP006'],
    ['a lease that contains colons', `5:${holder}:a:b:${guard}`, 'FP006'],
  ])('that is well-formed and wrong is told apart: %s', async ([, fence, code]) => {
    await setFence(session, fence!)
    expect(await write()).toBe(code)
  })

  test('may write its token with leading zeros', async () => {
    await setFence(session, `000${term.fence}`)
    const { rows } = await session.query(
      `insert into account (id, customer_id, balance) values (10, 1, 0) returning fence_token`,
    )
    expect(rows).toEqual([{ fence_token: `${term.token}` }])
  })

  test('names what is protected, by which lease, for people and for programs', async () => {
    await setFence(session, (await grant(database, beside)).fence)
    const detail = { by: 'wall', what: 'table walled.account', guard }
    const refused = (error: unknown) =>
      error as { code: string; message: string; detail: string; hint: string }
    const other = await session.query('delete from account').then(() => undefined, refused)
    expect(other!.message).toBe(
      `table walled.account is protected: it is written under lease "${guard}" only, and this transaction is fenced by "${beside}"`,
    )
    expect(JSON.parse(other!.detail)).toEqual(detail)
    await session.query('reset fencepost.fence')
    const none = await session.query('delete from account').then(() => undefined, refused)
    expect(none!.message).toBe(
      `table walled.account is protected: it is written under lease "${guard}" only, and this transaction carries no fence`,
    )
    expect(JSON.parse(none!.detail)).toEqual(detail)
    expect(none!.hint).toContain('fencepost.fence()')
  })
})

describe.for([
  ['open', 'where there is no wall'],
  ['breached', 'where the triggers of the wall are disabled'],
] as const)('%s: $1', ([schema, where]) => {
  const stands = new Map<string, Stand>()

  beforeAll(async () => {
    const stale = await grant(database, guard)
    stands.set('no fence', { session: await openSession(schema) })
    stands.set('a stale one', { session: await warmSession(schema, stale.fence) })
    await grant(database, guard)
  })

  test.for(attacksOn(false))(
    `%s succeeds ${where}, without a fence and under a stale one`,
    async ([, attack], { skip }) => {
      const reason = reasonAgainst(attack)
      skip(reason !== undefined, reason)
      for (const level of levels) {
        for (const [fence, stand] of stands) {
          await reset(schema)
          const before = await contents(database, schema)
          expect({ level, fence, met: await attempt(attack, stand, level) }).toEqual({
            level,
            fence,
            met: [],
          })
          const after = await contents(database, schema)
          expect(after.rows.join() === before.rows.join()).toBe(attack.isIdle === true)
        }
      }
    },
  )
})
