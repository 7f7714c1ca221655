import { execFile } from 'node:child_process'
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { foreignEnvironment, packLibrary, patience, unreachable } from './packed-library.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
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
    const foreign = Object.entries(foreignEnvironment()).filter(
      ([name]) => !/^(FENCEPOST_|PG|DATABASE_URL$|NODE_OPTIONS$)/.test(name),
    )
    return {
      ...Object.fromEntries(foreign),
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
    try {
      await execute('npm', ['install', ...patience], { cwd: this.folder, env: this.environment() })
    } catch (error) {
      this.#missing = unreachable(error)
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

  async #pack(): Promise<void> {
    const { tarball } = await packLibrary(this.#base, this.environment())
    await cp(tarball, this.tarball)
  }
}
