const guarded = ['SIGINT', 'SIGTERM'] as const

/**
 * What INT and TERM to the wrapper mean: until the command runs they stop the waiting, then they are the command's, and
 * afterwards they must not cut off the giving back of the lease, which is bounded anyway.
 */
export class SignalGuard implements Disposable {
  readonly #stop = new AbortController()
  readonly #handlers = guarded.map((signal) => [signal, () => this.#on(signal)] as const)
  #forward: ((signal: NodeJS.Signals) => void) | undefined
  #received: NodeJS.Signals | undefined

  constructor() {
    for (const [signal, handler] of this.#handlers) process.on(signal, handler)
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

  forwardTo(forward: (signal: NodeJS.Signals) => void): void {
    this.#forward = forward
  }

  [Symbol.dispose](): void {
    for (const [signal, handler] of this.#handlers) process.off(signal, handler)
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
