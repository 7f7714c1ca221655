import type { Lease } from '../fence/lease.ts'
import { ProcessGroup } from './process-group.ts'
import type { SignalGuard } from './signal-guard.ts'

/** How the command ended. */
export interface CommandEnd {
  /** The command's own code, 128 + n, 126 or 127; undefined when it was not started. */
  readonly code: number | undefined
  /** The lease was lost before the command was gone. */
  readonly isLost: boolean
}

export interface SuperviseOptions {
  readonly graceMs: number
  readonly guard: SignalGuard
  /** Tells the user. */
  readonly say: (message: string) => void
}

/**
 * Runs the command under the lease until it is gone. Signals are passed on as often as they come. When the lease is
 * lost, the command and all that it started get TERM, and KILL after the grace; then a signal ends the grace.
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
  const group = new ProcessGroup(command, { ...process.env, ...lease.environment })
  let ending: Promise<void> | undefined
  guard.forwardTo((signal) => {
    if (ending === undefined) group.signal(signal)
    else group.hurry()
  })
  const onLoss = (): void => {
    if (ending !== undefined) return
    say(`lease "${lease.name}" is lost: ending the command`)
    ending = group.end(graceMs)
  }
  lease.signal.addEventListener('abort', onLoss, { once: true })
  const code = await group.exited
  // The end of the command may be noticed before the timer of the loss.
  if (lease.signal.aborted || lease.state === 'lost') onLoss()
  lease.signal.removeEventListener('abort', onLoss)
  await ending
  // The group is gone, and its number may soon be another's.
  guard.forwardTo(() => {})
  if (group.failure !== undefined) say(`cannot run the command: ${group.failure}`)
  return { code, isLost: ending !== undefined }
}
