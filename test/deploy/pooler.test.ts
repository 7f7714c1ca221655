import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { PgBouncer, pgbouncerReason } from '../support/pgbouncer.ts'
import { migrated, Recipes } from './application.ts'
import { tools } from './tools.ts'

const reason = pgbouncerReason()
const why = reason === undefined ? '' : ` (skipped: ${reason})`

describe.skipIf(reason !== undefined).each([why])('behind PgBouncer in transaction mode%s', () => {
  let recipes: Recipes
  beforeAll(async () => {
    recipes = await Recipes.make()
  })
  afterAll(() => recipes?.[Symbol.asyncDispose]())

  test.each(tools)('$name does not connect with --fence, and migrates without', async (tool) => {
    const application = await recipes.application(tool)
    await using bouncer = await PgBouncer.start(application.url)
    const env = { DATABASE_URL: bouncer.url }
    const fenced = await application.deploy(tool, { env }).closed
    expect(fenced.code).not.toBe(0)
    expect(fenced.output).toContain('refuses connections with the fence')
    expect(await application.history(tool)).toEqual([])

    expect(await application.deploy(tool, { env, isFenced: false }).closed).toMatchObject({ code: 0 })
    expect(await application.schema()).toEqual(migrated)
    expect(await application.history(tool)).toEqual(tool.migrations)
  })

  test('the lease may be taken through the pooler by a deploy whose tool is fenced at the server itself', async () => {
    const tool = tools.find(({ name }) => name === 'umzug')!
    const application = await recipes.application(tool)
    const connectionString = application.database.url
    await Fencepost.protectSchema('public', { connectionString, lease: 'deploy' })
    await using bouncer = await PgBouncer.start(application.url)
    const env = { FENCEPOST_DATABASE_URL: bouncer.url }
    expect(await application.deploy(tool, { env }).closed).toMatchObject({ code: 0 })
    expect(await application.schema()).toEqual(migrated)
  })

  const locking = [
    ['node-pg-migrate', 'node-pg-migrate up', 1],
    ['node-pg-migrate', 'node-pg-migrate up --no-lock', 0],
    ['kysely', 'node migrate.js', 1],
  ] as const

  test.each(locking)(
    "%s's own lock on a session of the pooler: %s leaves %i behind",
    async (name, command, left) => {
      const tool = tools.find((one) => one.name === name)!
      const application = await recipes.application(tool)
      await using bouncer = await PgBouncer.start(application.url, { default_pool_size: '2' })
      const [other, next] = [
        await application.database.session({ connectionString: bouncer.url }),
        await application.database.session({ connectionString: bouncer.url }),
      ]
      const atIndex = await application.holdAtIndex()
      const deploy = application.start(tool, command, { DATABASE_URL: bouncer.url })
      await application.stopped(deploy, 'index')
      // Both sessions of the pooler are taken, and another client is the next in line for the one that the tool has.
      await other.query('begin')
      const begun = next.query('begin')
      await atIndex.query('rollback')
      await begun
      await other.query('rollback')
      await deploy.closed
      await next.query('rollback')
      const locks = await application.database.query(
        `select from pg_locks where locktype = 'advisory' and granted
         and database = (select oid from pg_database where datname = current_database())`,
      )
      expect(locks).toHaveLength(left)
    },
  )
})
