import { readFileSync, readdirSync } from 'node:fs'

interface ProcessStat {
  readonly pid: number
  readonly isZombie: boolean
  readonly parent: number
  readonly group: number
  readonly session: number
  /** The group that the keys of its terminal reach; -1 without a terminal. */
  readonly terminalGroup: number
}

/**
 * The process groups of a session in which any process is more than a zombie. An orphan stays a zombie until PID 1 reaps
 * it, which some containers' never does, and a zombie keeps its group in being without writing anything. Undefined where
 * the system does not tell, which is anywhere but on Linux.
 */
export function livingGroups(session: number): Set<number> | undefined {
  const all = processes()
  if (all.length === 0) return undefined
  return new Set(all.filter((one) => one.session === session && !one.isZombie).map(({ group }) => group))
}

/**
 * The processes of this session that descend from `root`, with `root`, and those that have lost their parents but carry the
 * `mark` in the environment they were started with. `root` is undefined when it is gone, as its number may be another's by
 * now. Undefined where the system does not tell.
 */
export function livingTree(root: number | undefined, mark: string): Set<number> | undefined {
  const all = processes()
  const self = all.find(({ pid }) => pid === process.pid)
  if (self === undefined) return undefined
  const tree = new Set(root === undefined ? [] : [root])
  const inSession = all.filter(({ pid, session }) => session === self.session && pid !== self.pid)
  for (const { pid } of inSession) if (isMarked(pid, mark)) tree.add(pid)
  // A child may have a lower number than its parent, so it is looked through until nothing is found.
  for (let before = -1; before < tree.size;) {
    before = tree.size
    for (const { pid, parent } of inSession) if (tree.has(parent)) tree.add(pid)
  }
  return new Set(inSession.filter(({ pid, isZombie }) => tree.has(pid) && !isZombie).map(({ pid }) => pid))
}

/** Whether the keys of a terminal, such as Ctrl-C, reach the group of this process. */
export function isInForeground(): boolean {
  const self = readStat('self')
  if (self === undefined) return process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY
  return self.terminalGroup === self.group
}

/** The children of this process that have ended and wait to be reaped, which Node does only for what it has started. */
export function zombieChildren(): number[] {
  const own = processes().filter(({ parent, isZombie }) => parent === process.pid && isZombie)
  return own.map(({ pid }) => pid)
}

function processes(): ProcessStat[] {
  let entries: string[] = []
  try {
    entries = readdirSync('/proc')
  } catch {
    // Not on Linux.
  }
  return entries
    .filter((entry) => /^\d+$/.test(entry))
    .map(readStat)
    .filter((stat) => stat !== undefined)
}

function readStat(entry: string): ProcessStat | undefined {
  try {
    // pid (name) state ppid pgrp session tty_nr tpgid …, and the name may hold anything.
    // As UTF-8, which it need not be, because that is read fast.
    const stat = readFileSync(`/proc/${entry}/stat`, 'utf8')
    const [state = '', ...numbers] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    const [parent = 0, group = 0, session = 0, , terminalGroup = -1] = numbers.slice(0, 5).map(Number)
    const pid = Number.parseInt(stat, 10)
    return { pid, isZombie: 'ZX'.includes(state), parent, group, session, terminalGroup }
  } catch {
    // It has gone meanwhile.
    return undefined
  }
}

function isMarked(pid: number, mark: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0').includes(mark)
  } catch {
    // Gone, or another user's.
    return false
  }
}
