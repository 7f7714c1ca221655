import { readFileSync, readdirSync } from 'node:fs'

/**
 * The process groups of a session in which any process is more than a zombie. An orphan stays a zombie until PID 1 reaps
 * it, which some containers' never does, and a zombie keeps its group in being without writing anything. Undefined where
 * the system does not tell, which is anywhere but on Linux.
 */
export function livingGroups(session: number): Set<number> | undefined {
  const groups = new Set<number>()
  let isTold = false
  for (const entry of entriesOfProc()) {
    if (!/^\d+$/.test(entry)) continue
    try {
      // pid (name) state ppid pgrp session …, and the name may hold anything.
      const stat = readFileSync(`/proc/${entry}/stat`, 'latin1')
      const [state = '', , group, sessionOfIt] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      isTold = true
      if (Number(sessionOfIt) === session && !'ZX'.includes(state)) groups.add(Number(group))
    } catch {
      // It has gone meanwhile.
    }
  }
  return isTold ? groups : undefined
}

function entriesOfProc(): string[] {
  try {
    return readdirSync('/proc')
  } catch {
    return []
  }
}
