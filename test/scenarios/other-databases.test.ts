import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Client } from 'pg'
import { beforeAll, expect, onTestFinished, test } from 'vitest'
import { announce } from '../../src/fence/announce.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'
import { fenceOnlyDatabase } from '../support/fence-only.ts'

const leases = useDatabase()
const data = fenceOnlyDatabase()

beforeAll(() => data.query('create table written (place bigserial primary key, token bigint not null)'))

function start(...args: string[]): ChildProcess {
  const file = fileURLToPath(new URL('children/data-writer.ts', import.meta.url))
  const child = fork(file, args, { execArgv: ['--unhandled-rejections=strict'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

test('a holder that is stopped in a transaction on the data is cut off there, and refused when it wakes', async () => {
  const paused = start(leases.url, data.url, 'paused')
  const [inside] = (await once(paused, 'message')) as [{ token: string }]
  paused.kill('SIGSTOP')
  // The lease moves on in its own database; the transaction in this one is still open, and its session's lock with it.
  const fencepost = await leases.open()
  const lease = await fencepost.acquire('paused', { wait: '20s' })
  expect(lease.token).toBeGreaterThan(BigInt(inside.token))
  await announce(lease, data.pool, { wait: '20s' })
  await lease.transaction(data.pool, (client) =>
    client.query('insert into written (token) values ($1)', [lease.token.toString()]),
  )
  paused.kill('SIGCONT')
  paused.send('go on')
  const [outcome] = (await once(paused, 'message')) as unknown[]
  expect(outcome).toEqual({ inside: 'TRANSACTION_CUT_OFF', after: 'STALE_TERM' })
  expect(await data.query('select token from written')).toEqual([{ token: lease.token.toString() }])
  await once(paused, 'exit')
})

test('of many terms at once, what is written rises, and nobody is stuck', async () => {
  const sessions = await Promise.all(Array.from({ length: 8 }, () => data.session()))
  await data.query('truncate written')
  let newest = 1
  const outcomes = await Promise.all(
    sessions.map((session, index) => writer(data, session, index, () => newest++)),
  )
  const rows = await data.query<{ token: string }>('select token from written order by place')
  const tokens = rows.map((row) => Number(row.token))
  expect(tokens).toEqual(tokens.toSorted((a, b) => a - b))
  const counts = outcomes.flat().reduce<Record<string, number>>((sum, code) => {
    sum[code] = (sum[code] ?? 0) + 1
    return sum
  }, {})
  // Both of what there is to be seen was seen, and nothing else.
  expect(Object.keys(counts).toSorted()).toEqual(['FP001', 'written'])
})

/** Takes a token, and goes on writing under it until it is refused; now and then it announces itself first. */
async function writer(
  database: TestDatabase,
  session: Client,
  index: number,
  nextToken: () => number,
): Promise<string[]> {
  const outcomes: string[] = []
  const holder = `00000000-0000-4000-8000-00000000000${index}`
  let token = nextToken()
  for (let round = 0; round < 60; round += 1) {
    try {
      if (round % 5 === 0) await session.query(`select fencepost.announce('many', $1, $2)`, [token, holder])
      await session.query('begin')
      await session.query(`select fencepost.fence('many', $1, $2)`, [token, holder])
      if (round % 7 === 0) await database.pool.query('select 1')
      await session.query('insert into written (token) values ($1)', [token])
      await session.query(round % 11 === 0 ? 'rollback' : 'commit')
      outcomes.push('written')
      if (round % 3 === index % 3) token = nextToken()
    } catch (error) {
      await session.query('rollback')
      outcomes.push((error as { code: string }).code)
      token = nextToken()
    }
  }
  return outcomes
}
