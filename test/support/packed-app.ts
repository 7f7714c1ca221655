import { execFile } from 'node:child_process'
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const parts = [
  'src',
  'migrations',
  'docs',
  'examples',
  'package.json',
  'tsconfig.json',
  'tsconfig.build.json',
]

/** What npm calls the failures that lie outside this machine. */
const networkCode =
  /code (ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E5\d\d)\b/

/**
 * The app of examples/app with a lock file, and everything that `npm ci` needs to install it without a network: the
 * packed library and npm's cache. It is not installed.
 */
export class PackedApp {
  #base = ''
  #missing: string | undefined

  get folder(): string {
    return join(this.#base, 'app')
  }

  /** npm's cache, with all that the lock file names. */
  get cache(): string {
    return join(this.#base, 'cache')
  }

  /** The library, as it is published. The lock file names it by this path. */
  get tarball(): string {
    return join(this.#base, 'fencepost.tgz')
  }

  /** Why it could not be made: the package registry cannot be reached. */
  get missing(): string | undefined {
    return this.#missing
  }

  /** What npm and what it installs are run with: the Node of these tests, and no settings of an npm outside. */
  environment(more: Readonly<Record<string, string>> = {}): Record<string, string> {
    const inherited = Object.entries(process.env).filter(
      ([name]) =>
        !/^(FENCEPOST_|PG|DATABASE_URL$|NODE_OPTIONS$|npm_(package|lifecycle)_|INIT_CWD$)/.test(name),
    )
    return {
      ...(Object.fromEntries(inherited) as Record<string, string>),
      PATH: [dirname(process.execPath), process.env['PATH']].join(delimiter),
      npm_config_cache: this.cache,
      npm_config_audit: 'false',
      npm_config_fund: 'false',
      npm_config_loglevel: 'error',
      npm_config_update_notifier: 'false',
      // Without the addresses npm would ask for the lists of versions again.
      npm_config_omit_lockfile_registry_resolved: 'false',
      ...more,
    }
  }

  async create(): Promise<void> {
    this.#base = await mkdtemp(join(tmpdir(), 'fencepost-packed-'))
    await this.#pack()
    await cp(join(root, 'examples/app'), this.folder, { recursive: true })
    const manifest = JSON.parse(await readFile(join(this.folder, 'package.json'), 'utf8')) as {
      dependencies: Record<string, string>
    }
    manifest.dependencies['fencepost'] = `file:${this.tarball}`
    await writeFile(join(this.folder, 'package.json'), JSON.stringify(manifest))
    // Installed once, which writes the lock file and fills the cache.
    const patience = ['--fetch-retries=2', '--fetch-retry-mintimeout=500', '--fetch-retry-maxtimeout=2000']
    try {
      await execute('npm', ['install', ...patience], { cwd: this.folder, env: this.environment() })
    } catch (error) {
      const code = error instanceof Error ? networkCode.exec(error.message)?.[1] : undefined
      if (code === undefined) throw error
      this.#missing = `the package registry cannot be reached (${code})`
    }
    await rm(join(this.folder, 'node_modules'), { recursive: true, force: true })
  }

  /** A copy whose lock file names the library by another path. */
  async copyTo(folder: string, tarball: string): Promise<void> {
    await cp(this.folder, folder, { recursive: true })
    for (const name of ['package.json', 'package-lock.json']) {
      const text = await readFile(join(folder, name), 'utf8')
      const moved = text.replaceAll(/file:[^"]*fencepost\.tgz/g, `file:${tarball}`)
      if (moved === text) throw new Error(`${name} does not name ${this.tarball}`)
      await writeFile(join(folder, name), moved)
    }
  }

  async remove(): Promise<void> {
    if (this.#base !== '') await rm(this.#base, { recursive: true, force: true })
  }

  /** In a copy of the checkout, because packing builds dist/, which others may be using. */
  async #pack(): Promise<void> {
    const checkout = join(this.#base, 'checkout')
    await mkdir(checkout)
    for (const part of parts) {
      await cp(join(root, part), join(checkout, part), { recursive: true })
    }
    await symlink(join(root, 'node_modules'), join(checkout, 'node_modules'))
    const { stdout } = await execute(
      'npm',
      ['pack', '--json', '--silent', '--pack-destination', this.#base],
      {
        cwd: checkout,
        env: this.environment(),
      },
    )
    const [packed] = JSON.parse(stdout) as { filename: string }[]
    await cp(join(this.#base, packed!.filename), this.tarball)
  }
}
