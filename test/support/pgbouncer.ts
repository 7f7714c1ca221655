import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { end, freePort, untilItAnswers } from './listening.ts'

/** Why PgBouncer cannot be run here; undefined when it can. */
export function pgbouncerReason(): string | undefined {
  try {
    execFileSync('pgbouncer', ['--version'], { stdio: 'ignore' })
    return undefined
  } catch {
    return 'PgBouncer is not installed'
  }
}

/** PgBouncer in front of one database: in transaction mode unless told otherwise, with fewer server sessions than clients. */
export class PgBouncer implements AsyncDisposable {
  readonly url: string
  readonly #child: ChildProcess
  readonly #directory: string

  private constructor(url: string, child: ChildProcess, directory: string) {
    this.url = url
    this.#child = child
    this.#directory = directory
  }

  /** `settings` are those of the section `[pgbouncer]`. */
  static async start(
    databaseUrl: string,
    settings: Readonly<Record<string, string>> = {},
  ): Promise<PgBouncer> {
    const target = new URL(databaseUrl)
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-pgbouncer-'))
    // PgBouncer refuses to run as root, and gives its privileges up before it reads these.
    await chmod(directory, 0o755)
    const url = new URL(databaseUrl)
    url.hostname = '127.0.0.1'
    url.port = settings['listen_port'] ?? String(await freePort())
    const password = target.password === '' ? '' : ` password=${decodeURIComponent(target.password)}`
    const server = `host=${target.hostname} port=${target.port || 5432} user=${target.username}${password}`
    const lines = Object.entries({
      listen_addr: '127.0.0.1',
      listen_port: url.port,
      auth_type: 'any',
      pool_mode: 'transaction',
      default_pool_size: '2',
      max_client_conn: '500',
      unix_socket_dir: '',
      ignore_startup_parameters: 'extra_float_digits',
      ...settings,
    }).map(([name, value]) => `${name} = ${value}`)
    const ini = join(directory, 'pgbouncer.ini')
    await writeFile(ini, `[databases]\n* = ${server}\n[pgbouncer]\n${lines.join('\n')}\n`)
    const asRoot = process.getuid?.() === 0 ? ['-u', 'postgres'] : []
    const child = spawn('pgbouncer', ['-q', ...asRoot, ini], { stdio: 'ignore' })
    const bouncer = new PgBouncer(url.href, child, directory)
    try {
      await untilItAnswers(url.href, child)
      return bouncer
    } catch (error) {
      await bouncer.stop()
      throw error
    }
  }

  async stop(): Promise<void> {
    await end(this.#child, 'SIGKILL')
    await rm(this.#directory, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }
}
