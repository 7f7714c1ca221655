import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type Server, connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import postgres from 'postgres'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { serverAccount } from '../../src/database/server-account.ts'
import { Fencepost } from '../../src/index.ts'
import { lost, openTestFencepost } from '../../src/testing/index.ts'
import { useDatabase } from '../support/database.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'

const database = useDatabase()
const folder = mkdtempSync(join(tmpdir(), 'fencepost-ways-'))
const file = (name: string): string => join(folder, name)

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** That the way works in both directions, and that the faults are in it. */
async function tryOut(options: Parameters<typeof openTestFencepost>[0]): Promise<string> {
  await using kit = await openTestFencepost(options)
  const lease = await kit.fencepost.acquire(`ways/${crypto.randomUUID()}`)
  const client = new Client({ connectionString: kit.connectionString })
  await client.connect()
  try {
    await client.query('begin')
    await client.query(lease.fenceSql())
    await client.query('commit')
  } finally {
    await client.end()
  }
  await kit.cut()
  await kit.moveClock('31s')
  return (await lost(lease)).reason
}

test('a URL of TCP', async () => {
  expect(await tryOut({ connectionString: database.url })).toBe('expired')
})

test('settings beside the URL, with a password that is fetched', async () => {
  const url = new URL(database.url)
  const reason = await tryOut({
    connection: {
      host: url.hostname,
      port: Number(url.port),
      user: url.username,
      database: url.pathname.slice(1),
      password: async () => decodeURIComponent(url.password),
      statement_timeout: 30_000,
    },
  })
  expect(reason).toBe('expired')
})

test('what comes in pieces of any size arrives as it was sent', async () => {
  await using kit = await openTestFencepost({ connectionString: database.url })
  const client = new Client({ connectionString: kit.connectionString })
  await client.connect()
  const text = 'long '.repeat(1_000_000)
  const { rows } = await client.query('select $1::text as echo, n from generate_series(1, 3) n', [text])
  expect(rows.map(({ echo, n }) => [(echo as string) === text, n])).toEqual([
    [true, 1],
    [true, 2],
    [true, 3],
  ])
  await client.end()
})

test('another driver, that sends ahead and asks for TLS where there is some', async () => {
  await using kit = await openTestFencepost({ connectionString: database.url })
  const sql = postgres(kit.connectionString, { max: 2, ssl: 'prefer', onnotice: () => {} })
  const rows = await Promise.all([1, 2, 3, 4].map((n) => sql`select ${n}::int as n`))
  expect(rows.map(([row]) => row!['n'])).toEqual([1, 2, 3, 4])
  const drop = kit.dropNextReply(/as second/)
  await expect(sql`select 2 as second`).rejects.toThrow(/CONNECTION_CLOSED|ECONNRESET/)
  await drop.dropped
  // Without a limit it does not settle after a connection was reset, with the kit or without.
  await sql.end({ timeout: 0 })
})

test('a role with fewer rights cannot steal, unless another one is named for that', async () => {
  const role = `app_${crypto.randomUUID().slice(0, 8)}`
  await database.query(`create role ${role} login password 'secret'`)
  await Fencepost.migrate({ connectionString: database.url, grantTo: [role] })
  const connectionString = database.urlAs(role, 'secret')
  const name = `ways/${crypto.randomUUID()}`
  {
    await using kit = await openTestFencepost({ connectionString })
    await kit.fencepost.acquire(name)
    await expect(kit.steal(name)).rejects.toMatchObject({ code: 'PERMISSION_DENIED' })
    await expect(kit.steal(name)).rejects.toThrow(/ownerConnectionString/)
    await expect(kit.expire(name)).rejects.toMatchObject({ code: 'PERMISSION_DENIED' })
    await using rival = await kit.hold(`${name}/other`)
    expect(await kit.fencepost.tryAcquire(rival.name)).toBeNull()
  }
  await using kit = await openTestFencepost({ connectionString, ownerConnectionString: database.url })
  const lease = await kit.fencepost.acquire(name)
  expect((await kit.steal(name)).token).toBeGreaterThan(lease.token)
})

describe('a Unix socket', () => {
  let relay: Server

  // The servers of these tests have none, so it is made here.
  beforeAll(async () => {
    const { hostname, port } = new URL(database.url)
    relay = createServer((client) => {
      const server = connect(Number(port), hostname)
      client.pipe(server).pipe(client)
      for (const socket of [client, server]) {
        socket.on('error', () => {})
        socket.on('close', () => (client.destroy(), server.destroy()))
      }
    })
    await new Promise<void>((settle) => relay.listen(file('.s.PGSQL.5432'), settle))
  })

  afterAll(() => new Promise((settle) => relay.close(settle)))

  test('in the URL', async () => {
    const { username, password, pathname } = new URL(database.url)
    const credentials = `postgres://${username}:${password}@`
    for (const way of [`${encodeURIComponent(folder)}${pathname}`, `${pathname}?host=${folder}`]) {
      expect(await tryOut({ connectionString: credentials + way })).toBe('expired')
    }
  })
})

const poolerReason = pgbouncerReason()

describe.skipIf(poolerReason !== undefined)(
  `PgBouncer in transaction mode${poolerReason === undefined ? '' : `, skipped: ${poolerReason}`}`,
  () => {
    let bouncer: PgBouncer

    beforeAll(async () => {
      bouncer = await PgBouncer.start(database.url)
    })

    afterAll(() => bouncer.stop())

    test.each([false, true])('behind the proxy; stealing past it: %s', async (isPast) => {
      const connectionString = bouncer.url
      const owner = isPast ? { ownerConnectionString: database.url } : {}
      expect(await tryOut({ connectionString, ...owner })).toBe('expired')
      await using kit = await openTestFencepost({ connectionString, ...owner })
      const lease = await kit.fencepost.acquire(`ways/${crypto.randomUUID()}`)
      await kit.expire(lease.name)
      expect((await kit.steal(lease.name)).token).toBeGreaterThan(lease.token)
      await kit.moveClock('10s')
      expect(await lost(lease)).toMatchObject({ reason: 'ended' })
    })
  },
)

const program = 'openssl'
const hasOpenssl = spawnSync(program, ['version']).status === 0

describe.skipIf(!hasOpenssl)(`TLS${hasOpenssl ? '' : ', skipped: openssl is not installed'}`, () => {
  let server: EmbeddedServer

  function openssl(...args: string[]): void {
    execFileSync(program, args, { cwd: folder, stdio: 'pipe' })
  }

  function certificate(name: string, subject: string, extension: string): void {
    const keys = ['-newkey', 'rsa:2048', '-nodes', '-keyout', `${name}.key`]
    const signed = ['-CA', 'authority.crt', '-CAkey', 'authority.key', '-addext', extension]
    openssl(
      'req',
      '-x509',
      ...keys,
      '-days',
      '2',
      '-subj',
      `/CN=${subject}`,
      '-out',
      `${name}.crt`,
      ...signed,
    )
  }

  beforeAll(async () => {
    const self = ['-newkey', 'rsa:2048', '-nodes', '-keyout', 'authority.key', '-out', 'authority.crt']
    openssl('req', '-x509', ...self, '-days', '2', '-subj', '/CN=authority')
    certificate('here', 'localhost', 'subjectAltName=DNS:localhost')
    certificate('client', 'by_certificate', 'extendedKeyUsage=clientAuth')
    const hba =
      'hostssl all by_certificate all cert\nhostssl all over_tls all scram-sha-256\nhost all postgres all scram-sha-256\n'
    writeFileSync(file('hba.conf'), hba)
    chmodSync(folder, 0o755)
    const account = await serverAccount(file('server/data'))
    for (const name of ['here.key', 'hba.conf']) {
      chmodSync(file(name), 0o600)
      if (account !== undefined) chownSync(file(name), account.uid, account.gid)
    }
    server = await EmbeddedServer.start({
      directory: file('server'),
      settings: {
        fsync: 'off',
        ssl: 'on',
        ssl_ca_file: file('authority.crt'),
        ssl_cert_file: file('here.crt'),
        ssl_key_file: file('here.key'),
        hba_file: file('hba.conf'),
      },
    })
    const client = new Client({ connectionString: server.url })
    await client.connect()
    await client.query(`create role over_tls login password 'secret'; create role by_certificate login`)
    await client.end()
    await Fencepost.migrate({ connectionString: server.url, grantTo: ['over_tls', 'by_certificate'] })
  })

  afterAll(() => server?.stop('immediate'))

  const url = (host: string, parameters: string, user = 'over_tls:secret'): string =>
    `postgres://${user}@${host}:${server.port}/postgres?sslrootcert=${file('authority.crt')}&${parameters}`

  test('verify-full goes over TLS, which the proxy does', async () => {
    expect(await tryOut({ connectionString: url('localhost', 'sslmode=verify-full') })).toBe('expired')
  })

  test('also without asking first', async () => {
    expect(
      await tryOut({ connectionString: url('localhost', 'sslmode=verify-full&sslnegotiation=direct') }),
    ).toBe('expired')
  })

  test('a certificate of the client is the proxy’s to show', async () => {
    const own = `sslmode=verify-full&sslcert=${file('client.crt')}&sslkey=${file('client.key')}`
    expect(await tryOut({ connectionString: url('localhost', own, 'by_certificate') })).toBe('expired')
  })

  test('a server of another name is refused, before the proxy and by it', async () => {
    const wrong = url('127.0.0.1', 'sslmode=verify-full')
    await expect(openTestFencepost({ connectionString: wrong })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
    const ownerConnectionString = server.url
    await expect(openTestFencepost({ connectionString: wrong, ownerConnectionString })).rejects.toThrow(
      /the proxy of fencepost\/testing cannot reach the server: .*127\.0\.0\.1/,
    )
  })
})
