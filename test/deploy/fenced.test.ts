import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { type Application, migrated, Recipes } from './application.ts'
import { type Tool, cases, tools } from './tools.ts'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

/** An application whose schema is changed under the lease of its deploys only. */
async function protectedApplication(tool: Tool): Promise<Application> {
  const application = await recipes.application(tool)
  const connectionString = application.database.url
  await Fencepost.protectSchema('public', { connectionString, lease: 'deploy' })
  return application
}

describe.each(cases)('$name on a protected schema', ({ tool, reason }) => {
  test.skipIf(reason !== undefined)('is refused without its fence', async () => {
    const application = await protectedApplication(tool)
    const { code, output } = await application.deploy(tool, { isFenced: false }).closed
    expect(code).not.toBe(0)
    if (tool.isSilent !== true) expect(output).toContain('carries no fence')
    expect(await application.schema()).toEqual({ orders: false, country: false, index: 'none' })
    expect(await application.history(tool)).toEqual([])
  })

  test.skipIf(reason !== undefined)(
    'migrates with it until the lease is taken away, which it is not in a transaction',
    async () => {
      const application = await protectedApplication(tool)
      const atOrders = await application.holdAtOrders()
      const atIndex = await application.holdAtIndex()
      const stale = application.deploy(tool)
      await application.stopped(stale, 'orders')
      const operator = await application.database.open()
      const { token } = (await operator.describe('deploy'))!
      // Nobody can take the lease away in the middle of a migration that is in a transaction.
      const release = (): Promise<{ outcome: string }> =>
        operator.forceRelease('deploy', token, { reason: 'a test', wait: 0 })
      expect(await release()).toMatchObject({ outcome: 'draining' })
      await atOrders.query('rollback')
      await application.stopped(stale, 'index')
      expect(await release()).toMatchObject({ outcome: 'released' })
      await atIndex.query('rollback')
      const end = await stale.closed
      expect(end.code).toBe(70)
      if (tool.isSilent !== true) expect(end.output).toMatch(/token \d+ of lease "deploy" is stale/)
      expect(await application.schema()).toEqual({ orders: true, country: true, index: 'invalid' })
      expect(await application.history(tool)).toEqual(tool.migrations.slice(0, 1))

      await application.recover(tool, 'index')
      expect(await application.deploy(tool).closed).toMatchObject({ code: 0 })
      expect(await application.schema()).toEqual(migrated)
      expect(await application.history(tool)).toEqual(tool.migrations)
    },
  )
})

test('a deploy whose wrapper is stopped is refused when the next one has the lease, and that one completes', async () => {
  const tool = tools.find(({ name }) => name === 'umzug')!
  const application = await protectedApplication(tool)
  const atIndex = await application.holdAtIndex()
  const stale = application.deploy(tool)
  const building = await application.stopped(stale, 'index')
  stale.signal('SIGSTOP')
  await application.runOut()
  const next = application.deploy(tool)
  await next.until('its wait for the table', async () =>
    (await application.waiting()).some((pid) => pid !== building),
  )
  await atIndex.query('rollback')
  await application.untilGone(building)
  expect(await next.closed).toMatchObject({ code: 0 })
  stale.signal('SIGCONT')
  const refused = { code: 70, output: expect.stringMatching(/token \d+ of lease "deploy" is stale/) }
  expect(await stale.closed).toMatchObject(refused)
  expect(await application.schema()).toEqual(migrated)
  expect(await application.history(tool)).toEqual(tool.migrations)
})
