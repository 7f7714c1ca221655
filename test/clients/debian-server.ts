import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { chown, mkdtemp, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { processOptions, serverAccount } from '../../src/database/server-account.ts'

const root = '/usr/lib/postgresql'
const programs = ['initdb', 'postgres', 'pg_dump', 'pg_restore']

/** The folder of a server and the tools that fit it; undefined where Debian's packages are not installed. */
export function debianBinaries(): string | undefined {
  const versions = existsSync(root) ? readdirSync(root).toSorted((a, b) => Number(b) - Number(a)) : []
  return versions
    .map((version) => join(root, version, 'bin'))
    .find((folder) => programs.every((program) => existsSync(join(folder, program))))
}

/** A PostgreSQL from Debian's packages in a folder of its own: pg_dump refuses a server that is newer than itself. */
export class DebianServer {
  readonly url: string
  readonly #child: ChildProcess
  readonly #directory: string

  private constructor(url: string, child: ChildProcess, directory: string) {
    this.url = url
    this.#child = child
    this.#directory = directory
  }

  static async start(binaries: string): Promise<DebianServer> {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-debian-'))
    const data = join(directory, 'data')
    const account = await serverAccount(data)
    if (account !== undefined) await chown(directory, account.uid, account.gid)
    const options = processOptions(directory, account)
    const initdb = ['-D', data, '-U', 'postgres', '--auth=trust', '--no-sync', '--locale=C', '-E', 'UTF8']
    await promisify(execFile)(join(binaries, 'initdb'), initdb, options)
    const port = await freePort()
    const settings = [
      'fsync=off',
      'listen_addresses=127.0.0.1',
      `port=${port}`,
      'unix_socket_directories=',
    ].flatMap((setting) => ['-c', setting])
    const child = spawn(join(binaries, 'postgres'), ['-D', data, ...settings], {
      ...options,
      stdio: 'ignore',
    })
    const server = new DebianServer(`postgres://postgres@127.0.0.1:${port}/postgres`, child, directory)
    try {
      await server.#isReady()
      return server
    } catch (error) {
      await server.stop()
      throw error
    }
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#child.once('exit', () => resolve())
      // Fast shutdown: sessions are ended.
      this.#child.kill('SIGINT')
      await promise
    }
    await rm(this.#directory, { recursive: true, force: true })
  }

  /** Asks until it answers: it refuses while it starts. */
  async #isReady(): Promise<void> {
    for (;;) {
      if (this.#child.exitCode !== null) throw new Error(`postgres ended with code ${this.#child.exitCode}`)
      const client = new Client({ connectionString: this.url })
      client.on('error', () => {})
      try {
        await client.connect()
        await client.end()
        return
      } catch (error) {
        const { code } = error as { code?: string }
        if (code !== 'ECONNREFUSED' && code !== '57P03') throw error
      }
    }
  }
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise<void>((resolve) => server.close(() => resolve()))
  return port
}
