import { randomUUID } from 'node:crypto'
import { link, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { failure, hasCode, readIfThere } from './local-server-failure.ts'
import { processExists, sendSignal, serverProcess, signalServer } from './server-process.ts'

/** A fast shutdown waits for backends to notice. A stopped one never does. */
const FAST_STOP_WITHIN_MS = 20_000
/** PostgreSQL refuses to start while its pid file is empty, and does not say for how long it has been. */
const EMPTY_PID_FILE_MS = 1_000
const POLL_MS = 20

/** What `postmaster.pid` says about a server that was seen to live. */
export interface Postmaster {
  readonly pid: number
  readonly port: number
  /** False while it starts or stops. */
  readonly isReady: boolean
}

const pidFile = (dataDirectory: string): string => join(dataDirectory, 'postmaster.pid')

/** The server that runs on these data, or undefined when none does, whatever an old pid file says. */
export async function readPostmaster(dataDirectory: string): Promise<Postmaster | undefined> {
  const text = await readIfThere(pidFile(dataDirectory))
  // Lines: pid, data directory, start time, port, socket directory, address, shared memory key, status.
  const lines = (text ?? '').split('\n')
  const pid = Number(lines[0])
  const port = Number(lines[3])
  if (!(pid > 0) || !(port > 0)) return undefined
  if ((await serverProcess(pid, dataDirectory)) === undefined) return undefined
  return { pid, port, isReady: lines[7]?.trim() === 'ready' }
}

/**
 * Removes a pid file whose number now belongs to another process, or to a zombie: PostgreSQL would take either
 * for a running server and refuse to start. A file with a dead pid is left to PostgreSQL, which removes it after
 * checking the shared memory that it names.
 *
 * Between judging and removing, another starter may have removed the file and put a live one in its place. So the
 * file is moved aside first and looked at again, and a live one is put back. In that instant a second server could
 * begin to start, but finds the shared memory of the first in use and ends.
 */
export async function removeStalePidFile(dataDirectory: string): Promise<void> {
  const file = pidFile(dataDirectory)
  let judged = await readIfThere(file)
  // PostgreSQL fills the file right after creating it. One that stays empty is the remnant of a crash.
  const emptyUntil = Date.now() + EMPTY_PID_FILE_MS
  while (judged === '' && Date.now() < emptyUntil) {
    await sleep(POLL_MS)
    judged = await readIfThere(file)
  }
  if (judged === undefined) return
  const pid = Number(judged.split('\n')[0])
  const isDead = pid > 0 && !processExists(pid)
  if (isDead || (await serverProcess(pid, dataDirectory)) !== undefined) return

  const aside = `${file}.${randomUUID()}`
  try {
    if ((await readIfThere(file)) !== judged) return
    await rename(file, aside)
    if ((await readFile(aside, 'utf8')) !== judged) await putBack(aside, file)
  } catch (error) {
    // Another starter removed the file first.
    if (!hasCode(error, 'ENOENT')) throw error
  } finally {
    await rm(aside, { force: true })
  }
}

/** A server that began to start meanwhile has its own file there, and removes it when it ends. */
async function putBack(aside: string, file: string): Promise<void> {
  const deadline = Date.now() + 5_000
  for (;;) {
    try {
      await link(aside, file)
      return
    } catch (error) {
      if (!hasCode(error, 'EEXIST') || Date.now() > deadline) throw error
      await sleep(POLL_MS)
    }
  }
}

/**
 * Ends the postmaster with this pid and waits until it is gone. 'fast' ends sessions and writes a checkpoint;
 * 'immediate' is a crash, from which the next start recovers. A fast stop that hangs becomes an immediate one.
 */
export async function stopPostmaster(
  dataDirectory: string,
  pid: number,
  mode: 'fast' | 'immediate',
): Promise<void> {
  const steps: [NodeJS.Signals, number][] = [['SIGQUIT', FAST_STOP_WITHIN_MS]]
  if (mode === 'fast') steps.unshift(['SIGINT', FAST_STOP_WITHIN_MS])
  for (const [signal, patienceMs] of steps) {
    if ((await serverProcess(pid, dataDirectory)) === undefined) return
    sendSignal(pid, signal)
    // A frozen server takes no signal until it is continued.
    await signalServer(dataDirectory, pid, 'SIGCONT')
    const deadline = Date.now() + patienceMs
    while (Date.now() < deadline) {
      if ((await serverProcess(pid, dataDirectory)) === undefined) return
      await sleep(POLL_MS)
    }
  }
  throw failure(
    `the server with pid ${pid} on ${dataDirectory} did not stop. End it by hand, then try again.`,
  )
}
