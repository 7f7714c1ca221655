import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { demoClientReason } from '../../src/cli/demo-clients/registry.ts'
import { python } from '../../src/cli/demo-clients/psycopg.ts'
import { useDatabase } from '../support/database.ts'
import { Document, UserProject } from '../support/user-project.ts'

const database = useDatabase()
const psqlReason = await demoClientReason('psql')
const psycopgReason = await demoClientReason('psycopg')
const document = await Document.read('docs/clients.md')
const { files } = document

let project: UserProject

async function makeProject(): Promise<void> {
  project = await UserProject.make(files)
  // Debian's packages belong to Debian's Python, which need not be the first on the path.
  const interpreter = await python()
  if (interpreter?.startsWith('/') === true) await project.link('python3', interpreter)
  await project.write('runner.ts', runner)
}

/** `PRISMA_SCHEMA_ENGINE_BINARY` keeps Prisma from looking for an engine, which only migrations need. */
function run(program: string, ...args: string[]): Promise<string> {
  const env = { ...project.environment(database.url), PRISMA_SCHEMA_ENGINE_BINARY: process.execPath }
  return project.run(env, program, ...args)
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
  await run('prisma', 'generate', '--schema', 'schema.prisma')
  await database.query(files.get('accounts.sql')!)
}, 120_000)
afterAll(async () => {
  await project?.[Symbol.asyncDispose]()
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
    'tsc',
    ...options.split(' '),
    ...more.split(' '),
    'runner.ts',
    ...document.named('.ts'),
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
  expect(await document.versionsMissing(packages)).toEqual([])
})

const recipes = document
  .named('.ts')
  .flatMap((file) =>
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
    expect(JSON.parse(await run('node', 'runner.ts', `./${file}`, name))).toEqual({
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
  await run('node', '--input-type=module', '--eval', script)
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
  await run('node', '--input-type=module', '--eval', script)
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
  expect(document.named('.sh').toSorted()).toEqual(scripts.map(([name]) => name).toSorted())
})

const scriptCases = scripts.map(([file, reason]) => {
  return { file, reason, title: reason === undefined ? file : `${file} (skipped: ${reason})` }
})

describe.each(scriptCases)('$title', ({ file, reason }) => {
  test.skipIf(reason !== undefined)('writes with its fence, and is refused without it', async () => {
    const command = files.get(file)!
    await run('sh', '-c', command)
    expect(await status()).toBe('settled')

    await database.query(`select fencepost.unprotect('accounts')`)
    await database.query(`update accounts set status = 'due'`)
    await database.query(`select fencepost.protect('accounts', 'settlement')`)
    const bare = command
      .replace(/^fencepost run settlement (--fence )?-- /m, '')
      .replaceAll(/^eval .*\n/gm, '')
    expect(bare).not.toBe(command)
    await expect(run('sh', '-c', bare)).rejects.toThrow()
    expect(await status()).toBe('due')
  })
})
