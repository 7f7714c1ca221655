import type { Socket } from 'node:net'

/** One direction of a connection, which can be slow, and can hold back what is on its way. Nothing overtakes anything. */
export class Pipe {
  readonly #to: Socket
  readonly #waiting: { readonly data: Buffer; readonly dueMs: number }[] = []
  #timer: NodeJS.Timeout | undefined
  #isHeld = false

  constructor(to: Socket) {
    this.#to = to
  }

  send(data: Buffer, delayMs: number): void {
    if (!this.#isHeld && delayMs === 0 && this.#waiting.length === 0) {
      this.#to.write(data)
      return
    }
    this.#waiting.push({ data, dueMs: performance.now() + delayMs })
    this.#schedule()
  }

  hold(): void {
    this.#isHeld = true
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  letGo(): void {
    this.#isHeld = false
    this.#pump()
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#waiting.length = 0
  }

  #pump(): void {
    this.#timer = undefined
    while (!this.#isHeld && this.#waiting.length > 0) {
      const { data, dueMs } = this.#waiting[0]!
      if (dueMs > performance.now()) return this.#schedule()
      this.#waiting.shift()
      this.#to.write(data)
    }
  }

  #schedule(): void {
    if (this.#isHeld || this.#timer !== undefined) return
    const waitMs = Math.max(0, Math.ceil(this.#waiting[0]!.dueMs - performance.now()))
    this.#timer = setTimeout(() => this.#pump(), waitMs)
  }
}
