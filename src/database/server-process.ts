import { execFile } from 'node:child_process'
import { readdir, readFile, stat } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { failure, hasCode } from './local-server-failure.ts'

const executeFile = promisify(execFile)

/** Orphans of a killed postmaster end by themselves once idle. One that computes or is stopped does not. */
const ORPHAN_GRACE_MS = 2_000
const POLL_MS = 20

export interface ServerProcess {
  readonly pid: number
  readonly parentPid: number
  /** Children rename themselves "postgres: checkpointer" and so on; a postmaster keeps its command line. */
  readonly command: string
}

export function processExists(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return hasCode(error, 'EPERM')
  }
}

/**
 * A live process called postgres that works in the data directory, as every PostgreSQL process does. A pid alone
 * proves nothing: it may have been given to another process, or be a zombie that its parent has not reaped.
 */
export async function serverProcess(pid: number, dataDirectory: string): Promise<ServerProcess | undefined> {
  if (process.platform !== 'linux') return serverProcessByPs(pid, dataDirectory)
  try {
    const status = await readFile(`/proc/${pid}/stat`, 'utf8')
    const nameEnd = status.lastIndexOf(')')
    const name = status.slice(status.indexOf('(') + 1, nameEnd)
    const [state, parentPid] = status.slice(nameEnd + 2).split(' ')
    if (name !== 'postgres' || state === 'Z' || state === 'X') return undefined
    const [workingIn, data] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(dataDirectory)])
    if (workingIn.ino !== data.ino || workingIn.dev !== data.dev) return undefined
    return { pid, parentPid: Number(parentPid), command: await readFile(`/proc/${pid}/cmdline`, 'utf8') }
  } catch (error) {
    // EACCES: a process of another user. This user's servers can be looked at.
    if (hasCode(error, 'ENOENT', 'ESRCH', 'EACCES', 'EPERM')) return undefined
    throw error
  }
}

async function serverProcessByPs(pid: number, dataDirectory: string): Promise<ServerProcess | undefined> {
  try {
    const { stdout } = await executeFile('ps', ['-o', 'ppid=,stat=,command=', '-p', String(pid)])
    const [parentPid, state, ...command] = stdout.trim().split(/\s+/)
    if (state === undefined || state.startsWith('Z')) return undefined
    const line = command.join(' ')
    return line.includes('postgres') && line.includes(dataDirectory)
      ? { pid, parentPid: Number(parentPid), command: line }
      : undefined
  } catch {
    // ps fails when there is no such process.
    return undefined
  }
}

async function serverProcesses(dataDirectory: string): Promise<ServerProcess[]> {
  if (process.platform !== 'linux') return []
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number)
  const processes = await Promise.all(pids.map((pid) => serverProcess(pid, dataDirectory)))
  return processes.filter((each) => each !== undefined)
}

/** Children whose postmaster is gone. They still use its shared memory, so no new one can start. */
async function orphans(dataDirectory: string): Promise<ServerProcess[]> {
  const children = (await serverProcesses(dataDirectory)).filter((each) =>
    each.command.startsWith('postgres: '),
  )
  const parents = await Promise.all(children.map((child) => serverProcess(child.parentPid, dataDirectory)))
  return children.filter((_, index) => parents[index] === undefined)
}

export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasCode(error, 'ESRCH')) throw error
  }
}

/** The postmaster comes first, so that it starts no child that misses the signal. */
export async function signalServer(
  dataDirectory: string,
  pid: number,
  signal: NodeJS.Signals,
): Promise<void> {
  sendSignal(pid, signal)
  const processes = await serverProcesses(dataDirectory)
  for (const child of processes) if (child.parentPid === pid) sendSignal(child.pid, signal)
}

/** After kill -9 of the postmaster: waits until its children are gone, and kills those that do not go. */
export async function waitForOrphans(dataDirectory: string): Promise<void> {
  const killAt = Date.now() + ORPHAN_GRACE_MS
  const giveUpAt = killAt + ORPHAN_GRACE_MS
  for (;;) {
    const left = await orphans(dataDirectory)
    if (left.length === 0) return
    if (Date.now() > giveUpAt) {
      const pids = left.map((each) => each.pid).join(', ')
      throw failure(
        `processes of a killed server still use ${dataDirectory}: ${pids}. End them, and try again.`,
      )
    }
    // Their work is cut off as in a crash, from which the data recover.
    if (Date.now() > killAt) for (const { pid } of left) sendSignal(pid, 'SIGKILL')
    await sleep(POLL_MS)
  }
}
