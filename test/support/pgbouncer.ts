import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'

/** Why PgBouncer cannot be run here; undefined when it can. */
export function pgbouncerReason(): string | undefined {
  try {
    execFileSync('pgbouncer', ['--version'], { stdio: 'ignore' })
    return undefined
  } catch {
    return 'PgBouncer is not installed'
  }
}

/** PgBouncer in transaction mode in front of one database, with fewer server sessions than clients. */
export class PgBouncer {
  readonly url: string
  readonly #child: ChildProcess
  readonly #directory: string

  private constructor(url: string, child: ChildProcess, directory: string) {
    this.url = url
    this.#child = child
    this.#directory = directory
  }

  static async start(databaseUrl: string, poolSize: number): Promise<PgBouncer> {
    const target = new URL(databaseUrl)
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-pgbouncer-'))
    // PgBouncer refuses to run as root, and gives its privileges up before it reads these.
    await chmod(directory, 0o755)
    const port = await freePort()
    const password = target.password === '' ? '' : ` password=${decodeURIComponent(target.password)}`
    const ini = join(directory, 'pgbouncer.ini')
    await writeFile(
      ini,
      `[databases]
* = host=${target.hostname} port=${target.port || 5432} user=${target.username}${password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
auth_type = any
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 500
unix_socket_dir =
ignore_startup_parameters = extra_float_digits
`,
    )
    const asRoot = process.getuid?.() === 0 ? ['-u', 'postgres'] : []
    const child = spawn('pgbouncer', ['-q', ...asRoot, ini], { stdio: 'ignore' })
    const url = new URL(databaseUrl)
    url.hostname = '127.0.0.1'
    url.port = String(port)
    const bouncer = new PgBouncer(url.href, child, directory)
    for (;;) {
      if (child.exitCode !== null) throw new Error(`pgbouncer ended with code ${child.exitCode}`)
      const client = new Client({ connectionString: url.href })
      client.on('error', () => {})
      try {
        await client.connect()
        await client.query('select 1')
        await client.end()
        return bouncer
      } catch (error) {
        if ((error as { code?: string }).code !== 'ECONNREFUSED') {
          await bouncer.stop()
          throw error
        }
      }
    }
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#child.once('exit', () => resolve())
      this.#child.kill('SIGKILL')
      await promise
    }
    await rm(this.#directory, { recursive: true, force: true })
  }
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise<void>((resolve) => server.close(() => resolve()))
  return port
}
