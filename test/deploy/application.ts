import { randomBytes } from 'node:crypto'
import { Client } from 'pg'
import { expect, inject, onTestFinished } from 'vitest'
import { Fencepost } from '../../src/index.ts'
import { eventually } from '../support/cli.ts'
import { TestDatabase } from '../support/database.ts'
import { Document, UserProject } from '../support/user-project.ts'
import { Deploy } from './deploy.ts'
import type { Tool } from './tools.ts'

const password = 'secret'

/** docs/migrations.md as a project, and the role that it deploys with. */
export class Recipes implements AsyncDisposable {
  readonly document: Document
  readonly project: UserProject
  /** Whether a server of this version looks if the client of a busy session is still there. */
  hasConnectionCheck = false
  readonly role = `deploy_${randomBytes(4).toString('hex')}`

  private constructor(document: Document, project: UserProject) {
    this.document = document
    this.project = project
  }

  static async make(): Promise<Recipes> {
    const document = await Document.read('docs/migrations.md')
    const recipes = new Recipes(document, await UserProject.make(document.files))
    await recipes.#asSuperuser(`create role ${recipes.role} login password '${password}'`)
    const [row] = await recipes.#asSuperuser(
      `select from pg_settings where name = 'client_connection_check_interval'`,
    )
    recipes.hasConnectionCheck = row !== undefined
    if (recipes.hasConnectionCheck)
      await recipes.#asSuperuser(recipes.file('role.sql').replaceAll('deploy', recipes.role))
    return recipes
  }

  file(name: string): string {
    const content = this.document.files.get(name)
    if (content === undefined) throw new Error(`the document shows no ${name}`)
    return content
  }

  /** A database of the test's own, as the recipe expects it. */
  async application(tool: Tool): Promise<Application> {
    const database = new TestDatabase()
    await database.create(inject('template'))
    onTestFinished(() => database.drop())
    await Fencepost.migrate({ connectionString: database.url, grantTo: [this.role] })
    const name = new URL(database.url).pathname.slice(1)
    await database.query(`alter database ${name} owner to ${this.role}`)
    await database.query(`alter schema public owner to ${this.role}`)
    const url = database.urlAs(this.role, password)
    const owner = await database.session({ connectionString: url })
    await owner.query(this.file('database.sql'))
    const application = new Application(this, database, url)
    if (tool.baseline !== undefined) {
      const { code, output } = await application.start(tool, application.recipe(tool, tool.baseline)).closed
      if (code !== 0) throw new Error(output)
    }
    return application
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.project[Symbol.asyncDispose]()
    await this.#asSuperuser(`drop role ${this.role}`)
  }

  async #asSuperuser(statement: string): Promise<unknown[]> {
    const client = new Client({ connectionString: inject('serverUrl') })
    await client.connect()
    try {
      return (await client.query(statement)).rows
    } finally {
      await client.end()
    }
  }
}

export interface DeployOptions {
  readonly isFenced?: boolean
  readonly env?: NodeJS.ProcessEnv
}

export class Application {
  readonly database: TestDatabase
  /** Of the role that deploys. */
  readonly url: string
  readonly #recipes: Recipes

  constructor(recipes: Recipes, database: TestDatabase, url: string) {
    this.#recipes = recipes
    this.database = database
    this.url = url
  }

  /** Starts the command of the tool's recipe. */
  deploy(tool: Tool, { isFenced = true, env = {} }: DeployOptions = {}): Deploy {
    const command = this.recipe(tool, 'deploy.sh')
    if (isFenced) return this.start(tool, command, env)
    const bare = command.replace(' --fence', '').replace(' -- ', ' -- env -u FENCEPOST_PGOPTIONS ')
    return this.start(tool, bare, env)
  }

  recipe(tool: Tool, file: string): string {
    return this.#recipes.file(`${tool.name}/${file}`)
  }

  /** Starts a command in the folder of the tool's recipe. */
  start(tool: Tool, command: string, env: NodeJS.ProcessEnv = {}): Deploy {
    const { project } = this.#recipes
    return new Deploy(project, tool.name, command, { ...project.environment(this.url), ...tool.env, ...env })
  }

  /** Does what the tool wants to have done by hand after a failure, when it wants anything. */
  async recover(tool: Tool, from: 'orders' | 'index'): Promise<void> {
    if (tool.recovery === undefined) return
    const command = this.recipe(tool, tool.recovery[from])
    expect(await this.start(tool, command).closed).toMatchObject({ code: 0 })
  }

  /** Stops each deploy in the middle of its first migration, in its transaction, until the returned session has ended its own. */
  async holdAtOrders(): Promise<Client> {
    const gate = await this.database.session()
    await gate.query('begin')
    await gate.query('lock table customers in access share mode')
    return gate
  }

  /** Stops each deploy in the middle of building its index, until the returned session has ended its transaction. */
  async holdAtIndex(): Promise<Client> {
    const gate = await this.database.session()
    // A concurrent build ends by waiting for all that may see the table as it was before.
    await gate.query('begin isolation level repeatable read')
    await gate.query('select')
    return gate
  }

  /** The server process of the deploy that a gate has stopped, when it is there. */
  async stopped(deploy: Deploy, at: 'orders' | 'index'): Promise<number> {
    const statement = at === 'orders' ? 'alter table "?customers' : 'create index concurrently'
    let pid: number | undefined
    await deploy.until(`the gate at ${at}`, async () => {
      const rows = await this.database.query<{ pid: number }>(
        `select pid from pg_stat_activity
          where datname = current_database() and wait_event_type = 'Lock' and query ~* $1`,
        [statement],
      )
      pid = rows[0]?.pid
      return pid !== undefined
    })
    return pid!
  }

  /** The server processes that wait for a lock. */
  async waiting(): Promise<number[]> {
    const rows = await this.database.query<{ pid: number }>(
      `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    )
    return rows.map(({ pid }) => pid)
  }

  /** Has the lease of a deploy that is stopped or dead run out, as it does when it has been silent for its TTL. */
  async runOut(): Promise<void> {
    const beats = await this.database.query<{ pid: number }>(
      `select pid, pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'fencepost beats'`,
    )
    // A beat that was on its way would bring it back.
    for (const { pid } of beats) await this.untilGone(pid)
    await this.database.query(
      `update fencepost.holder set expires_at = clock_timestamp() - interval '1 ms' where ended_at is null`,
    )
  }

  async untilGone(pid: number): Promise<void> {
    await eventually(
      async () =>
        (await this.database.query('select from pg_stat_activity where pid = $1', [pid])).length === 0,
    )
  }

  /** What the tool has written down as done, in order. */
  async history({ history: { table, column, order } }: Tool): Promise<string[]> {
    const [there] = await this.database.query<{ is: boolean }>('select to_regclass($1) is not null as is', [
      table,
    ])
    if (!there!.is) return []
    const rows = await this.database.query<{ name: string | null }>(
      `select ${column}::text as name from ${table} order by ${order}`,
    )
    return rows.flatMap(({ name }) => (name === null || name === '0_baseline' ? [] : [name]))
  }

  /** What the migrations have left in the schema. */
  async schema(): Promise<{ orders: boolean; country: boolean; index: 'none' | 'invalid' | 'valid' }> {
    const [row] = await this.database.query<{
      orders: boolean
      country: boolean
      index: 'none' | 'invalid' | 'valid'
    }>(
      `select to_regclass('orders') is not null as orders,
              exists (select from pg_attribute where attrelid = 'customers'::regclass and attname = 'country') as country,
              coalesce((select case when indisvalid then 'valid' else 'invalid' end
                          from pg_index where indexrelid = to_regclass('customers_email')), 'none') as index`,
    )
    return row!
  }
}

export const migrated = { orders: true, country: true, index: 'valid' }
