import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { migrated, Recipes } from './application.ts'
import { cases } from './tools.ts'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

describe.each(cases)('$name on a protected schema', ({ tool, reason }) => {
  test.skipIf(reason !== undefined)(
    'is refused without --fence, and migrates with it until the lease is taken away',
    async () => {
      const application = await recipes.application(tool)
      const { database } = application
      await Fencepost.protectSchema('public', { connectionString: database.url, lease: 'deploy' })
      const bare = await application.deploy(tool, { isFenced: false }).closed
      expect(bare.code).not.toBe(0)
      if (tool.isSilent !== true) expect(bare.output).toContain('carries no fence')
      const untouched = { orders: false, country: false, index: 'none' }
      expect(await application.schema()).toEqual(untouched)

      await application.recover(tool, 'orders')
      const atOrders = await application.holdAtOrders()
      const atIndex = await application.holdAtIndex()
      const stale = application.deploy(tool)
      await application.stopped(stale, 'orders')
      const operator = await database.open()
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
