import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { migrated, Recipes } from './application.ts'
import { cases } from './tools.ts'

let recipes: Recipes
beforeAll(async () => {
  recipes = await Recipes.make()
})
afterAll(() => recipes?.[Symbol.asyncDispose]())

describe.each(cases)('$name', ({ tool, reason }) => {
  test.skipIf(reason !== undefined)(
    'of two deploys at once the second waits, also for a concurrent index, and then finds nothing to do',
    async () => {
      const application = await recipes.application(tool)
      const atOrders = await application.holdAtOrders()
      const atIndex = await application.holdAtIndex()
      const first = application.deploy(tool)
      await application.stopped(first, 'orders')
      const second = application.deploy(tool)
      await second.says('waiting for lease "deploy"')
      await atOrders.query('rollback')

      // Only the gate is in its way, and nothing of the deploy that waits.
      const builder = await application.stopped(first, 'index')
      const [row] = await application.database.query(
        'select pg_blocking_pids($1) as pids, $2::integer[] as gate',
        [builder, [(atIndex as unknown as { processID: number }).processID]],
      )
      expect(row!['pids']).toEqual(row!['gate'])
      await atIndex.query('rollback')

      expect(await first.closed).toMatchObject({ code: 0 })
      const before = await application.history(tool)
      expect(await second.closed).toMatchObject({ code: 0 })
      expect(before).toEqual(tool.migrations)
      expect(await application.history(tool)).toEqual(tool.migrations)
      expect(await application.schema()).toEqual(migrated)
    },
  )
})
