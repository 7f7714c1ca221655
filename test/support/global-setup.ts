import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import type { TestProject } from 'vitest/node'
import { migrate } from '../../src/database/migrate.ts'
import { startContainerServer } from './container-server.ts'
import { startEmbedded } from './embedded.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** The server's URL, of a role that may create databases. */
    serverUrl: string
    /** A database with the schema installed, to make copies of. */
    template: string
  }
}

interface Server {
  readonly url: string
  readonly kind: string
  stop(): Promise<void>
}

/**
 * The PostgreSQL that the tests run on: the first that is available of a given URL, a container and the embedded
 * server. FENCEPOST_TEST_SERVER=container|embedded insists on one.
 */
async function startServer(): Promise<Server> {
  const given = process.env['FENCEPOST_TEST_DATABASE_URL']
  if (given !== undefined && given !== '')
    return { url: given, kind: 'FENCEPOST_TEST_DATABASE_URL', async stop() {} }
  const wanted = process.env['FENCEPOST_TEST_SERVER']
  if (wanted !== 'embedded') {
    const container = await startContainerServer()
    if (container !== undefined) return { ...container, kind: 'a container (postgres:18)' }
    if (wanted === 'container')
      throw new Error('FENCEPOST_TEST_SERVER=container, but no container can be started')
  }
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-test-'))
  const server = await startEmbedded({
    directory,
    settings: { fsync: 'off', max_connections: '800', max_prepared_transactions: '10' },
  })
  return {
    url: server.url,
    kind: 'the embedded server',
    async stop() {
      await server.stop('fast')
      await rm(directory, { recursive: true, force: true })
    },
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const server = await startServer()
  const template = `fencepost_template_${process.pid}`
  const client = new Client({ connectionString: server.url })
  await client.connect()
  const version = await client.query<{ server_version: string }>('show server_version')
  console.log(`tests run on ${server.kind}, PostgreSQL ${version.rows[0]!.server_version}`)
  await client.query(`create database ${template}`)
  const url = new URL(server.url)
  url.pathname = `/${template}`
  await migrate({ connectionString: url.href }, {})
  project.provide('serverUrl', server.url)
  project.provide('template', template)
  return async () => {
    await client.query(`drop database ${template} with (force)`)
    await client.end()
    await server.stop()
  }
}
