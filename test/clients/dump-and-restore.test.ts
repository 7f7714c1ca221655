import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { connectionEnvironment, execute, fenceOptions } from '../../src/cli/demo-clients/program.ts'
import type { Fence } from '../../src/fence/fence.ts'
import { Fencepost, type Token } from '../../src/index.ts'
import { SqlHolder } from '../support/sql-holder.ts'
import { DebianServer, debianBinaries } from '../support/debian-server.ts'

const binaries = debianBinaries()
const reason = binaries === undefined ? " (skipped: Debian's PostgreSQL is not installed)" : ''

describe.skipIf(binaries === undefined).each([reason])('pg_dump and pg_restore%s', () => {
  let server: DebianServer
  let client: Client
  let folder: string
  let dump: string

  beforeAll(async () => {
    server = await DebianServer.start(binaries!)
    await Fencepost.migrate({ connectionString: server.url })
    client = new Client({ connectionString: server.url })
    await client.connect()
    folder = await mkdtemp(join(tmpdir(), 'fencepost-dump-'))
    dump = join(folder, 'accounts.dump')
    await client.query('create table accounts (id integer primary key, balance integer not null)')
    await client.query('insert into accounts (id, balance) select i, 100 * i from generate_series(1, 3) i')
    await client.query(`select fencepost.protect('accounts', 'restore')`)
    const dumped = await run('pg_dump', {}, '--format=custom', '--table=accounts', `--file=${dump}`)
    expect(dumped).toMatchObject({ code: 0, stderr: '' })
  })
  afterAll(async () => {
    await client?.end()
    await server?.[Symbol.asyncDispose]()
    if (folder !== undefined) await rm(folder, { recursive: true, force: true })
  })
  beforeEach(async () => {
    await client.query(`select fencepost.unprotect('accounts')`)
    await client.query('delete from accounts')
    await client.query(`select fencepost.protect('accounts', 'restore')`)
  })

  async function run(
    program: string,
    env: NodeJS.ProcessEnv,
    ...args: string[]
  ): Promise<{ code: number | null; stderr: string }> {
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith('PG'))
    return execute(
      { program: join(binaries!, program), args },
      { ...Object.fromEntries(inherited), ...connectionEnvironment(server.url), ...env },
    )
  }

  function restore(
    env: NodeJS.ProcessEnv,
    ...more: string[]
  ): Promise<{ code: number | null; stderr: string }> {
    const { database } = new Client({ connectionString: server.url })
    return run('pg_restore', env, '--data-only', `--dbname=${database}`, ...more, dump)
  }

  async function grant(): Promise<{ fence: Fence; holder: SqlHolder }> {
    const holder = await SqlHolder.join(client)
    onTestFinished(() => holder.end())
    const token = (await holder.take('restore')) as Token
    return { fence: { term: { lease: 'restore', token, holderId: holder.id, sequence: 'default' } }, holder }
  }

  async function balances(): Promise<number[]> {
    const { rows } = await client.query<{ balance: number }>('select balance from accounts order by id')
    return rows.map((row) => row.balance)
  }

  test('a restore into a protected table is refused without a fence', async () => {
    const { code, stderr } = await restore({})
    expect(code).toBe(1)
    expect(stderr).toContain('table public.accounts is protected')
    expect(await balances()).toEqual([])
  })

  test('it is done under a fence, which pg_restore knows nothing of', async () => {
    const { fence } = await grant()
    expect(await restore(fenceOptions(fence))).toMatchObject({ code: 0, stderr: '' })
    expect(await balances()).toEqual([100, 200, 300])
  })

  test('it is refused under a stale fence, and done where the table is not protected', async () => {
    const { fence, holder } = await grant()
    await holder.end()
    await grant()
    const { code, stderr } = await restore(fenceOptions(fence))
    expect(code).toBe(1)
    expect(stderr).toContain('is stale')
    expect(await balances()).toEqual([])

    await client.query(`select fencepost.unprotect('accounts')`)
    expect(await restore(fenceOptions(fence))).toMatchObject({ code: 0, stderr: '' })
    expect(await balances()).toEqual([100, 200, 300])
  })

  test('what the recipe says of it: a restore that creates the table is not refused, and the table is protected then', async () => {
    await client.query('drop table accounts')
    const { database } = new Client({ connectionString: server.url })
    expect(await run('pg_restore', {}, `--dbname=${database}`, dump)).toMatchObject({ code: 0, stderr: '' })
    expect(await balances()).toEqual([100, 200, 300])
    await expect(client.query('delete from accounts')).rejects.toMatchObject({ code: 'FP005' })
  })

  test('what the recipe warns of: a superuser that disables triggers goes past the protection', async () => {
    expect(await restore({}, '--disable-triggers')).toMatchObject({ code: 0 })
    expect(await balances()).toEqual([100, 200, 300])
  })
})
