import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'

const folder = new URL('peers/', import.meta.url)
const stamp = new URL('node_modules/.installed-from', folder)
const load = createRequire(new URL('package.json', folder))

/**
 * Installs the packages that fencepost is compared with, as their lock file names them, into a folder of their own. Once; again when the
 * lock file has changed. Returns why it could not be done, where it could not.
 *
 * No install script runs, and what a package only wants beside itself (a command line, say) is not installed.
 */
export async function installPeers(): Promise<string | undefined> {
  const lock = createHash('sha256')
    .update(await readFile(new URL('package-lock.json', folder)))
    .digest('hex')
  const installed = await readFile(stamp, 'utf8').catch(() => '')
  if (installed === lock) return undefined
  console.log('installing the packages that fencepost is compared with, into bench/peers/node_modules …')
  const options = ['--ignore-scripts', '--legacy-peer-deps', '--no-audit', '--no-fund', '--loglevel=error']
  const child = spawn('npm', ['ci', ...options], {
    cwd: fileURLToPath(folder),
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
  try {
    const [code] = (await once(child, 'close')) as [number | null]
    if (code !== 0)
      return `npm ci in bench/peers failed: ${said.trim().split('\n')[0] ?? `it ended with ${code}`}`
  } catch (error) {
    return `npm could not be started: ${error instanceof Error ? error.message : String(error)}`
  }
  await writeFile(stamp, lock)
  return undefined
}

/** One of those packages. Its caller says what it uses of it: none of them is known to the compiler. */
export function peer(name: string): unknown {
  return load(name)
}
