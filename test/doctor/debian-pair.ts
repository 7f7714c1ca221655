import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { chown, mkdtemp, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { type Account, processOptions, serverAccount } from '../../src/database/server-account.ts'

const root = '/usr/lib/postgresql'
const programs = ['initdb', 'postgres', 'pg_basebackup']

function binaries(): string | undefined {
  const versions = existsSync(root) ? readdirSync(root).toSorted((a, b) => Number(b) - Number(a)) : []
  return versions
    .map((version) => join(root, version, 'bin'))
    .find((folder) => programs.every((program) => existsSync(join(folder, program))))
}

/** Why there can be no standby here; undefined when there can. The embedded server has no pg_basebackup. */
export function debianPairReason(): string | undefined {
  return binaries() === undefined ? 'pg_basebackup is not installed (Debian: postgresql)' : undefined
}

/** A primary and, when asked for, a streaming standby of it, from Debian's packages. */
export class DebianPair implements AsyncDisposable {
  readonly #folder: string
  readonly #directory: string
  readonly #account: Account | undefined
  readonly #children: ChildProcess[] = []
  primary = ''
  standby = ''

  private constructor(folder: string, directory: string, account: Account | undefined) {
    this.#folder = folder
    this.#directory = directory
    this.#account = account
  }

  static async start(): Promise<DebianPair> {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-pair-'))
    const account = await serverAccount(join(directory, 'primary'))
    if (account !== undefined) await chown(directory, account.uid, account.gid)
    const pair = new DebianPair(binaries()!, directory, account)
    try {
      await pair.#run('initdb', ['-D', pair.#path('primary'), '-U', 'postgres', '--auth=trust', '--no-sync'])
      pair.primary = await pair.#serve('primary', [])
      return pair
    } catch (error) {
      await pair[Symbol.asyncDispose]()
      throw error
    }
  }

  async addStandby(name: string): Promise<void> {
    const { port } = new URL(this.primary)
    const source = `host=127.0.0.1 port=${port} user=postgres application_name=${name}`
    await this.#run('pg_basebackup', [
      '-D',
      this.#path('standby'),
      '-d',
      source,
      '-R',
      '-c',
      'fast',
      '--no-sync',
    ])
    this.standby = await this.#serve('standby', [`primary_conninfo=${source}`])
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of this.#children.toReversed()) {
      if (child.exitCode !== null || child.signalCode !== null) continue
      const { promise, resolve } = Promise.withResolvers<void>()
      child.once('exit', () => resolve())
      // Immediate: nothing of it is kept, and a primary would wait for its standby.
      child.kill('SIGQUIT')
      await promise
    }
    await rm(this.#directory, { recursive: true, force: true })
  }

  #path(name: string): string {
    return join(this.#directory, name)
  }

  async #run(program: string, args: readonly string[]): Promise<void> {
    const options = processOptions(this.#directory, this.#account)
    await promisify(execFile)(join(this.#folder, program), args, options)
  }

  async #serve(name: string, more: readonly string[]): Promise<string> {
    const port = await freePort()
    const settings = ['listen_addresses=127.0.0.1', `port=${port}`, 'unix_socket_directories=', ...more]
    const child = spawn(
      join(this.#folder, 'postgres'),
      ['-D', this.#path(name), ...settings.flatMap((setting) => ['-c', setting])],
      { ...processOptions(this.#directory, this.#account), stdio: 'ignore' },
    )
    this.#children.push(child)
    const url = `postgres://postgres@127.0.0.1:${port}/postgres`
    for (;;) {
      if (child.exitCode !== null) throw new Error(`postgres ended with code ${child.exitCode}`)
      const client = new Client({ connectionString: url })
      client.on('error', () => {})
      try {
        await client.connect()
        await client.end()
        return url
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
