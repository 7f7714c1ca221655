import { execFileSync } from 'node:child_process'
import { readFileSync, readdirSync } from 'node:fs'

/** What a process and its descendants have used. Only /proc tells it of others than this one. */
export interface Meter {
  /** CPU time so far in milliseconds, with that of descendants that have ended. Undefined where it cannot be read. */
  cpuMs(): number | undefined
  /** WAL written so far, of a PostgreSQL. */
  walBytes?(): Promise<number>
}

const isLinux = process.platform === 'linux'
const msPerTick = isLinux ? 1000 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' })) : 0

/** Of another process and its children: the servers that are measured are no deeper. `hasThreads`: any of them may have more than one. */
export function meterOf(pid: number, { hasThreads }: { readonly hasThreads: boolean }): Meter {
  const ownMs = (its: number, { ownMs: inTicks }: ProcessFields): number =>
    (hasThreads ? undefined : exactMs(its)) ?? inTicks
  return { cpuMs: () => treeMs(pid, ownMs) }
}

/** CPU time of this process so far in milliseconds, without what its children use. */
export function ownCpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** CPU time of the children of this process that have ended. Undefined where it cannot be read. */
export function endedChildrenMs(): number | undefined {
  return isLinux ? fields(process.pid)?.endedMs : undefined
}

interface ProcessFields {
  readonly parentPid: number
  readonly ownMs: number
  /** Of children that have ended, and their children. */
  readonly endedMs: number
}

function fields(pid: number): ProcessFields | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The name, which may hold spaces, stands in brackets; the state follows as the third field.
    const rest = text.slice(text.lastIndexOf(')') + 2).split(' ')
    const ms = (first: number): number => (Number(rest[first - 3]) + Number(rest[first - 2])) * msPerTick
    return { parentPid: Number(rest[1]), ownMs: ms(14), endedMs: ms(16) }
  } catch {
    // It has ended between the listing and the reading, and counts among its parent's ended children.
    return undefined
  }
}

/** Of its main thread, from the scheduler, where it tells: the other source counts in hundredths of a second. */
function exactMs(pid: number): number | undefined {
  try {
    const ns = Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0])
    return Number.isFinite(ns) ? ns / 1e6 : undefined
  } catch {
    return undefined
  }
}

function treeMs(pid: number, ownMs: (pid: number, fields: ProcessFields) => number): number | undefined {
  if (!isLinux) return undefined
  const root = fields(pid)
  if (root === undefined) return undefined
  let total = ownMs(pid, root) + root.endedMs
  for (const name of readdirSync('/proc')) {
    const child = /^\d+$/.test(name) ? fields(Number(name)) : undefined
    if (child?.parentPid === pid) total += ownMs(Number(name), child) + child.endedMs
  }
  return total
}
