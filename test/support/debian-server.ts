import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { chown, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type Account, processOptions, serverAccount } from '../../src/database/server-account.ts'
import { end, freePort, untilItAnswers } from './listening.ts'

const root = '/usr/lib/postgresql'
const programs = ['initdb', 'postgres', 'pg_dump', 'pg_restore', 'pg_basebackup']

/** The folder of a server and the tools that fit it; undefined where Debian's packages are not installed. */
export function debianBinaries(): string | undefined {
  const versions = existsSync(root) ? readdirSync(root).toSorted((a, b) => Number(b) - Number(a)) : []
  return versions
    .map((version) => join(root, version, 'bin'))
    .find((folder) => programs.every((program) => existsSync(join(folder, program))))
}

/**
 * A PostgreSQL from Debian's packages in a folder of its own, for what the embedded server has not: pg_dump, which refuses a
 * server that is newer than itself, and pg_basebackup, which makes a standby.
 */
export class DebianServer implements AsyncDisposable {
  readonly #binaries: string
  readonly #directory: string
  readonly #account: Account | undefined
  readonly #children: ChildProcess[] = []
  #url = ''

  private constructor(binaries: string, directory: string, account: Account | undefined) {
    this.#binaries = binaries
    this.#directory = directory
    this.#account = account
  }

  static async start(binaries: string): Promise<DebianServer> {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-debian-'))
    const account = await serverAccount(join(directory, 'primary'))
    if (account !== undefined) await chown(directory, account.uid, account.gid)
    const server = new DebianServer(binaries, directory, account)
    try {
      const data = join(directory, 'primary')
      const options = ['-U', 'postgres', '--auth=trust', '--no-sync', '--locale=C', '-E', 'UTF8']
      await server.#run('initdb', ['-D', data, ...options])
      server.#url = await server.#serve('primary', [])
      return server
    } catch (error) {
      await server[Symbol.asyncDispose]()
      throw error
    }
  }

  get url(): string {
    return this.#url
  }

  /** Starts a streaming standby of that name, and returns its URL. */
  async addStandby(name: string): Promise<string> {
    const source = `host=127.0.0.1 port=${new URL(this.url).port} user=postgres application_name=${name}`
    const data = join(this.#directory, 'standby')
    await this.#run('pg_basebackup', ['-D', data, '-d', source, '-R', '-c', 'fast', '--no-sync'])
    return this.#serve('standby', [`primary_conninfo=${source}`])
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Immediate: nothing of it is kept, and a primary would wait for its standby.
    for (const child of this.#children.toReversed()) await end(child, 'SIGQUIT')
    await rm(this.#directory, { recursive: true, force: true })
  }

  async #run(program: string, args: readonly string[]): Promise<void> {
    const options = processOptions(this.#directory, this.#account)
    await promisify(execFile)(join(this.#binaries, program), args, options)
  }

  async #serve(name: string, more: readonly string[]): Promise<string> {
    const port = await freePort()
    const settings = ['listen_addresses=127.0.0.1', `port=${port}`, 'unix_socket_directories=', ...more]
    const child = spawn(
      join(this.#binaries, 'postgres'),
      ['-D', join(this.#directory, name), ...settings.flatMap((setting) => ['-c', setting])],
      { ...processOptions(this.#directory, this.#account), stdio: 'ignore' },
    )
    this.#children.push(child)
    const url = `postgres://postgres@127.0.0.1:${port}/postgres`
    await untilItAnswers(url, child)
    return url
  }
}
