import type { Lease } from '../fence/lease.ts'
import { watchRunningOut } from './grace.ts'
import { ProcessGroup } from './process-group.ts'
import { type SignalGuard, asksForTheEnd } from './signal-guard.ts'

/** How the command ended. */
export interface CommandEnd {
  /** The command's own code, 128 + n, 126 or 127; undefined when it was not started. */
  readonly code: number | undefined
  /** The lease was lost before the command was gone, or would have been if the command had not been ended. */
  readonly isLost: boolean
}

export interface SuperviseOptions {
  readonly graceMs: number
  readonly guard: SignalGuard
  /** Tells the user. */
  readonly say: (message: string) => void
}

/** What ends by the same signal as the command, or with the pipe to it, is gone a moment later, without being told. */
const settleMs = 100

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
  const { graceMs, guard, say } = options
  // This process may have been stopped since the grant, and then no timer has told of the loss yet.
  if (!lease.isHeld) return { code: undefined, isLost: true }
  if (guard.stopped.aborted) return { code: undefined, isLost: false }
  let ending: Promise<void> | undefined
  let isLost = false
  // The handlers are there before the command is, so that no signal finds the wrapper without them. They run later.
  guard.forwardTo((signal) => {
    if (ending !== undefined && asksForTheEnd(signal)) group.hurry()
    else group.signal(signal)
  })
  const group = new ProcessGroup(command, { ...process.env, ...lease.environment })
  const end = (message: string): void => {
    if (ending !== undefined) return
    say(message)
    ending = group.end(graceMs)
  }
  const onLoss = (): void => {
    isLost = true
    end(`lease "${lease.name}" is lost: ending the command`)
  }
  const stopWatch = watchRunningOut(lease, graceMs, {
    onTermDue: () => {
      // What is being ended already has begun to end under a lease that was held.
      if (ending !== undefined) return
      isLost = true
      end(`lease "${lease.name}" runs out and no heartbeat gets through: ending the command`)
    },
    onKillDue: () => group.hurry(),
  })
  lease.signal.addEventListener('abort', onLoss, { once: true })
  const code = await group.exited
  // The end of the command may be noticed before the timer of the loss.
  if (lease.signal.aborted || lease.state === 'lost') onLoss()
  if (ending === undefined && !(await group.isGoneWithin(settleMs))) {
    end('the command is gone, but what it has started is not: ending that before the lease is given back')
  }
  await ending
  lease.signal.removeEventListener('abort', onLoss)
  stopWatch()
  // The group is gone, and its number may soon be another's.
  guard.forwardTo(() => {})
  if (group.isAlive) say(`processes of the command could not be ended: look for the group ${group.id}`)
  if (group.failure !== undefined) say(`cannot run the command: ${group.failure}`)
  return { code, isLost }
}
