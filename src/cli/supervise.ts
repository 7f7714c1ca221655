import { systemClock } from '../clock.ts'
import type { Lease } from '../fence/lease.ts'
import { watchRunningOut } from './grace.ts'
import { ProcessGroup, holderMark } from './process-group.ts'
import { zombieChildren } from './process-session.ts'
import { spoken } from './run-options.ts'
import type { RunReport } from './run-report.ts'
import { type SignalGuard, asksForTheEnd } from './signal-guard.ts'
import type { Watchdog } from './watchdog.ts'

/**
 * How the lease was lost before the command was gone, or would have been if the command had not been ended: by the
 * database's word or for want of an answer; `running-out`, when no heartbeat got through; `overdue`, at its maximum hold.
 */
type CommandLoss = 'lost' | 'running-out' | 'overdue'

/** How the command ended. */
export interface CommandEnd {
  /** The command's own code, 128 + n, 126 or 127; undefined when it was not started. */
  readonly code: number | undefined
  /** Undefined when the lease was held all the time. */
  readonly loss: CommandLoss | undefined
}

export interface SuperviseOptions {
  readonly graceMs: number
  readonly guard: SignalGuard
  readonly report: RunReport
  /** Ends the command when this process is killed. */
  readonly watchdog?: Watchdog
  /** The command shares the terminal and the process group of this process. */
  readonly isForeground?: boolean
  /** What the command gets in its environment beside what this process and the lease have. */
  readonly environment?: Readonly<Record<string, string>>
  /** The maximum hold, and when it ends by the monotonic clock, at the latest. */
  readonly maxHold?: { readonly ms: number; readonly endsAtMs: number } | undefined
}

/** What ends by the same signal as the command, or with the pipe to it, is gone a moment later, without being told. */
const settleMs = 100
/** How far the end of the maximum hold is from the end of trust, at most, beside what the heartbeats' end would be. */
const overdueSlackMs = 1500
const lookForZombiesMs = 2000

/**
 * Runs the command under the lease until it is gone, with all that it started in its process group. Signals are passed
 * on as often as they come. When the lease is lost or about to be, or when the command ends before what it started, what
 * is left gets TERM, and KILL after the grace; then a signal ends the grace.
 */
export async function supervise(
  lease: Lease,
  command: readonly string[],
  options: SuperviseOptions,
): Promise<CommandEnd> {
  // This process may have been stopped since the grant, and then no timer has told of the loss yet.
  if (!lease.isHeld) return { code: undefined, loss: 'lost' }
  if (options.guard.stopped.aborted) return { code: undefined, loss: undefined }
  return new Supervision(lease, command, options).end()
}

class Supervision {
  readonly #lease: Lease
  readonly #options: SuperviseOptions
  readonly #group: ProcessGroup
  readonly #stops: (() => void)[] = []
  #ending: Promise<void> | undefined
  #loss: CommandLoss | undefined
  #isPaused = false

  constructor(lease: Lease, command: readonly string[], options: SuperviseOptions) {
    const { guard, report, watchdog, isForeground = false } = options
    this.#lease = lease
    this.#options = options
    // The handlers are there before the command is, so that no signal finds the wrapper without them. They run later.
    guard.forwardTo((signal) => this.#pass(signal))
    const env = { ...process.env, ...lease.environment, ...options.environment }
    watchdog?.starting(holderMark(env))
    this.#group = new ProcessGroup(command, env, { isForeground })
    if (this.#group.id === undefined) return
    watchdog?.watch(this.#group.id)
    report.tell('started', `started the command (pid ${this.#group.id})`, {
      token: String(lease.token),
      pid: this.#group.id,
    })
    this.#watchLease()
    if (process.pid === 1 && !report.isQuiet) this.#watchZombies(this.#group.id)
  }

  /** Settles when nothing of the command is left, or when what is left cannot be ended. */
  async end(): Promise<CommandEnd> {
    const { guard, report, watchdog, isForeground } = this.#options
    const code = await this.#group.exited
    // The end of the command may be noticed before the timer of the loss.
    if (this.#lease.signal.aborted || this.#lease.state === 'lost') this.#onLoss()
    // What has lost its parent in the foreground is only known by its environment, which the watchdog does not read.
    if (isForeground === true) watchdog?.over()
    const isGone = this.#ending === undefined && (await this.#group.isGoneWithin(settleMs))
    if (!isGone) {
      this.#end(
        'left-over',
        'the command is gone, but what it has started is not: ending that before the lease is given back',
      )
    }
    await this.#ending
    for (const stop of this.#stops) stop()
    // The group is gone, and its number may soon be another's.
    guard.forwardTo(() => {})
    watchdog?.over()
    if (!isGone && this.#group.isAlive)
      report.warn(`processes of the command could not be ended: look for the group ${this.#group.id}`)
    if (this.#group.failure !== undefined)
      report.tell('error', `cannot run the command: ${this.#group.failure}`, { exitCode: code })
    return { code, loss: this.#loss }
  }

  #watchLease(): void {
    const lease = this.#lease
    const { graceMs, report } = this.#options
    const onLoss = (): void => this.#onLoss()
    lease.signal.addEventListener('abort', onLoss, { once: true })
    this.#stops.push(
      () => lease.signal.removeEventListener('abort', onLoss),
      lease.on('at-risk', ({ expiresInMs }) =>
        report.tell(
          'at-risk',
          `a heartbeat failed: lease "${lease.name}" is lost in ${spoken(expiresInMs)} unless one comes through`,
          { token: String(lease.token), expiresInMs },
        ),
      ),
      watchRunningOut(lease, graceMs, {
        onTermDue: () => this.#onTermDue(),
        onKillDue: () => this.#group.hurry(),
      }),
    )
  }

  #onTermDue(): void {
    // What is being ended already has begun to end under a lease that was held.
    if (this.#ending !== undefined) return
    const { name } = this.#lease
    this.#loss = this.#isOverdue() ? 'overdue' : 'running-out'
    this.#end(
      this.#loss,
      this.#loss === 'overdue'
        ? `lease "${name}" has been held for its maximum of ${this.#maximum}: ending the command`
        : `lease "${name}" runs out and no heartbeat gets through: ending the command`,
    )
  }

  #onLoss(): void {
    const { name, loss } = this.#lease
    this.#loss ??= loss?.reason === 'overdue' ? 'overdue' : 'lost'
    // It has not run since the lease was held, and is not to run without it.
    if (this.#isPaused) this.#group.hurry()
    this.#end(
      this.#loss,
      this.#loss === 'overdue'
        ? `lease "${name}" was held for its maximum of ${this.#maximum}: ending the command`
        : `lease "${name}" is lost: ending the command`,
    )
  }

  get #maximum(): string {
    return spoken(this.#options.maxHold?.ms ?? 0)
  }

  /** Whether what is left of the lease ends with its maximum hold rather than with the last heartbeat. */
  #isOverdue(): boolean {
    const { maxHold } = this.#options
    const endsAtMs = systemClock.monotonicMs() + this.#lease.expiresInMs
    return maxHold !== undefined && endsAtMs + overdueSlackMs >= maxHold.endsAtMs
  }

  #end(reason: CommandLoss | 'left-over', message: string): void {
    if (this.#ending !== undefined) return
    this.#options.report.tell('ending', message, { token: String(this.#lease.token), reason })
    this.#ending = this.#group.end(this.#options.graceMs)
    this.#options.watchdog?.ending()
  }

  #pass(signal: NodeJS.Signals): void {
    if (signal === 'SIGTSTP') this.#pause()
    else if (signal === 'SIGCONT') this.#resume()
    else if (this.#ending !== undefined && asksForTheEnd(signal)) this.#group.hurry()
    else if (!this.#group.isReachedBy(signal)) this.#group.signal(signal)
  }

  /** Stops with the command, which nobody would keep from writing otherwise. */
  #pause(): void {
    // The kernel does not stop the first process of a container, and what is being ended is not to be kept from it.
    if (process.pid === 1 || this.#ending !== undefined) return
    const { name, expiresInMs } = this.#lease
    this.#options.report.warn(
      `stopped, and the command with it: lease "${name}" is lost unless both are continued within ${spoken(expiresInMs)}`,
    )
    // In a session of its own it is in an orphaned group, in which TSTP stops nothing.
    if (!this.#group.isReachedBy('SIGTSTP')) this.#group.signal('SIGSTOP')
    this.#isPaused = true
    process.kill(process.pid, 'SIGSTOP')
  }

  #resume(): void {
    // Timers that would tell of the loss may not have run yet.
    if (!this.#lease.isHeld) this.#onLoss()
    this.#isPaused = false
    if (this.#ending === undefined) this.#group.signal('SIGCONT')
  }

  /** The orphans of a container are left to its first process, and Node reaps only what it has started itself. */
  #watchZombies(command: number): void {
    const timer = setInterval(() => {
      if (zombieChildren().every((pid) => pid === command)) return
      clearInterval(timer)
      this.#options.report.warn(
        'this is the first process of a container, and what the command leaves behind stays as zombies: start the ' +
          'container with --init, or fencepost under tini',
      )
    }, lookForZombiesMs)
    this.#stops.push(() => clearInterval(timer))
  }
}
