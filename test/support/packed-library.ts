import { execFile } from 'node:child_process'
import { cp, symlink } from 'node:fs/promises'
import { delimiter, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))

/** Variables that npm gives to its scripts: they name the checkout, and an npm inside must not see them. */
const isOfThisPackage = /^(npm_(package|lifecycle)_|npm_config_local_prefix$|INIT_CWD$)/i

/** What npm calls the failures that lie outside this machine. */
const networkCode =
  /code (ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E5\d\d|SELF_SIGNED_CERT_\w+|UNABLE_TO_\w+|CERT_\w+)\b/

/** For npm: how long to try. */
export const patience: readonly string[] = [
  '--fetch-retries=2',
  '--fetch-retry-mintimeout=500',
  '--fetch-retry-maxtimeout=2000',
]

/** What an npm that belongs to somebody else finds in its environment, with this Node first. */
export function foreignEnvironment(node: string = process.execPath): Record<string, string> {
  const inherited = Object.entries(process.env).filter(([name]) => !isOfThisPackage.test(name))
  return {
    ...(Object.fromEntries(inherited) as Record<string, string>),
    PATH: [dirname(node), process.env['PATH']].join(delimiter),
  }
}

/** The reason when the registry cannot be reached. Any other failure is thrown. */
export function unreachable(error: unknown): string {
  const code = error instanceof Error ? networkCode.exec(error.message)?.[1] : undefined
  if (code === undefined) throw error
  return `the package registry cannot be reached (${code})`
}

/**
 * The library as it is published, in the folder, which is empty. A copy of the checkout is packed, because packing builds `dist/`, which
 * others may be using. The tests are left out: some of them write beside themselves while this one copies.
 */
export async function packLibrary(
  folder: string,
  env: Readonly<Record<string, string>> = foreignEnvironment(),
): Promise<{ readonly tarball: string; readonly files: readonly string[] }> {
  const left = new Set(['node_modules', '.git', 'dist', 'test'].map((name) => join(root, name)))
  const checkout = join(folder, 'checkout')
  await cp(root, checkout, { recursive: true, filter: (source) => !left.has(source) })
  await symlink(join(root, 'node_modules'), join(checkout, 'node_modules'))
  const { stdout } = await execute('npm', ['pack', '--json', '--silent', '--pack-destination', folder], {
    cwd: checkout,
    env: { ...env },
  })
  const [packed] = JSON.parse(stdout) as { filename: string; files: { path: string }[] }[]
  return { tarball: join(folder, packed!.filename), files: packed!.files.map((file) => file.path) }
}
