import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { migrated, Recipes } from './application.ts'
import { cases, tools } from './tools.ts'

const noConnectionCheck = 'PostgreSQL 13 does not look whether the client of a busy session is still there'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

describe.each(cases)('$name', ({ tool, reason }) => {
  test.skipIf(reason !== undefined)(
    'killed in a migration, and in the next deploy in a concurrent index: the one after it completes',
    async ({ skip }) => {
      skip(!recipes.hasConnectionCheck, noConnectionCheck)
      const application = await recipes.application(tool)
      const atOrders = await application.holdAtOrders()
      const atIndex = await application.holdAtIndex()
      const first = application.deploy(tool)
      const migrating = await application.stopped(first, 'orders')
      first.signal('SIGKILL')
      await application.runOut()
      // The server notices, although what it waits for is still locked.
      await application.untilGone(migrating)
      expect(await application.schema()).toEqual({ orders: false, country: false, index: 'none' })
      expect(await application.history(tool)).toEqual([])

      if (tool.recovery !== undefined) {
        const refused = { code: 1, output: expect.stringContaining(tool.recovery.needed) }
        expect(await application.deploy(tool).closed).toMatchObject(refused)
      }
      await application.recover(tool, 'orders')
      const second = application.deploy(tool)
      await application.stopped(second, 'orders')
      await atOrders.query('rollback')
      const building = await application.stopped(second, 'index')
      second.signal('SIGKILL')
      await application.runOut()
      await application.untilGone(building)
      expect(await application.schema()).toEqual({ orders: true, country: true, index: 'invalid' })
      const leftBehind = await application.database.query(recipes.file('invalid-indexes.sql'))
      expect(leftBehind).toEqual([{ index: 'customers_email', table: 'customers' }])
      expect(await application.history(tool)).toEqual(tool.migrations.slice(0, 1))

      await atIndex.query('rollback')
      await application.recover(tool, 'index')
      expect(await application.deploy(tool).closed).toMatchObject({ code: 0 })
      expect(await application.schema()).toEqual(migrated)
      expect(await application.history(tool)).toEqual(tool.migrations)
    },
  )
})

describe("knex's own lock", () => {
  const knex = tools.find(({ name }) => name === 'knex')!

  test('stays behind when the command is killed outside of a transaction, and the recipe frees it', async ({
    skip,
  }) => {
    skip(!recipes.hasConnectionCheck, noConnectionCheck)
    const application = await recipes.application(knex)
    const atIndex = await application.holdAtIndex()
    const first = application.deploy(knex)
    const building = await application.stopped(first, 'index')
    process.kill(first.command('knex'), 'SIGKILL')
    expect(await first.closed).toMatchObject({ code: 137 })
    await application.untilGone(building)
    await atIndex.query('rollback')

    const plain = await application.start(knex, 'fencepost run deploy -- knex migrate:latest').closed
    expect(plain).toMatchObject({ code: 1, output: expect.stringContaining('already locked') })
    expect(await application.deploy(knex).closed).toMatchObject({ code: 0 })
    expect(await application.schema()).toEqual(migrated)
    expect(await application.history(knex)).toEqual(knex.migrations)
  })
})

test('without the setting of the role, what a killed deploy holds on the server stays', async ({ skip }) => {
  skip(!recipes.hasConnectionCheck, noConnectionCheck)
  const tool = tools.find(({ name }) => name === 'node-pg-migrate')!
  const application = await recipes.application(tool)
  const atOrders = await application.holdAtOrders()
  const env = { PGOPTIONS: '-c client_connection_check_interval=0' }
  const first = application.deploy(tool, { env })
  const migrating = await application.stopped(first, 'orders')
  first.signal('SIGKILL')
  await application.runOut()
  const second = await application.deploy(tool).closed
  expect(second).toMatchObject({
    code: 1,
    output: expect.stringContaining('Another migration is already running'),
  })
  await atOrders.query('rollback')
  await application.untilGone(migrating)
  expect(await application.deploy(tool).closed).toMatchObject({ code: 0 })
  expect(await application.history(tool)).toEqual(tool.migrations)
})
