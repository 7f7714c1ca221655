/** A number of places, given out in the order in which they are asked for. */
export class Places {
  #free: number
  readonly #waiting: Set<(free: () => void) => void> = new Set()

  constructor(count: number) {
    this.#free = count
  }

  /** Resolves to what gives the place back; rejects with the signal's reason when it aborts first. */
  async take(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted()
    if (this.#free > 0) {
      this.#free -= 1
      return this.#place()
    }
    const { promise, resolve, reject } = Promise.withResolvers<() => void>()
    const onAbort = (): void => {
      this.#waiting.delete(resolve)
      // oxlint-disable-next-line typescript/prefer-promise-reject-errors -- The reason is the caller's.
      reject(signal.reason)
    }
    this.#waiting.add(resolve)
    signal.addEventListener('abort', onAbort, { once: true })
    try {
      return await promise
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  #place(): () => void {
    let isTaken = true
    return () => {
      if (!isTaken) return
      isTaken = false
      const [next] = this.#waiting
      if (next === undefined) {
        this.#free += 1
        return
      }
      this.#waiting.delete(next)
      next(this.#place())
    }
  }
}
