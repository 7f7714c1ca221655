import { chmod, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Recipes } from './application.ts'
import { cases } from './tools.ts'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

test('the document names the versions that are tested', async () => {
  const packages = [
    'node-pg-migrate',
    'prisma',
    'drizzle-kit',
    'drizzle-orm',
    'knex',
    'typeorm',
    'kysely',
    'umzug',
  ]
  expect(await recipes.document.versionsMissing(packages)).toEqual([])
})

test('the document has no recipe that is not tested', () => {
  const folders = recipes.document.named('deploy.sh').map((name) => name.replace('/deploy.sh', ''))
  expect(folders.toSorted()).toEqual(cases.map(({ tool }) => tool.name).toSorted())
})

/** In place of Prisma's engine: writes down what it is started with. */
const recorder = `#!/usr/bin/env node
require('node:fs').writeFileSync(process.env.RECORD, JSON.stringify(process.argv))
process.exit(1)
`

test('the recipe of Prisma puts the fence into the URL that it gives to its engine, whatever its URL has already', async () => {
  const prisma = cases.find(({ tool }) => tool.name === 'prisma')!.tool
  const application = await recipes.application({ ...prisma, baseline: undefined })
  const { project } = recipes
  await project.write('engine.cjs', recorder)
  const record = join(project.folder, 'record.json')
  await chmod(join(project.folder, 'engine.cjs'), 0o755)
  const env = {
    PRISMA_SCHEMA_ENGINE_BINARY: join(project.folder, 'engine.cjs'),
    RECORD: record,
    DATABASE_URL: `${application.url}?sslmode=disable`,
  }
  expect((await application.deploy(prisma, { env }).closed).code).toBe(1)
  const started = JSON.parse(await readFile(record, 'utf8')) as string[]
  const datasource = JSON.parse(started[started.indexOf('--datasource') + 1]!) as { url: string }
  const { searchParams } = new URL(datasource.url)
  expect(searchParams.get('options')).toMatch(/^-c fencepost\.fence=\d+:[0-9a-f-]{36}:deploy$/)
  expect(searchParams.get('sslmode')).toBe('disable')
})

test('TypeORM refuses in its default mode what its recipe has for a concurrent index', async () => {
  const { tool } = cases.find(({ name }) => name === 'typeorm')!
  const application = await recipes.application(tool)
  const end = await application.start(tool, 'typeorm migration:run --dataSource data-source.js').closed
  expect(end).toMatchObject({ code: 1, output: expect.stringContaining('CustomersEmail1764460800002') })
  expect(await application.history(tool)).toEqual([])
})
