const ending = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const
const telling = ['SIGUSR1', 'SIGUSR2', 'SIGTSTP', 'SIGCONT'] as const

/**
 * What signals to the wrapper mean. Until the command runs, those that end a program stop the waiting. Then they are
 * the command's, and so are those that tell it something: it has a session of its own, so neither the terminal nor a
 * closing connection reaches it in another way. Afterwards they must not cut off the giving back of the lease, which is
 * bounded anyway.
 */
export class SignalGuard implements Disposable {
  readonly #stop = new AbortController()
  readonly #handlers = new Map<NodeJS.Signals, () => void>()
  #forward: ((signal: NodeJS.Signals) => void) | undefined
  #received: NodeJS.Signals | undefined

  constructor() {
    for (const signal of ending) this.#handle(signal)
  }

  /** Aborts when a signal comes before there is anybody to forward it to. */
  get stopped(): AbortSignal {
    return this.#stop.signal
  }

  /** The signal that stopped the waiting. */
  get received(): NodeJS.Signals | undefined {
    return this.#received
  }

  /** The promise's outcome, unless a signal comes first. */
  async orStopped<T>(promise: Promise<T>): Promise<T> {
    const { promise: stopped, reject } = Promise.withResolvers<never>()
    const onAbort = (): void => reject(this.stopped.reason as Error)
    this.stopped.addEventListener('abort', onAbort, { once: true })
    if (this.stopped.aborted) onAbort()
    try {
      return await Promise.race([promise, stopped])
    } finally {
      this.stopped.removeEventListener('abort', onAbort)
    }
  }

  /**
   * Passes on every signal from now on. USR1, USR2 and TSTP keep their meaning for this process until then: there is nobody
   * else whom they could be for. Afterwards the first would start a debugger here, and the others end or stop the wrapper
   * alone.
   */
  forwardTo(forward: (signal: NodeJS.Signals) => void): void {
    this.#forward = forward
    for (const signal of telling) this.#handle(signal)
  }

  [Symbol.dispose](): void {
    for (const [signal, handler] of this.#handlers) process.off(signal, handler)
  }

  #handle(signal: NodeJS.Signals): void {
    if (this.#handlers.has(signal)) return
    const handler = (): void => this.#on(signal)
    this.#handlers.set(signal, handler)
    process.on(signal, handler)
  }

  #on(signal: NodeJS.Signals): void {
    if (this.#forward !== undefined) {
      this.#forward(signal)
      return
    }
    this.#received ??= signal
    this.#stop.abort(new Error(`stopped by ${signal}`))
  }
}

/** Whether the signal asks for the end, unless the program says otherwise. */
export function asksForTheEnd(signal: NodeJS.Signals): boolean {
  return (ending as readonly string[]).includes(signal)
}
