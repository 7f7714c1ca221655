import { type ChildProcess, fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, describe, expect, test } from 'vitest'
import { exchange } from '../../torture/controls/control.ts'
import { controlVariable, controls, registerPath } from '../../torture/controls/controls.ts'
import { useDatabase } from '../support/database.ts'
import { untilInLine } from '../support/line.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import type { Order, Report } from './children/moved-clock.ts'

const database = useDatabase()
const ttlMs = 30_000

/** A process whose library has been weakened, or has not. */
class Client {
  readonly #child: ChildProcess
  readonly #reports: Report[] = []
  #wake = Promise.withResolvers<void>()
  #isGone = false
  #stderr = ''

  private constructor(control: string | undefined) {
    const program = fileURLToPath(new URL('children/moved-clock.ts', import.meta.url))
    this.#child = fork(program, [], {
      execArgv: [
        '--unhandled-rejections=strict',
        ...(control === undefined ? [] : ['--import', registerPath]),
      ],
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, FENCEPOST_DATABASE_URL: database.url, [controlVariable]: control },
    })
    this.#child.stderr!.on('data', (text: Buffer) => (this.#stderr += text.toString()))
    this.#child.on('message', (report) => {
      this.#reports.push(report as Report)
      this.#tell()
    })
    this.#child.on('exit', () => {
      this.#isGone = true
      this.#tell()
    })
  }

  static async start(control: string | undefined): Promise<Client> {
    const client = new Client(control)
    clients.push(client)
    await client.did('start')
    return client
  }

  send(order: Order): void {
    this.#child.send(order)
  }

  async order(order: Order): Promise<void> {
    this.send(order)
    await this.did(order.do)
  }

  async did<Did extends Report['did']>(did: Did): Promise<Report & { readonly did: Did }> {
    for (;;) {
      const report = this.has(did)
      if (report !== undefined) return report
      if (this.#isGone) throw new Error(`the client has ended: ${this.#stderr}`)
      // oxlint-disable-next-line no-await-in-loop -- Until it is reported.
      await this.#wake.promise
    }
  }

  has<Did extends Report['did']>(did: Did): (Report & { readonly did: Did }) | undefined {
    const place = this.#reports.findIndex((report) => report.did === did)
    return place < 0 ? undefined : (this.#reports.splice(place, 1)[0] as Report & { readonly did: Did })
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    // oxlint-disable-next-line no-await-in-loop
    while (!this.#isGone) await this.#wake.promise
  }

  #tell(): void {
    this.#wake.resolve()
    this.#wake = Promise.withResolvers<void>()
  }
}

const clients: Client[] = []
afterEach(async () => {
  await Promise.all(clients.splice(0).map((client) => client.kill()))
})

/** For how long a client trusts its lease after a heartbeat whose answer has been 2 s on its way, by its own clock. */
async function trustAfterLateAnswer(control: string | undefined): Promise<number> {
  const name = `late answer ${control}`
  const client = await Client.start(control)
  await client.order({ do: 'acquire', name, ttl: ttlMs })
  const session = await database.session()
  await session.query('begin')
  await session.query(
    'select from fencepost.holder where id = (select holder_id from fencepost.lease where name = $1) for update',
    [name],
  )
  const {
    rows: [own],
  } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
  await client.order({ do: 'advance', ms: ttlMs / 3 })
  await expect
    .poll(() =>
      database.query('select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))', [own!.pid]),
    )
    .toHaveLength(1)
  await client.order({ do: 'block', ms: 2000 })
  await session.query('commit')
  return (await client.did('renew')).expiresInMs
}

/** Whether a waiter hears of its grant when the wake-up has been lost. */
async function hearsOfItsGrant(control: string | undefined): Promise<boolean> {
  const name = `lost wake-up ${control}`
  const former = await SqlHolder.join(database.pool)
  const token = await former.take(name)
  const client = await Client.start(control)
  client.send({ do: 'acquire', name, ttl: ttlMs })
  await untilInLine(database, name, 1)
  // What it learns from this is that it stands in line, and then it sleeps.
  await client.order({ do: 'ask' })
  // The one who releases would have to send the wake-up, and does not.
  expect(await former.letGo(name, token)).toMatchObject({ outcome: 'released' })
  expect(
    await database.query('select from fencepost.lease where name = $1 and token > $2', [name, token]),
  ).toHaveLength(1)
  // Where no wake-ups come, a waiter asks about once a second.
  for (let second = 0; second < 3; second += 1) {
    // oxlint-disable-next-line no-await-in-loop -- Time passes in one direction.
    await client.order({ do: 'advance', ms: 1000 })
    // oxlint-disable-next-line no-await-in-loop
    await client.order({ do: 'ask' })
  }
  return client.has('acquire') !== undefined
}

describe('a client that is weakened as it is loaded', () => {
  test('counts its trust from the answer', async () => {
    // The database counts from before the answer was on its way, so it grants the lease to others after 28 s of that clock.
    expect(await trustAfterLateAnswer(undefined)).toBe(27_000)
    expect(await trustAfterLateAnswer('trust-from-reply')).toBe(29_000)
  })

  test('sleeps until a wake-up comes', async () => {
    expect(await hearsOfItsGrant(undefined)).toBe(true)
    expect(await hearsOfItsGrant('listen-only-waiter')).toBe(false)
  })

  test('does not start under a control that there is not', async () => {
    await expect(Client.start('no-such-control')).rejects.toThrow('there is no control "no-such-control"')
  })

  test.each(
    controls.flatMap(({ name, modules = {} }) =>
      Object.entries(modules).map(([path, pieces]) => ({ name, path, pieces })),
    ),
  )('$name refuses a $path that is not what it was written for', ({ path, pieces }) => {
    const text = readFileSync(new URL(`../../src/${path}`, import.meta.url), 'utf8')
    expect(exchange(text, pieces, path)).not.toBe(text)
    for (const { out } of pieces) {
      expect(() => exchange(text.replaceAll(out, ''), pieces, path)).toThrow(`${path} has changed`)
    }
  })
})
