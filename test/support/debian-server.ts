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

export type Settings = Readonly<Record<string, string | number>>

/** A folder for the data of servers from Debian's packages, which run as long as it is there. */
export class DebianFolder implements AsyncDisposable {
  readonly binaries: string
  readonly path: string
  readonly account: Account | undefined
  readonly #nodes: DebianNode[] = []

  private constructor(binaries: string, path: string, account: Account | undefined) {
    this.binaries = binaries
    this.path = path
    this.account = account
  }

  static async make(binaries: string): Promise<DebianFolder> {
    const path = await mkdtemp(join(tmpdir(), 'fencepost-debian-'))
    const account = await serverAccount(join(path, 'data'))
    if (account !== undefined) await chown(path, account.uid, account.gid)
    return new DebianFolder(binaries, path, account)
  }

  /** Makes the data of a server that trusts everybody. */
  async initialize(name: string): Promise<void> {
    const options = ['-U', 'postgres', '--auth=trust', '--no-sync', '--locale=C', '-E', 'UTF8']
    await this.run('initdb', ['-D', join(this.path, name), ...options])
  }

  /** Copies the data of a running server, as of a standby that follows `source`. */
  async copy(name: string, source: string): Promise<void> {
    const options = ['-R', '-c', 'fast', '--no-sync']
    await this.run('pg_basebackup', ['-D', join(this.path, name), '-d', source, ...options])
  }

  /** Starts the server whose data these are, on loopback, and returns when it answers. */
  async serve(name: string, settings: Settings = {}): Promise<DebianNode> {
    const port = await freePort()
    const all = { listen_addresses: '127.0.0.1', port, unix_socket_directories: '', ...settings }
    const child = spawn(
      join(this.binaries, 'postgres'),
      [
        '-D',
        join(this.path, name),
        ...Object.entries(all).flatMap(([setting, value]) => ['-c', `${setting}=${value}`]),
      ],
      { ...processOptions(this.path, this.account), stdio: 'ignore' },
    )
    const node = new DebianNode(port, child)
    this.#nodes.push(node)
    await untilItAnswers(node.url, child)
    return node
  }

  /** Copies the data of a server that has stopped in order. */
  async duplicate(name: string, source: string): Promise<void> {
    const options = processOptions(this.path, this.account)
    await promisify(execFile)('cp', ['-a', join(this.path, source), join(this.path, name)], options)
  }

  /** Removes the data of a server that has ended. */
  async remove(name: string): Promise<void> {
    await rm(join(this.path, name), { recursive: true, force: true })
  }

  async run(program: string, args: readonly string[]): Promise<void> {
    await promisify(execFile)(join(this.binaries, program), args, processOptions(this.path, this.account))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Nothing of it is kept, and a primary that stops in order would wait for its standby.
    for (const node of this.#nodes.toReversed()) await node.crash()
    // A copy that is under way may still write.
    await rm(this.path, { recursive: true, force: true, maxRetries: 5 })
  }
}

/** A server that runs, or has run. */
export class DebianNode {
  readonly port: number
  readonly #child: ChildProcess

  constructor(port: number, child: ChildProcess) {
    this.port = port
    this.#child = child
  }

  get url(): string {
    return `postgres://postgres@127.0.0.1:${this.port}/postgres`
  }

  /** Ends all its processes at once: nothing is written or sent any more. */
  async crash(): Promise<void> {
    await end(this.#child, 'SIGQUIT')
  }

  /** Ends it in order, without waiting for those who are connected. */
  async stop(): Promise<void> {
    await end(this.#child, 'SIGINT')
  }
}

/**
 * A PostgreSQL from Debian's packages in a folder of its own, for what the embedded server has not: pg_dump, which refuses a
 * server that is newer than itself, and pg_basebackup, which makes a standby.
 */
export class DebianServer implements AsyncDisposable {
  readonly #folder: DebianFolder
  #url = ''

  private constructor(folder: DebianFolder) {
    this.#folder = folder
  }

  static async start(binaries: string): Promise<DebianServer> {
    const server = new DebianServer(await DebianFolder.make(binaries))
    try {
      await server.#folder.initialize('primary')
      server.#url = (await server.#folder.serve('primary')).url
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
    await this.#folder.copy('standby', source)
    return (await this.#folder.serve('standby', { primary_conninfo: source })).url
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#folder[Symbol.asyncDispose]()
  }
}
