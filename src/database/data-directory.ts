import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, chown, mkdir, open, readFile, realpath, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { buildOnce } from './build-once.ts'
import { failure, hasCode } from './local-server-failure.ts'
import type { Binaries } from './postgres-binaries.ts'
import { barrier, processOptions, type Account } from './server-account.ts'

const executeFile = promisify(execFile)

const passwordFile = (dataDirectory: string): string => join(dataDirectory, 'fencepost.password')

/** The server's folder, enterable by the account, with its real path. */
export async function prepareDirectory(path: string, account: Account | undefined): Promise<string> {
  await mkdir(path, { recursive: true, mode: account === undefined ? 0o700 : 0o755 })
  const directory = await realpath(path)
  if (account === undefined) return directory
  // The folder is fencepost's own, so it may be opened. The ones above are not, so they are only named.
  const { mode } = await stat(directory)
  if ((mode & 0o111) !== 0o111) await chmod(directory, (mode & 0o7777) | 0o111)
  const closed = await barrier(directory, account)
  if (closed === undefined) return directory
  throw failure(
    `PostgreSQL runs as ${account.name} here, who may not enter ${closed}. Choose another folder (FENCEPOST_LOCAL_DIR), or allow it: chmod o+x ${closed}`,
  )
}

export async function ensureData(
  dataDirectory: string,
  binaries: Binaries,
  account: Account | undefined,
  isDurable: boolean,
): Promise<void> {
  const isBuilt = (): boolean => existsSync(join(dataDirectory, 'PG_VERSION'))
  await buildOnce(dataDirectory, isBuilt, async (folder) => {
    // initdb wants an empty folder, so the password waits beside it.
    const password = `${folder}.password`
    try {
      await writeFile(password, randomBytes(24).toString('hex'), { mode: 0o600 })
      if (account !== undefined) {
        for (const path of [folder, password]) await chown(path, account.uid, account.gid)
      }
      const options = ['--encoding=UTF8', '--locale=C', '--auth=scram-sha-256', '--no-instructions']
      if (!isDurable) options.push('--no-sync')
      await executeFile(
        binaries.initdb,
        ['-D', folder, '-U', 'postgres', `--pwfile=${password}`, ...options],
        processOptions(dirname(folder), account),
      )
      await rename(password, passwordFile(folder))
    } finally {
      await rm(password, { force: true })
    }
  })
  if (isDurable) await syncFolder(dirname(dataDirectory))
}

/** A rename survives a power cut only once its folder is on disk. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r')
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

/** The URL of the superuser. The password is read from its file, which only the server's user and root may read. */
export async function serverUrl(dataDirectory: string, port: number): Promise<string> {
  const password = await readFile(passwordFile(dataDirectory), 'utf8')
  return `postgres://postgres:${password.trim()}@127.0.0.1:${port}/postgres`
}

/** True once the server takes connections. A refused password is thrown, for no waiting mends it. */
export async function answersAt(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, ssl: false, connectionTimeoutMillis: 5_000 })
  // A server that ends meanwhile reports it as an event, which without a listener ends this process.
  client.on('error', () => {})
  try {
    await client.connect()
    return true
  } catch (error) {
    // 28P01 and 28000: wrong password, and no entry in pg_hba.conf.
    if (hasCode(error, '28P01', '28000')) {
      throw failure('the local server refuses the password that was made with its data.', error)
    }
    return false
  } finally {
    await client.end().catch(() => {})
  }
}
