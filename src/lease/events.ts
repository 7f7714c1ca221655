import type { Logger } from '../logger.ts'

/**
 * Typed listeners, told in the order of the events: what a listener sets off is told after what it was told. One that throws or
 * rejects is reported and hurts neither the others nor the caller.
 */
export class Events<Map extends Record<string, unknown>> {
  readonly #listeners = new globalThis.Map<keyof Map, Set<(event: never) => unknown>>()
  readonly #logger: Logger
  readonly #untold: (() => void)[] = []
  #isTelling = false

  constructor(logger: Logger) {
    this.#logger = logger
  }

  on<Name extends keyof Map>(name: Name, listener: (event: Map[Name]) => unknown): () => void {
    const listeners = this.#listeners.get(name) ?? new Set()
    this.#listeners.set(name, listeners)
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  emit<Name extends keyof Map>(name: Name, event: Map[Name]): void {
    this.#tellInOrder(() => {
      for (const listener of [...(this.#listeners.get(name) ?? [])]) {
        void this.#tell(String(name), listener as (event: Map[Name]) => unknown, event)
      }
    })
  }

  /** Tells one listener of what has happened before it listened. */
  tellLate<Name extends keyof Map>(
    name: Name,
    listener: (event: Map[Name]) => unknown,
    event: Map[Name],
  ): void {
    queueMicrotask(() => this.#tellInOrder(() => void this.#tell(String(name), listener, event)))
  }

  #tellInOrder(step: () => void): void {
    this.#untold.push(step)
    if (this.#isTelling) return
    this.#isTelling = true
    for (let next = this.#untold.shift(); next !== undefined; next = this.#untold.shift()) next()
    this.#isTelling = false
  }

  async #tell<Event>(name: string, listener: (event: Event) => unknown, event: Event): Promise<void> {
    try {
      await listener(event)
    } catch (error) {
      this.#logger.error(`fencepost: a listener of "${name}" failed: ${String(error)}`)
    }
  }
}
