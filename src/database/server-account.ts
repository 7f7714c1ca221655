import { statSync } from 'node:fs'
import { readFile, realpath, stat } from 'node:fs/promises'
import { dirname, parse } from 'node:path'
import { failure } from './local-server-failure.ts'

/** The user that the server runs as. PostgreSQL refuses to run as root. */
export interface Account {
  readonly uid: number
  readonly gid: number
  readonly name: string
}

/** Undefined when the server can run as the user of this process. */
export async function serverAccount(dataDirectory: string): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined
  // Data that are there already can only be served by their owner.
  const owner = statSync(dataDirectory, { throwIfNoEntry: false })
  if (owner !== undefined && owner.uid !== 0) {
    return { uid: owner.uid, gid: owner.gid, name: `user ${owner.uid}` }
  }
  // initdb looks its user up, so any number without an entry in passwd will not do.
  const users = (await readFile('/etc/passwd', 'utf8')).split('\n').map((line) => line.split(':'))
  for (const name of ['postgres', 'nobody']) {
    const user = users.find((fields) => fields[0] === name)
    if (user !== undefined) return { uid: Number(user[2]), gid: Number(user[3]), name }
  }
  throw failure(
    'PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it. Create one (useradd -r postgres).',
  )
}

/** The first folder or file on the way to `path` that the account may not enter or execute. */
export async function barrier(path: string, account: Account | undefined): Promise<string | undefined> {
  if (account === undefined) return undefined
  const real = await realpath(path)
  const steps = [real]
  for (let at = real; at !== parse(at).root; at = dirname(at)) steps.unshift(dirname(at))
  for (const step of steps) {
    const { mode, uid, gid } = await stat(step)
    const bit = uid === account.uid ? 0o100 : gid === account.gid ? 0o010 : 0o001
    if ((mode & bit) === 0) return step
  }
  return undefined
}

/**
 * A server outlives its starter and must not carry the starter's secrets, nor be bent by its PG* variables. The
 * working directory is one that the account may enter.
 */
export function processOptions(
  cwd: string,
  account: Account | undefined,
): { cwd: string; env: NodeJS.ProcessEnv; uid?: number; gid?: number } {
  const env: NodeJS.ProcessEnv = { PATH: process.env['PATH'], LC_ALL: 'C' }
  if (process.env['TZ'] !== undefined) env['TZ'] = process.env['TZ']
  return { cwd, env, ...(account && { uid: account.uid, gid: account.gid }) }
}
