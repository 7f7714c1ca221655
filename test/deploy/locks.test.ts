import { afterAll, beforeAll, expect, test } from 'vitest'
import { eventually } from '../support/cli.ts'
import { Recipes } from './application.ts'
import type { Deploy } from './deploy.ts'
import { tools } from './tools.ts'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

/** What the tools' own locks do, or what becomes of the second deploy of those that have none. */
const cases = [
  ['node-pg-migrate', 'node-pg-migrate up', 'Another migration is already running'],
  ['node-pg-migrate', 'node-pg-migrate up --advisory-lock-mode wait', 'deadlock detected'],
  ['knex', 'knex migrate:latest', 'Migration table is already locked'],
  ['typeorm', 'typeorm migration:run --dataSource data-source.js --transaction each', 'duplicate key value'],
  ['drizzle', 'drizzle-kit migrate', 'applying migrations'],
  ['umzug', 'node migrate.js up', 'duplicate key value'],
] as const

test.each(cases)('without a lease, one of two deploys with %s fails: %s', async (name, command, reason) => {
  const tool = tools.find((one) => one.name === name)!
  const application = await recipes.application(tool)
  const atOrders = await application.holdAtOrders()
  const first = application.start(tool, command)
  const migrating = await application.stopped(first, 'orders')
  const second = application.start(tool, command)
  let isOver = false
  void second.closed.then(() => (isOver = true))
  await eventually(async () => isOver || (await application.waiting()).some((pid) => pid !== migrating))
  await atOrders.query('rollback')
  const ends = await Promise.all([first.closed, second.closed])
  const failed = ends.filter(({ code }) => code !== 0)
  expect(failed).toEqual([{ code: 1, output: expect.stringContaining(reason) }])
})

test("without a lease, kysely's own lock makes a concurrent index fail while another deploy waits for it", async () => {
  const kysely = tools.find(({ name }) => name === 'kysely')!
  const application = await recipes.application(kysely)
  const atIndex = await application.holdAtIndex()
  const earlier = application.start(kysely, 'node migrate.js')
  await application.stopped(earlier, 'index')
  earlier.signal('SIGKILL')
  await atIndex.query('rollback')
  await eventually(async () => (await application.waiting()).length === 0)
  await application.database.query('drop index customers_email')

  const writer = await application.database.session()
  await writer.query('begin')
  await writer.query('lock table customers in row exclusive mode')
  const first = application.start(kysely, 'node migrate.js')
  await application.stopped(first, 'index')
  const second = application.start(kysely, 'node migrate.js')
  await second.until('its wait', async () => (await application.waiting()).length === 2)
  await writer.query('rollback')
  const ends = await Promise.all([first.closed, second.closed])
  const failed = ends.filter(({ code }) => code !== 0)
  expect(failed).toEqual([{ code: 1, output: expect.stringContaining('deadlock detected') }])
})

test('a migration with a lock_timeout lets the traffic behind it go on, and can be deployed again', async () => {
  const tool = tools.find(({ name }) => name === 'node-pg-migrate')!
  const application = await recipes.application(tool)
  const atOrders = await application.holdAtOrders()
  const migrate = (): Deploy => application.start(tool, 'node-pg-migrate up --migrations-dir careful')
  const first = migrate()
  await application.stopped(first, 'orders')
  const reader = application.database.query('select from customers')
  expect(await first.closed).toMatchObject({ code: 1, output: expect.stringContaining('lock timeout') })
  await reader
  await atOrders.query('rollback')
  expect(await migrate().closed).toMatchObject({ code: 0 })
})

test('a lock_timeout makes a concurrent index give up, and leaves it invalid', async () => {
  const tool = tools.find(({ name }) => name === 'umzug')!
  const application = await recipes.application(tool)
  const atIndex = await application.holdAtIndex()
  const env = { PGOPTIONS: '-c lock_timeout=100ms' }
  const end = await application.deploy(tool, { env }).closed
  expect(end).toMatchObject({ code: 1, output: expect.stringContaining('lock timeout') })
  expect(await application.schema()).toMatchObject({ index: 'invalid' })
  await atIndex.query('rollback')
  expect(await application.deploy(tool, { env }).closed).toMatchObject({ code: 0 })
  expect(await application.schema()).toMatchObject({ index: 'valid' })
})
