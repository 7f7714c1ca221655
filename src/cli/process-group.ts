import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync, readdirSync } from 'node:fs'
import { constants } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { exitCode } from './exit-code.ts'

/** How often a group is looked at while it ends. Nothing tells when the last process of a group has gone. */
const pollMs = 20
/** A killed process goes at once, unless it hangs in the kernel. That is no reason to hang as well. */
const killedWithinMs = 5000

/** A command in a process group of its own, so that what it starts can be ended with it. */
export class ProcessGroup {
  readonly #child: ChildProcess | undefined
  #failure: string | undefined
  readonly #exited: Promise<number>
  #isLeaderGone = false
  #isHurried = false

  /** Starts the command. One that cannot be started is a group that has exited, with the code a shell gives. */
  constructor(command: readonly string[], env: NodeJS.ProcessEnv) {
    const [file = '', ...args] = command
    const { promise, resolve } = Promise.withResolvers<number>()
    this.#exited = promise
    try {
      this.#child = spawn(file, args, { stdio: 'inherit', detached: true, env })
    } catch (error) {
      // Most reasons are emitted, a few are thrown: a part of the path is no folder, the arguments are too long.
      this.#isLeaderGone = true
      this.#failure = (error as Error).message
      resolve(file === '' ? exitCode.notFound : exitCode.notExecutable)
      return
    }
    this.#child.once('error', (error: NodeJS.ErrnoException) => {
      // A command that runs emits an error when it cannot be sent a signal, which says nothing about its end.
      if (this.#child?.pid !== undefined) return
      this.#isLeaderGone = true
      this.#failure = error.message
      resolve(error.code === 'ENOENT' ? exitCode.notFound : exitCode.notExecutable)
    })
    this.#child.once('exit', (code, signal) => {
      this.#isLeaderGone = true
      resolve(signal === null ? (code ?? exitCode.failed) : signalCode(signal))
    })
  }

  /** The exit code, when the command itself is gone. What it started may still run. */
  get exited(): Promise<number> {
    return this.#exited
  }

  /** Why the command could not be started; undefined when it was. */
  get failure(): string | undefined {
    return this.#failure
  }

  /** Sends a signal to the command and to everything it started. */
  signal(signal: NodeJS.Signals): void {
    this.#kill(signal)
  }

  /** TERM, then KILL to what is left after `graceMs` or when hurried. Settles when nothing is left that could write. */
  async end(graceMs: number): Promise<void> {
    this.#kill('SIGTERM')
    await this.#gone(graceMs, () => this.#isHurried)
    // Also when the command itself has gone: what it started may still write.
    if (!this.#isAlive) return
    this.#kill('SIGKILL')
    await this.#gone(killedWithinMs, () => false)
  }

  /** Ends the grace of `end`. */
  hurry(): void {
    this.#isHurried = true
  }

  async #gone(limitMs: number, isOver: () => boolean): Promise<void> {
    const due = performance.now() + limitMs
    while (this.#isAlive && !isOver()) {
      const leftMs = due - performance.now()
      if (leftMs <= 0) return
      await sleep(Math.min(pollMs, leftMs))
    }
  }

  get #isAlive(): boolean {
    const pid = this.#child?.pid
    if (pid === undefined) return false
    if (!this.#isLeaderGone) return true
    return this.#kill(0) && hasLivingProcess(pid)
  }

  /** False when the group is gone. */
  #kill(signal: NodeJS.Signals | 0): boolean {
    const pid = this.#child?.pid
    if (pid === undefined) return false
    try {
      return process.kill(-pid, signal)
    } catch (error) {
      // EPERM: it lives, under another user.
      return (error as NodeJS.ErrnoException).code === 'EPERM'
    }
  }
}

/** 128 + n, as shells have it. */
export function signalCode(signal: NodeJS.Signals): number {
  return 128 + constants.signals[signal]
}

/**
 * Whether any process of the group is more than a zombie. An orphan stays a zombie until PID 1 reaps it, which some
 * containers' never does, and a zombie keeps the group in being without writing anything.
 */
function hasLivingProcess(group: number): boolean {
  let entries: string[]
  try {
    entries = readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))
  } catch {
    entries = []
  }
  // No Linux: the answer to the signal stands.
  if (entries.length === 0) return true
  return entries.some((entry) => {
    try {
      // pid (name) state ppid pgrp …, and the name may hold anything.
      const stat = readFileSync(`/proc/${entry}/stat`, 'latin1')
      const [state = '', , pgrp] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      return Number(pgrp) === group && !'ZX'.includes(state)
    } catch {
      return false
    }
  })
}
