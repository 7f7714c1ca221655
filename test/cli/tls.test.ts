import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { serverAccount } from '../../src/database/server-account.ts'
import { Fencepost } from '../../src/index.ts'
import { type CliResult, runCli } from '../support/cli.ts'
import { startEmbedded } from '../support/embedded.ts'

const secret = 'Geheim-4711'
const folder = mkdtempSync(join(tmpdir(), 'fencepost-tls-'))
const file = (name: string): string => join(folder, name)
let server: EmbeddedServer

const program = 'openssl'
const hasOpenssl = spawnSync(program, ['version']).status === 0

/** The role over_tls gets in over TLS alone, by_certificate with a certificate of its own; the server's own role as ever. */
const hba = `
hostssl all over_tls all scram-sha-256
hostssl all by_certificate all cert
host all postgres all scram-sha-256
`

function openssl(...args: string[]): void {
  execFileSync(program, args, { cwd: folder, stdio: 'pipe' })
}

function makeAuthority(name: string): void {
  openssl(
    'req',
    '-x509',
    '-newkey',
    'rsa:2048',
    '-nodes',
    '-days',
    '2',
    '-subj',
    `/CN=${name}`,
    '-keyout',
    `${name}.key`,
    '-out',
    `${name}.crt`,
  )
}

function makeCertificate(name: string, subject: string, authority: string, more: string): void {
  openssl(
    'req',
    '-newkey',
    'rsa:2048',
    '-nodes',
    '-subj',
    `/CN=${subject}`,
    '-keyout',
    `${name}.key`,
    '-out',
    `${name}.csr`,
  )
  writeFileSync(file(`${name}.ext`), more)
  openssl(
    'x509',
    '-req',
    '-in',
    `${name}.csr`,
    '-CA',
    `${authority}.crt`,
    '-CAkey',
    `${authority}.key`,
    '-CAcreateserial',
    '-days',
    '2',
    '-extfile',
    `${name}.ext`,
    '-out',
    `${name}.crt`,
  )
}

/** On the port it had, if it ran before. */
async function serve(certificate: string): Promise<void> {
  const port = server?.port
  await server?.stop('fast')
  server = await startEmbedded({
    directory: file('server'),
    ...(port === undefined ? {} : { port }),
    settings: {
      fsync: 'off',
      ssl: 'on',
      ssl_ca_file: file('authority.crt'),
      ssl_cert_file: file(`${certificate}.crt`),
      ssl_key_file: file(`${certificate}.key`),
      hba_file: file('hba.conf'),
    },
  })
}

beforeAll(async () => {
  if (!hasOpenssl) return
  makeAuthority('authority')
  makeAuthority('other')
  makeCertificate('here', 'localhost', 'authority', 'subjectAltName=DNS:localhost')
  makeCertificate('elsewhere', 'db.example', 'authority', 'subjectAltName=DNS:db.example')
  makeCertificate('client', 'by_certificate', 'authority', 'extendedKeyUsage=clientAuth')
  makeCertificate('stranger', 'by_certificate', 'other', 'extendedKeyUsage=clientAuth')
  writeFileSync(file('hba.conf'), hba)
  chmodSync(folder, 0o755)
  const account = await serverAccount(file('server/data'))
  for (const name of ['here.key', 'elsewhere.key', 'hba.conf']) {
    chmodSync(file(name), 0o600)
    if (account !== undefined) chownSync(file(name), account.uid, account.gid)
  }
  await serve('here')
  const client = new Client({ connectionString: server.url })
  await client.connect()
  await client.query(`create role over_tls login password '${secret}'; create role by_certificate login`)
  await client.end()
  await Fencepost.migrate({ connectionString: server.url, grantTo: ['over_tls', 'by_certificate'] })
})

afterAll(async () => {
  await server?.stop('immediate')
  rmSync(folder, { recursive: true, force: true })
})

const url = (parameters: string, user = `over_tls:${secret}`): string =>
  `postgres://${user}@localhost:${server.port}/postgres?${parameters}`

async function ls(database: string, env: Readonly<Record<string, string>> = {}): Promise<CliResult> {
  const result = await runCli(['ls', '--json'], { env: { FENCEPOST_DATABASE_URL: database, ...env } })
  expect(JSON.stringify(result)).not.toContain(secret)
  return result
}

const accepted = { code: 0, stdout: '[]\n', stderr: '' }
const refused = { code: 69, stdout: '' }

describe.skipIf(!hasOpenssl)(`TLS${hasOpenssl ? '' : ', skipped: openssl is not installed'}`, () => {
  test('verify-full takes a server whose certificate the authority in sslrootcert has signed', async () => {
    expect(await ls(url(`sslmode=verify-full&sslrootcert=${file('authority.crt')}`))).toMatchObject(accepted)
  })

  test('verify-full refuses a server of another authority', async () => {
    for (const parameters of [
      'sslmode=verify-full',
      `sslmode=verify-full&sslrootcert=${file('other.crt')}`,
    ]) {
      const result = await ls(url(parameters))
      expect(result).toMatchObject(refused)
      expect(result.stderr).toContain('is of an authority that is not known here')
      expect(result.stderr).toContain('sslrootcert=FILE in the database URL, or NODE_EXTRA_CA_CERTS')
    }
  })

  test('verify-full refuses a server of another name', async () => {
    const right = url(`sslmode=verify-full&sslrootcert=${file('authority.crt')}`)
    await serve('elsewhere')
    try {
      const result = await ls(right)
      expect(result).toMatchObject(refused)
      expect(result.stderr).toContain('localhost')
      expect(result.stderr).toContain('db.example')
      expect(result.stderr).toContain('Name the server in the database URL as its certificate does')
    } finally {
      await serve('here')
    }
    expect(await ls(right)).toMatchObject(accepted)
  })

  test('without TLS a server that insists on it refuses', async () => {
    for (const parameters of ['', 'sslmode=disable']) {
      const result = await ls(url(parameters))
      expect(result).toMatchObject(refused)
      expect(result.stderr).toContain('sslmode')
    }
  })

  test('no-verify takes any certificate', async () => {
    expect(await ls(url('sslmode=no-verify'))).toMatchObject(accepted)
  })

  test.for(['prefer', 'require', 'verify-ca'])(
    '%s is verify-full, and what pg has to say of that is not said on every run',
    async (mode) => {
      expect(await ls(url(`sslmode=${mode}&sslrootcert=${file('authority.crt')}`))).toMatchObject(accepted)
      const unknown = await ls(url(`sslmode=${mode}`))
      expect(unknown).toMatchObject(refused)
      expect(unknown.stderr).not.toContain('SECURITY WARNING')
    },
  )

  test('require is what it is to psql with uselibpqcompat', async () => {
    expect(await ls(url('uselibpqcompat=true&sslmode=require'))).toMatchObject(accepted)
    // With an authority it has to be that one.
    const other = `uselibpqcompat=true&sslmode=require&sslrootcert=${file('other.crt')}`
    expect(await ls(url(other))).toMatchObject(refused)
  })

  test('PGSSLMODE counts where the URL says nothing, with the authorities of Node', async () => {
    const env = { PGSSLMODE: 'verify-full', NODE_EXTRA_CA_CERTS: file('authority.crt') }
    expect(await ls(url(''), env)).toMatchObject(accepted)
    expect(await ls(url(''), { PGSSLMODE: 'verify-full' })).toMatchObject(refused)
    expect(await ls(url('sslmode=disable'), env)).toMatchObject(refused)
    const variables = {
      PGHOST: 'localhost',
      PGPORT: String(server.port),
      PGDATABASE: 'postgres',
      PGUSER: 'over_tls',
    }
    expect(await ls('', { ...env, ...variables, PGPASSWORD: secret })).toMatchObject(accepted)
  })

  test('a certificate of the client takes the place of a password', async () => {
    const mine = (name: string): string =>
      url(
        `sslmode=verify-full&sslrootcert=${file('authority.crt')}&sslcert=${file(`${name}.crt`)}&sslkey=${file(`${name}.key`)}`,
        'by_certificate',
      )
    expect(await ls(mine('client'))).toMatchObject(accepted)
    const stranger = await ls(mine('stranger'))
    expect(stranger).toMatchObject(refused)
    expect(stranger.stderr).toContain('(alert unknown ca). Check sslcert and sslkey')
    const without = url(`sslmode=verify-full&sslrootcert=${file('authority.crt')}`, 'by_certificate')
    expect(await ls(without)).toMatchObject(refused)
  })

  test("a run and its fence go over TLS, and stdout is the command's alone", async () => {
    const env = { FENCEPOST_DATABASE_URL: url(`sslmode=require&sslrootcert=${file('authority.crt')}`) }
    const result = await runCli(['run', 'over-tls', '--fence', '--json', '--', 'echo', 'mine'], { env })
    expect(result).toMatchObject({ code: 0, stdout: 'mine\n' })
    const events = result.stderr
      .trim()
      .split('\n')
      .map((line) => (JSON.parse(line) as { event: string }).event)
    expect(events).toEqual(['granted', 'started', 'released'])
  })

  test('a run that cannot have it starts nothing', async () => {
    const env = { FENCEPOST_DATABASE_URL: url(`sslmode=verify-full&sslrootcert=${file('other.crt')}`) }
    const result = await runCli(['run', 'over-tls', '--json', '--', 'echo', 'mine'], { env })
    expect(result).toMatchObject(refused)
    expect(JSON.parse(result.stderr)).toMatchObject({ event: 'error', exitCode: 69 })
  })
})
