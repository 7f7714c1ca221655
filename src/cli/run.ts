import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import { durationMs } from '../duration.ts'
import { InvalidArgumentError, NotAcquiredError } from '../errors.ts'
import { Fencepost } from '../fencepost.ts'
import type { Lease } from '../lease.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode, exitCodeOf } from './exit-code.ts'

export interface RunOptions extends DatabaseOptions {
  readonly ttl: string
  readonly wait: string
  readonly grace: string
  readonly label?: string
  readonly conflictExitCode?: string
}

const forwarded = ['SIGINT', 'SIGTERM'] as const
const maxGraceMs = 3_600_000

/** Runs a command while holding a lease. stdout belongs to the command; what fencepost has to say goes to stderr. */
export async function runCommand(
  name: string,
  command: readonly string[],
  options: RunOptions,
): Promise<number> {
  const conflictExitCode = readExitCode(options.conflictExitCode)
  const graceMs = durationMs('--grace', options.grace, { minMs: 0, maxMs: maxGraceMs })
  const url = await databaseUrl(options)
  const guard = new SignalGuard()
  try {
    await using fencepost = await Fencepost.open({
      connectionString: url,
      // The command line is no place for test-sized TTLs, so the library's own bounds hold.
      ttl: options.ttl as `${number}s`,
      label: options.label,
    })
    const lease = await fencepost.acquire(name, { wait: options.wait as `${number}s`, signal: guard.stopped })
    const code = await supervise(lease, command, graceMs, guard)
    const outcome = await lease.release()
    if (lease.state === 'lost') {
      say(`lease "${name}" (token ${lease.token}) was lost while the command ran`)
      return exitCode.leaseLost
    }
    if (outcome === 'unknown') say(`lease "${name}" could not be given back; it is free after its TTL`)
    return code
  } catch (error) {
    if (guard.received !== undefined) return signalCode(guard.received)
    say(error instanceof Error ? error.message : String(error))
    return error instanceof NotAcquiredError ? conflictExitCode : exitCodeOf(error)
  } finally {
    guard.dispose()
  }
}

/** Starts the command in a process group of its own and returns its exit code when it is gone. */
async function supervise(
  lease: Lease,
  command: readonly string[],
  graceMs: number,
  guard: SignalGuard,
): Promise<number> {
  const [file, ...args] = command
  const child = spawn(file!, args, {
    stdio: 'inherit',
    // Its own group, so that a lost lease ends grandchildren as well.
    detached: true,
    env: { ...process.env, ...lease.environment },
  })
  const exited = exitOf(child)
  guard.forwardTo((signal) => signalGroup(child, signal))
  const onLoss = (): void => {
    say(`lease "${lease.name}" is lost: ending the command`)
    signalGroup(child, 'SIGTERM')
    // The group is killed even if the command itself has gone: what it started may still write.
    setTimeout(() => signalGroup(child, 'SIGKILL'), graceMs)
  }
  lease.signal.addEventListener('abort', onLoss, { once: true })
  if (lease.signal.aborted) onLoss()
  const code = await exited
  lease.signal.removeEventListener('abort', onLoss)
  if (lease.signal.aborted) await groupIsGone(child, graceMs)
  return code
}

function exitOf(child: ChildProcess): Promise<number> {
  const { promise, resolve } = Promise.withResolvers<number>()
  child.once('error', (error: NodeJS.ErrnoException) => {
    say(`cannot run the command: ${error.message}`)
    resolve(error.code === 'ENOENT' ? exitCode.notFound : exitCode.notExecutable)
  })
  child.once('exit', (code, signal) =>
    resolve(signal === null ? (code ?? exitCode.failed) : signalCode(signal)),
  )
  return promise
}

function signalGroup(child: ChildProcess, signal: NodeJS.Signals): boolean {
  if (child.pid === undefined) return false
  try {
    return process.kill(-child.pid, signal)
  } catch {
    // The group is gone.
    return false
  }
}

/** After a loss the wrapper stays until nothing of the command is left that could write, or kills what is left. */
async function groupIsGone(child: ChildProcess, graceMs: number): Promise<void> {
  const due = performance.now() + graceMs
  while (performance.now() < due && isGroupAlive(child)) {
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  signalGroup(child, 'SIGKILL')
}

function isGroupAlive(child: ChildProcess): boolean {
  try {
    return child.pid !== undefined && process.kill(-child.pid, 0)
  } catch {
    return false
  }
}

function signalCode(signal: NodeJS.Signals): number {
  return 128 + constants.signals[signal]
}

function readExitCode(text: string | undefined): number {
  if (text === undefined) return exitCode.notAcquired
  const code = Number(text)
  if (!/^\d{1,3}$/.test(text) || code > 255) {
    throw new InvalidArgumentError(
      '--conflict-exit-code',
      text,
      `--conflict-exit-code must be a whole number from 0 to 255; got "${text}"`,
    )
  }
  return code
}

function say(message: string): void {
  process.stderr.write(`fencepost: ${message}\n`)
}

/** Before the command runs, a signal stops the waiting; after that it is the command's. */
class SignalGuard {
  readonly #stop = new AbortController()
  readonly #handlers = forwarded.map((signal) => [signal, () => this.#on(signal)] as const)
  #forward: ((signal: NodeJS.Signals) => void) | undefined
  received: NodeJS.Signals | undefined

  constructor() {
    for (const [signal, handler] of this.#handlers) process.on(signal, handler)
  }

  get stopped(): AbortSignal {
    return this.#stop.signal
  }

  forwardTo(forward: (signal: NodeJS.Signals) => void): void {
    this.#forward = forward
    // One that came between the grant and the start must not be lost.
    if (this.received !== undefined) forward(this.received)
  }

  dispose(): void {
    for (const [signal, handler] of this.#handlers) process.off(signal, handler)
  }

  #on(signal: NodeJS.Signals): void {
    if (this.#forward !== undefined) {
      this.#forward(signal)
      return
    }
    this.received = signal
    this.#stop.abort(new Error(`stopped by ${signal}`))
  }
}
