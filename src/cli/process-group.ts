import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { exitCode } from './exit-code.ts'
import { isInForeground, livingGroups, livingTree } from './process-session.ts'

/** How often a group is looked at while it ends. Nothing tells when the last process of a group has gone. */
const pollMs = 20
/** A killed process goes at once, unless it hangs in the kernel. That is no reason to hang as well. */
const killedWithinMs = 5000

/** What the keys of a terminal send to its foreground group. */
const keys: ReadonlySet<NodeJS.Signals> = new Set(['SIGINT', 'SIGQUIT', 'SIGTSTP'])

/**
 * A command in a process group and a session of its own, so that what it starts can be ended with it. Where the system
 * tells of sessions, that is also what is in another group of it: what `timeout` or a shell with job control has started.
 *
 * In the foreground it shares the group and the terminal of this process instead. Then what it has started is what
 * descends from it or carries the holder in its environment, and elsewhere than on Linux the command alone.
 */
export class ProcessGroup {
  readonly #child: ChildProcess | undefined
  #failure: string | undefined
  readonly #exited: Promise<number>
  readonly #isForeground: boolean
  readonly #mark: string
  #isLeaderGone = false
  #isEnding = false
  #isHurried = false

  /** Starts the command. One that cannot be started is a group that has exited, with the code a shell gives. */
  constructor(command: readonly string[], env: NodeJS.ProcessEnv, options: { isForeground?: boolean } = {}) {
    this.#isForeground = options.isForeground === true
    this.#mark = holderMark(env)
    const [file = '', ...args] = command
    const { promise, resolve } = Promise.withResolvers<number>()
    this.#exited = promise
    try {
      this.#child = spawn(file, args, { stdio: 'inherit', detached: !this.#isForeground, env })
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

  /** The number of the group; undefined when the command could not be started. */
  get id(): number | undefined {
    return this.#child?.pid
  }

  /** Whether anything of the group is left that could write. */
  get isAlive(): boolean {
    const pid = this.#child?.pid
    if (pid === undefined) return false
    if (!this.#isLeaderGone) return true
    if (this.#isForeground) return this.#targets(pid).length > 0
    return (livingGroups(pid)?.size ?? Number(isAnswered(-pid))) > 0
  }

  /** Whether the command has got the signal already when this process gets it, from the terminal that they share. */
  isReachedBy(signal: NodeJS.Signals): boolean {
    return this.#isForeground && keys.has(signal) && isInForeground()
  }

  /** Sends a signal to the command and to what it started. */
  signal(signal: NodeJS.Signals): void {
    this.#kill(signal)
  }

  /** TERM, then KILL to what is left after `graceMs` or when hurried. Settles when nothing is left that could write. */
  async end(graceMs: number): Promise<void> {
    this.#isEnding = true
    this.#kill('SIGTERM')
    // What is stopped cannot act on TERM. It has no time to when it is hurried, and is not to run again.
    if (!this.#isHurried) this.#kill('SIGCONT')
    // Also when the command itself has gone: what it started may still write.
    if (await this.isGoneWithin(graceMs, () => this.#isHurried)) return
    await this.isGoneWithin(killedWithinMs, () => {
      // Again each time, because it may have started something while it was looked for.
      this.#kill('SIGKILL')
      return false
    })
  }

  /** Waits until nothing of the group is left. False when there is after `limitMs`, or when it is over before. */
  async isGoneWithin(limitMs: number, isOver: () => boolean = () => false): Promise<boolean> {
    const due = performance.now() + limitMs
    while (this.isAlive) {
      const leftMs = due - performance.now()
      if (leftMs <= 0 || isOver()) return false
      await sleep(Math.min(pollMs, leftMs))
    }
    return true
  }

  /** Ends the grace of `end`: at once, because the lease may be about to end as well. */
  hurry(): void {
    this.#isHurried = true
    if (this.#isEnding) this.#kill('SIGKILL')
  }

  #kill(signal: NodeJS.Signals): void {
    const pid = this.#child?.pid
    if (pid === undefined) return
    // First what need not be looked for. Its number is its own as long as it is not gone.
    const own = this.#isForeground ? pid : -pid
    if (!this.#isLeaderGone) isAnswered(own, signal)
    for (const target of this.#targets(pid)) {
      if (this.#isLeaderGone || target !== own) isAnswered(target, signal)
    }
  }

  /** What to send a signal to: processes, or groups as negative numbers. */
  #targets(pid: number): number[] {
    if (!this.#isForeground) return [...(livingGroups(pid) ?? [pid])].map((group) => -group)
    const leader = this.#isLeaderGone ? undefined : pid
    return [...(livingTree(leader, this.#mark) ?? (leader === undefined ? [] : [leader]))]
  }
}

/** Sends a signal to a process or a group, or asks for it with none. False when it is gone. */
function isAnswered(target: number, signal: NodeJS.Signals | 0 = 0): boolean {
  try {
    return process.kill(target, signal)
  } catch (error) {
    // EPERM: it lives, under another user.
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** What a command and all that it starts have in their environment, unless they clear it. It is a secret of the holder's. */
export function holderMark(env: NodeJS.ProcessEnv): string {
  return `FENCEPOST_HOLDER=${env['FENCEPOST_HOLDER']}`
}

/** 128 + n, as shells have it. */
export function signalCode(signal: NodeJS.Signals): number {
  return 128 + constants.signals[signal]
}
