import { readFileSync, readdirSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { environmentUrl } from '../../src/database/connect-options.ts'
import { hidePasswords, withoutPasswords } from '../../src/cli/hidden-passwords.ts'
import { Cli, type CliResult, eventually, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { Terminal, hasTerminal } from '../support/terminal.ts'

const database = useDatabase()
/** What must never be seen. */
const secret = 'Geheim-4711'
const user = `secretive_${process.pid}`

beforeAll(async () => {
  await database.query(`create role ${user} login password '${secret}'`)
  await Fencepost.migrate({ connectionString: database.url, grantTo: [user] })
})
afterAll(() => database.query(`drop owned by ${user}; drop role ${user}`))

/** The database as the variables of PostgreSQL name it. */
function variables(url: string): Record<string, string> {
  const { hostname, port, username, password, pathname } = new URL(url)
  return {
    PGHOST: hostname,
    PGPORT: port,
    PGUSER: username,
    PGPASSWORD: password,
    PGDATABASE: pathname.slice(1),
  }
}

const pg = (): Record<string, string> => variables(database.url)

async function folder(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'fencepost-environment-'))
  onTestFinished(() => rm(path, { recursive: true }))
  return path
}

describe('the database is named by', () => {
  const nowhere = 'postgres://nobody@127.0.0.1:1/nothing'

  test.for([
    ['the PG variables', () => pg()],
    ['PGHOST alone, the database being that of the user', () => ({ ...pg(), PGDATABASE: '' })],
    ['a URL that leaves all to the PG variables', () => ({ ...pg(), DATABASE_URL: 'postgres://' })],
    [
      'a URL without host and user, and the PG variables',
      () => ({ ...pg(), PGDATABASE: 'wrong', DATABASE_URL: `postgres:///${pg()['PGDATABASE']}` }),
    ],
    [
      'DATABASE_URL before the PG variables',
      () => ({ PGHOST: '127.0.0.1', PGPORT: '1', DATABASE_URL: database.url }),
    ],
    [
      'FENCEPOST_DATABASE_URL before DATABASE_URL',
      () => ({ DATABASE_URL: nowhere, FENCEPOST_DATABASE_URL: database.url }),
    ],
  ] as const)('%s', async ([what, env]) => {
    const result = await runCli(['ls'], { env: env() })
    // The database that has the name of the user is there, but has no leases.
    if (what.startsWith('PGHOST alone')) expect(result.stderr).toContain('is not installed in this database')
    else expect(result).toMatchObject({ code: 0, stdout: 'no leases yet\n', stderr: '' })
  })

  test('--database-url before all of them', async () => {
    const env = { ...pg(), PGDATABASE: 'wrong', DATABASE_URL: nowhere, FENCEPOST_DATABASE_URL: nowhere }
    expect(await runCli(['ls', '--database-url', database.url], { env })).toMatchObject({ code: 0 })
  })

  test.for([
    ['nothing', {}],
    ['a user and a password without a place', { PGUSER: 'app', PGPASSWORD: secret, PGPORT: '5432' }],
    ['variables that are empty', { PGHOST: '', PGDATABASE: '', DATABASE_URL: '' }],
  ] as const)('no guess: %s is wrong usage, and the message has all ways', async ([, env]) => {
    for (const args of [['ls'], ['run', 'job', '--', 'true']]) {
      const result = await runCli(args, { env })
      expect(result).toMatchObject({ code: 64, stdout: '' })
      for (const way of [
        '--database-url',
        'FENCEPOST_DATABASE_URL',
        ' DATABASE_URL',
        'PGHOST',
        'PGDATABASE',
        '--local',
      ])
        expect(result.stderr).toContain(way)
    }
  })

  test('no service file, which pg does not read: the message says so', async () => {
    const result = await runCli(['ls'], { env: { PGSERVICE: 'app' } })
    expect(result).toMatchObject({ code: 64 })
    expect(result.stderr).toContain('PGSERVICE is set, but pg does not read service files')
  })

  test.for(['PGPASSFILE', 'HOME'])('a password in a file that %s leads to', async (variable) => {
    const { PGHOST, PGPORT, PGDATABASE } = pg()
    const file = join(await folder(), '.pgpass')
    await writeFile(file, `${PGHOST}:${PGPORT}:${PGDATABASE}:${user}:${secret}\n`, { mode: 0o600 })
    const env: Record<string, string> = {
      PGHOST: PGHOST!,
      PGPORT: PGPORT!,
      PGDATABASE: PGDATABASE!,
      PGUSER: user,
      [variable]: variable === 'HOME' ? join(file, '..') : file,
    }
    expect(await runCli(['ls'], { env })).toMatchObject({ code: 0, stderr: '' })
    await writeFile(file, `${PGHOST}:${PGPORT}:${PGDATABASE}:${user}:wrong\n`)
    expect(await runCli(['ls'], { env })).toMatchObject({ code: 69 })
  })

  test('the same for the library', async () => {
    expect(environmentUrl({ PGDATABASE: 'app' })).toBe('postgres://')
    expect(environmentUrl({ PGUSER: 'app', PGPASSWORD: 'x', PGSERVICE: 'app' })).toBeUndefined()
    const before = { ...process.env }
    for (const name of ['FENCEPOST_DATABASE_URL', 'DATABASE_URL']) delete process.env[name]
    onTestFinished(() => void (process.env = before))
    await expect(Fencepost.open()).rejects.toThrow(
      /pass connectionString.*DATABASE_URL.*PGHOST or PGDATABASE/,
    )
    Object.assign(process.env, pg())
    await using fencepost = await Fencepost.open()
    await using lease = await fencepost.acquire('from-variables')
    expect(await database.query('select from fencepost.leases where name = $1', [lease.name])).toHaveLength(1)
  })
})

describe('a command under "run"', () => {
  const print = ['--', process.execPath, '-p', 'JSON.stringify(process.env)']

  test('inherits the environment as it was', async () => {
    const env = { ...pg(), PGAPPNAME: 'mine', PGSSLMODE: 'disable', DATABASE_URL: 'postgres://' }
    const result = await runCli(['run', 'inherits', ...print], { env })
    expect(result).toMatchObject({ code: 0, stderr: '' })
    const seen = JSON.parse(result.stdout) as Record<string, string>
    expect(seen).toMatchObject(env)
    expect(seen).not.toHaveProperty('FENCEPOST_DATABASE_URL')
    expect(seen).not.toHaveProperty('PGOPTIONS')
  })

  test('is fenced by --fence on the server that the variables name', async () => {
    await database.query('create table guarded (id integer)')
    await Fencepost.protect('guarded', { connectionString: database.url, lease: 'by-variables' })
    const write = `const { Client } = require('pg'); const c = new Client(); c.connect()
      .then(() => c.query('insert into guarded values (1)')).then(() => c.end())`
    const child = ['--', process.execPath, '-e', write]
    const fenced = await runCli(['run', 'by-variables', '--fence', ...child], { env: pg() })
    expect(fenced).toMatchObject({ code: 0, stderr: '' })
    const unfenced = await runCli(['run', 'by-variables', ...child], { env: pg() })
    expect(unfenced.code).toBe(1)
    expect(await database.query('select from guarded')).toHaveLength(1)
  })

  test('takes its term from "env", which asks that server', async () => {
    const result = await runCli(['env', 'for-shell'], { env: pg() })
    expect(result).toMatchObject({ code: 0, stderr: '' })
    const [row] = await database.query<{ token: string }>(
      `select token from fencepost.leases where name = 'for-shell' and state = 'held'`,
    )
    expect(result.stdout).toContain(`FENCEPOST_TOKEN='${row!.token}'`)
  })
})

describe('a password', () => {
  const at = (more: string): string =>
    `postgres://${user}:${secret}@${new URL(database.url).host}/${new URL(database.url).pathname.slice(1)}${more}`

  test.for([
    ['postgres://app:geheim@host/db', 'postgres://app:***@host/db'],
    [
      '--database-url=postgres://app:geheim@host/db?sslmode=require',
      '--database-url=postgres://app:***@host/db?sslmode=require',
    ],
    ['postgres://:geheim@host/db', 'postgres://:***@host/db'],
    ['postgres://app:ge/he@im@host/db', 'postgres://app:***@host/db'],
    ['postgres://app:geheim', 'postgres://app:***'],
    [
      'postgres://host/db?user=a&password=geheim&sslmode=disable',
      'postgres://host/db?user=a&password=***&sslmode=disable',
    ],
    ['postgres://host/db?sslpassword=geheim', 'postgres://host/db?sslpassword=***'],
    ['postgres://host/db?p%61ssword=geheim', 'postgres://host/db?p%61ssword=***'],
    ['postgres://app@host:5432/db', 'postgres://app@host:5432/db'],
    ['postgres://host:5432', 'postgres://host:5432'],
    ['deploy?password=1', 'deploy?password=1'],
    ['10:30@noon', '10:30@noon'],
  ])('in "%s" is shown as "%s"', ([text, shown]) => {
    expect(withoutPasswords(text!)).toBe(shown)
  })

  test.for([
    ['postgres://app:ge heim@host/db', 'postgres://app:***@host/db'],
    ['postgres://ap p:geheim@host/db', 'postgres://ap p:***@host/db'],
    ['--database-url=postgres://app:ge h@eim@host/db', '--database-url=postgres://app:***@host/db'],
    ['postgres://app@host/db?password=ge heim&x=1', 'postgres://app@host/db?password=***&x=1'],
    ['postgres://app:ge heim', 'postgres://app:***'],
    ['postgres://app:12 34', 'postgres://app:***'],
    ['postgres://[::1]:5432/db', 'postgres://[::1]:5432/db'],
    ['postgres://host:5432/db', 'postgres://host:5432/db'],
    ['a:b c@d', 'a:b c@d'],
  ])('in the argument "%s" is shown as "%s", also in what is said of it', ([text, shown]) => {
    const program = { argv0: 'node', execArgv: [], argv: ['node', 'main.js', 'ls', text], title: 'node' }
    hidePasswords(program as unknown as NodeJS.Process)
    expect(program.title).toBe(text === shown ? 'node' : `node main.js ls ${shown}`)
    expect(withoutPasswords(`no such thing as '${text}' here`)).toBe(`no such thing as '${shown}' here`)
  })

  test.for([
    [['ls', 'postgres://app:ge heim@host/db', 'more']],
    [['run', 'x', '--wait', 'postgres://app:geheim@host/db', '--', 'true']],
    [['run', 'x', '--', 'postgres://app:geheim@host/db']],
    [['run', 'x', '--json', '--', 'postgres://app:geheim@host/db']],
  ])('in the wrong place is not repeated: %j', async ([args]) => {
    const result = await runCli(args!, { url: database.url })
    expect(result.code).not.toBe(0)
    expect(result.stderr).toContain('***')
    expect(JSON.stringify(result)).not.toContain('heim')
  })

  test.skipIf(process.platform !== 'linux').for([
    ['behind the user', () => at('')],
    ['as a parameter', () => `${at('').replace(`:${secret}`, '')}?password=${secret}&sslpassword=${secret}`],
  ] as const)(
    'on the command line, %s, is in no arguments of the wrapper or of what it starts',
    async ([, url]) => {
      const args = ['run', 'seen', '--fence', '--database-url', url(), '--', 'cat']
      const cli = new Cli(args)
      // The watchdog and the command: both are there once the lease is held.
      await eventually(() => descendants(cli.pid).length >= 2)
      const shown = [cli.pid, ...descendants(cli.pid)].map(argumentsOf)
      expect(shown[0]).toContain('run seen --fence --database-url postgres://')
      expect(shown[0]).toContain('***')
      expect(shown[0]).toContain('-- cat')
      expect(shown.join('\n')).not.toContain(secret)
      cli.endInput()
      expect(await cli.closed).toMatchObject({ code: 0 })
    },
  )

  test.skipIf(process.platform !== 'linux')('that is not on it changes nothing there', async () => {
    const cli = new Cli(['run', 'plain', '--', 'cat'], { url: at('') })
    await eventually(() => descendants(cli.pid).length >= 2)
    expect(readFileSync(`/proc/${cli.pid}/cmdline`, 'utf8').split('\0').slice(2)).toEqual([
      'run',
      'plain',
      '--',
      'cat',
      '',
    ])
    cli.endInput()
    await cli.closed
  })

  const { host, pathname } = {
    host: () => new URL(database.url).host,
    pathname: () => new URL(database.url).pathname,
  }
  /** Each is a way to fail, with the marked password in it. */
  const failures: readonly (readonly [string, () => { url: string; code: number }])[] = [
    ['a wrong password', () => ({ url: `postgres://${user}:${secret}-x@${host()}${pathname()}`, code: 69 })],
    ['a wrong host', () => ({ url: `postgres://${user}:${secret}@nowhere.invalid${pathname()}`, code: 69 })],
    ['a wrong port', () => ({ url: `postgres://${user}:${secret}@127.0.0.1:1${pathname()}`, code: 69 })],
    ['an unknown database', () => ({ url: `postgres://${user}:${secret}@${host()}/unknown`, code: 69 })],
    ['a server without TLS', () => ({ url: at('?sslmode=verify-full'), code: 69 })],
    ['a scheme that is none', () => ({ url: at('').replace('postgres', 'mysql'), code: 64 })],
    ['a port that is none', () => ({ url: `postgres://${user}:${secret}@host:many/db`, code: 64 })],
    [
      'a password that is not encoded',
      () => ({ url: `postgres://${user}:${secret}/%zz@${host()}/db`, code: 64 }),
    ],
    ['no host', () => ({ url: `postgres://${user}:${secret}`, code: 64 })],
    [
      'a certificate that is not there',
      () => ({ url: at('?sslmode=verify-full&sslrootcert=/nowhere'), code: 64 }),
    ],
    [
      'a password as a parameter',
      () => ({
        url: `postgres://${user}@${host()}/unknown?password=${secret}&sslpassword=${secret}`,
        code: 69,
      }),
    ],
  ]

  test.for(failures)('is not in what is said of %s', async ([, failure]) => {
    const { url, code } = failure()
    for (const args of [
      ['ls'],
      ['ls', '--json'],
      ['run', 'job', '--', 'true'],
      ['run', 'job', '--json', '--fence', '--', 'true'],
      ['doctor', '--json'],
    ]) {
      const named = await runCli(args, { env: { FENCEPOST_DATABASE_URL: url } })
      expect(named).toMatchObject({ code, stdout: '' })
      expectHidden(named)
      const [command, ...rest] = args
      const given = await runCli([command!, '--database-url', url, ...rest])
      expect(given).toMatchObject({ code, stdout: '' })
      expectHidden(given)
    }
  })

  test.for([
    ['a command', []],
    ['an option that is mistyped', ['ls']],
    ['a value of another option', ['ls', '--sort']],
  ] as const)('is not in what is said of a URL that stands where %s should', async ([what, args]) => {
    const given = what.startsWith('an option') ? `--databse-url=${at('')}` : at('')
    const result = await runCli([...args, given])
    expect(result.code).not.toBe(0)
    expect(JSON.stringify(result)).not.toContain(secret)
  })

  test.skipIf(!hasTerminal)('is not what a table shows of a wrapper', async () => {
    const holding = new Cli(['run', 'shown', '--database-url', at(''), '--', 'cat'])
    await eventually(() => descendants(holding.pid).length >= 2)
    const terminal = new Terminal(['show', 'shown'], { columns: 100, rows: 24 }, database.url)
    expect(await terminal.closed).toBe(0)
    expect(terminal.shown).toContain('shown')
    expect(terminal.shown).not.toContain(secret)
    holding.endInput()
    await holding.closed
  })
})

function expectHidden(result: CliResult): void {
  expect(result.stderr).not.toBe('')
  expect(JSON.stringify(result)).not.toContain(secret)
  expect(result.stderr).not.toMatch(/\n {4}at |SECURITY WARNING/)
}

/** The processes that this one has started, and theirs. */
function descendants(pid: number): number[] {
  const children = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => parentOf(name) === pid)
    .map(Number)
  return children.flatMap((child) => [child, ...descendants(child)])
}

function parentOf(pid: string): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
  } catch {
    return undefined
  }
}

function argumentsOf(pid: number): string {
  return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
}
