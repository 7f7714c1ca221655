import { spawn } from 'node:child_process'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'

export interface ToldPooler extends AsyncDisposable {
  readonly url: string
}

/** PgBouncer with settings of the caller's, such as those that a fix names. */
export async function startToldPooler(
  databaseUrl: string,
  settings: Readonly<Record<string, string>>,
): Promise<ToldPooler> {
  const target = new URL(databaseUrl)
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-told-pooler-'))
  // PgBouncer refuses to run as root, and gives its privileges up before it reads this.
  await chmod(directory, 0o755)
  const url = new URL(databaseUrl)
  url.hostname = '127.0.0.1'
  url.port = String(await freePort())
  const password = target.password === '' ? '' : ` password=${decodeURIComponent(target.password)}`
  const lines = Object.entries({
    listen_addr: '127.0.0.1',
    listen_port: url.port,
    auth_type: 'any',
    default_pool_size: '3',
    unix_socket_dir: '',
    ...settings,
  }).map(([name, value]) => `${name} = ${value}`)
  const ini = join(directory, 'pgbouncer.ini')
  const server = `host=${target.hostname} port=${target.port || 5432} user=${target.username}${password}`
  await writeFile(ini, `[databases]\n* = ${server}\n[pgbouncer]\n${lines.join('\n')}\n`)
  const asRoot = process.getuid?.() === 0 ? ['-u', 'postgres'] : []
  const child = spawn('pgbouncer', ['-q', ...asRoot, ini], { stdio: 'ignore' })
  const { promise: gone, resolve } = Promise.withResolvers<void>()
  child.once('exit', () => resolve())
  const pooler: ToldPooler = {
    url: url.href,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      await gone
      await rm(directory, { recursive: true, force: true })
    },
  }
  while (child.exitCode === null) {
    const client = new Client({ connectionString: url.href })
    client.on('error', () => {})
    try {
      await client.connect()
      await client.end()
      return pooler
    } catch (error) {
      if ((error as { code?: string }).code !== 'ECONNREFUSED') throw error
    }
  }
  throw new Error(`pgbouncer ended with code ${child.exitCode}`)
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise<void>((resolve) => server.close(() => resolve()))
  return port
}
