import { execFile } from 'node:child_process'
import { chmod, cp, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { demoClientReason } from '../../src/cli/demo-clients/registry.ts'
import { connectionEnvironment } from '../../src/cli/demo-clients/program.ts'
import { python } from '../../src/cli/demo-clients/psycopg.ts'
import { useDatabase } from '../support/database.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const database = useDatabase()
const psqlReason = await demoClientReason('psql')
const psycopgReason = await demoClientReason('psycopg')

/** The code of docs/clients.md, by the name that the comment before it gives. */
const document = await readFile(join(root, 'docs/clients.md'), 'utf8')
const files = new Map(
  [...document.matchAll(/<!-- file: (\S+) -->\n```\w+\n([^]*?)```/g)].map(([, name, code]) => [name!, code!]),
)
const named = (ending: string): string[] => [...files.keys()].filter((name) => name.endsWith(ending))

/** A user's project: what is installed in it, and the code of the document. */
let folder: string

async function makeProject(): Promise<void> {
  folder = await mkdtemp(join(tmpdir(), 'fencepost-recipes-'))
  const modules = join(folder, 'node_modules')
  await mkdir(join(modules, '.bin'), { recursive: true })
  for (const name of await readdir(join(root, 'node_modules'))) {
    if (!name.startsWith('.')) await symlink(join(root, 'node_modules', name), join(modules, name))
  }
  await mkdir(join(modules, 'fencepost'))
  for (const part of ['package.json', 'migrations']) {
    await cp(join(root, part), join(modules, 'fencepost', part), { recursive: true })
  }
  const dist = join(modules, 'fencepost/dist')
  await run(root, 'tsc', '-p', 'tsconfig.build.json', '--noCheck', '--outDir', dist)
  await chmod(join(dist, 'cli/main.js'), 0o755)
  await symlink(join(dist, 'cli/main.js'), join(modules, '.bin/fencepost'))
  // Debian's packages belong to Debian's Python, which need not be the first on the path.
  const interpreter = await python()
  if (interpreter?.startsWith('/') === true) await symlink(interpreter, join(modules, '.bin/python3'))
  await writeFile(join(folder, 'package.json'), JSON.stringify({ private: true, type: 'module' }))
  await writeFile(join(folder, 'runner.ts'), runner)
  for (const [name, code] of files) await writeFile(join(folder, name), code)
}

async function run(cwd: string, program: string, ...args: string[]): Promise<string> {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(PG|FENCEPOST_|NODE_OPTIONS$)/.test(name),
  )
  const env = {
    ...Object.fromEntries(inherited),
    ...connectionEnvironment(database.url),
    PATH: [join(folder, 'node_modules/.bin'), join(root, 'node_modules/.bin'), process.env['PATH']].join(
      delimiter,
    ),
    DATABASE_URL: database.url,
    PRISMA_SCHEMA_ENGINE_BINARY: process.execPath,
    CHECKPOINT_DISABLE: '1',
  }
  try {
    return (await execute(program, args, { cwd, env })).stdout
  } catch (error) {
    // The compiler writes its findings to stdout.
    if (error instanceof Error && 'stdout' in error) error.message += `\n${String(error.stdout)}`
    throw error
  }
}

/** Calls one function of a recipe three times: with the lease held, with it stale, and with a newer term. */
const runner = `
import { randomUUID } from 'node:crypto'
import { Fencepost, type Lease } from 'fencepost'
import { Client } from 'pg'
import { attempt } from './attempt.ts'

const [file, name] = process.argv.slice(2)
const { [name!]: settle } = (await import(file!)) as Record<string, (lease: Lease, id: number) => Promise<void>>
const client = new Client(process.env['DATABASE_URL'])
await client.connect()
const status = async (): Promise<unknown> =>
  (await client.query('select status from accounts where id = 7')).rows[0].status
const fencepost = await Fencepost.open()
const lease = await fencepost.acquire('settlement')
const held = [await attempt(lease, () => settle!(lease, 7)), await status()]

await client.query('begin')
await client.query(lease.fenceSql())
await client.query("update accounts set status = 'due' where id = 7")
await client.query('commit')
const next = randomUUID()
await client.query('select fencepost.end_holder($1)', [lease.term.holderId])
await client.query("select fencepost.join_holder($1, 'next', null, null, null, 30000)", [next])
await client.query("select * from fencepost.acquire(array['settlement'], $1, 1)", [next])
const stale = [await attempt(lease, () => settle!(lease, 7)), await status()]
await client.query('select fencepost.end_holder($1)', [next])
console.log(JSON.stringify({ held, stale }))
process.exit()
`

beforeAll(async () => {
  await makeProject()
  await run(folder, 'prisma', 'generate', '--schema', 'schema.prisma')
  await database.query(files.get('accounts.sql')!)
}, 120_000)
afterAll(async () => {
  if (folder !== undefined) await rm(folder, { recursive: true, force: true })
})
beforeEach(async () => {
  await database.query(`select fencepost.unprotect('accounts')`)
  await database.query('truncate accounts')
  await database.query(`insert into accounts (id, status) values (7, 'due')`)
  await database.query(`select fencepost.protect('accounts', 'settlement')`)
})

async function status(): Promise<string> {
  return (await database.query<{ status: string }>('select status from accounts where id = 7'))[0]!.status
}

test('the TypeScript of the document type-checks', async () => {
  const options =
    '--noEmit --module nodenext --target es2024 --lib es2024,esnext.disposable --types node --strict'
  const more = '--skipLibCheck --allowImportingTsExtensions --erasableSyntaxOnly --noUnusedLocals'
  const found = await run(
    folder,
    'tsc',
    ...options.split(' '),
    ...more.split(' '),
    'runner.ts',
    ...named('.ts'),
  )
  expect(found).toBe('')
})

test('the document names the versions that are tested', async () => {
  const packages = [
    'kysely',
    'pg',
    'drizzle-orm',
    '@prisma/client',
    '@prisma/adapter-pg',
    'knex',
    'typeorm',
    'postgres',
  ]
  for (const name of packages) {
    const manifest = await readFile(join(root, 'node_modules', name, 'package.json'), 'utf8')
    const { version } = JSON.parse(manifest) as { version: string }
    const isNamed = ['| ', ', '].some((before) => document.includes(`${before}${name} ${version}`))
    expect(isNamed, `${name} ${version}`).toBe(true)
  }
})

const recipes = named('.ts').flatMap((file) =>
  [...files.get(file)!.matchAll(/export async function (\w+)\(lease: Lease, id/g)].map(
    ([, name]) => [file, name!] as const,
  ),
)

test('the document has a recipe for each client of Node', () => {
  const clients = ['drizzle', 'knex', 'kysely', 'pg', 'postgres-js', 'prisma', 'typeorm']
  expect([...new Set(recipes.map(([file]) => file))].toSorted()).toEqual(clients.map((name) => `${name}.ts`))
})

test.each(recipes)(
  '%s: %s writes while the lease is held, and is refused when it is stale',
  async (file, name) => {
    expect(JSON.parse(await run(folder, 'node', 'runner.ts', `./${file}`, name))).toEqual({
      held: ['written', 'settled'],
      stale: ['STALE_TERM', 'due'],
    })
  },
)

test('postgres-js.ts: the session of fencedClient is fenced', async () => {
  const script = `
    import { Fencepost } from 'fencepost'
    import { fencedClient } from './postgres-js.ts'
    const fencepost = await Fencepost.open()
    const sql = fencedClient(await fencepost.acquire('settlement'))
    await sql\`update accounts set status = 'settled' where id = 7\`
    await sql.end()
    await fencepost.close()
    process.exit()`
  await run(folder, 'node', '--input-type=module', '--eval', script)
  expect(await status()).toBe('settled')
})

test.skipIf(psqlReason !== undefined)('child.ts: the program is fenced by the lease', async () => {
  const script = `
    import { Fencepost } from 'fencepost'
    import { runSql } from './child.ts'
    const fencepost = await Fencepost.open()
    await runSql(await fencepost.acquire('settlement'), 'settle.sql')
    await fencepost.close()
    process.exit()`
  await run(folder, 'node', '--input-type=module', '--eval', script)
  expect(await status()).toBe('settled')
})

const scripts = [
  ['env.sh', psqlReason],
  ['node.sh', undefined],
  ['psql.sh', psqlReason],
  ['self-fenced.sh', psqlReason],
  ['python.sh', psycopgReason],
  ['call.sh', psycopgReason],
  ['perl.sh', await demoClientReason('dbd-pg')],
] as const

test('the document has no other script', () => {
  expect(named('.sh').toSorted()).toEqual(scripts.map(([name]) => name).toSorted())
})

const scriptCases = scripts.map(([file, reason]) => {
  return { file, reason, title: reason === undefined ? file : `${file} (skipped: ${reason})` }
})

describe.each(scriptCases)('$title', ({ file, reason }) => {
  test.skipIf(reason !== undefined)('writes with its fence, and is refused without it', async () => {
    const command = files.get(file)!
    await run(folder, 'sh', '-c', command)
    expect(await status()).toBe('settled')

    await database.query(`select fencepost.unprotect('accounts')`)
    await database.query(`update accounts set status = 'due'`)
    await database.query(`select fencepost.protect('accounts', 'settlement')`)
    const bare = command
      .replace(/^fencepost run settlement (--fence )?-- /m, '')
      .replaceAll(/^eval .*\n/gm, '')
    expect(bare).not.toBe(command)
    await expect(run(folder, 'sh', '-c', bare)).rejects.toThrow()
    expect(await status()).toBe('due')
  })
})
