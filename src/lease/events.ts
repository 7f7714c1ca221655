import { show } from '../duration.ts'
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

  /** Tells everybody who listens by now, unless it has stopped to by the time it is its turn. */
  emit<Name extends keyof Map>(name: Name, event: Map[Name]): void {
    const listeners = [...(this.#listeners.get(name) ?? [])] as ((event: Map[Name]) => unknown)[]
    this.#tellInOrder(() => {
      for (const listener of listeners) this.#tell(name, listener, event)
    })
  }

  /** Tells one listener of what has happened before it listened. */
  tellLate<Name extends keyof Map>(
    name: Name,
    listener: (event: Map[Name]) => unknown,
    event: Map[Name],
  ): void {
    queueMicrotask(() => this.#tellInOrder(() => this.#tell(name, listener, event)))
  }

  #tellInOrder(step: () => void): void {
    this.#untold.push(step)
    if (this.#isTelling) return
    this.#isTelling = true
    for (let next = this.#untold.shift(); next !== undefined; next = this.#untold.shift()) next()
    this.#isTelling = false
  }

  #tell<Name extends keyof Map>(name: Name, listener: (event: Map[Name]) => unknown, event: Map[Name]): void {
    if (this.#listeners.get(name)?.has(listener) !== true) return
    const tell = async (): Promise<void> => void (await listener(event))
    tell().catch((error: unknown) => {
      // What was thrown may be anything.
      const what = error instanceof Error ? String(error) : show(error)
      this.#logger.error(`fencepost: a listener of "${String(name)}" failed: ${what}`)
    })
  }
}
