import { closeSync, constants, fstatSync, openSync, write, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

/** What nobody reads is not kept without end. */
const maxWaiting = 1000
const retryMs = 50

/**
 * Standard error, for a process that must not stand still because nobody reads it: a full pipe, a terminal that is paused. A
 * wrapper that waits for its reader would neither renew its lease nor end its command in time.
 *
 * Node writes there synchronously, and a command that has inherited it has made it wait. To change that would change it for the
 * command. So pipes and terminals are opened once more, without waiting, and what they do not take is offered again; what cannot
 * be opened so (a socket, another system than Linux) is written to beside the event loop.
 */
export class Voice {
  #fd = 2
  #isOwn = false
  #isOpen = false
  #isDeaf = false
  #isWriting = false
  #waiting: Buffer[] = []
  #timer: NodeJS.Timeout | undefined

  say(line: string): void {
    if (this.#isDeaf || this.#waiting.length >= maxWaiting) return
    this.#open()
    this.#waiting.push(Buffer.from(line))
    this.#speak()
  }

  /** Gives the reader so long to take what is left, and closes. False: a write still waits for it. */
  async finish(withinMs: number): Promise<boolean> {
    for (let leftMs = withinMs; leftMs > 0 && this.#waiting.length > 0; leftMs -= retryMs) {
      // oxlint-disable-next-line no-await-in-loop -- A reader does not say when it has read.
      await sleep(Math.min(retryMs, leftMs))
    }
    this.#fallSilent()
    if (this.#isOwn) closeSync(this.#fd)
    return !this.#isWriting
  }

  #open(): void {
    if (this.#isOpen) return
    this.#isOpen = true
    try {
      const kind = fstatSync(2)
      if (!kind.isFIFO() && !kind.isCharacterDevice()) return
      this.#fd = openSync('/proc/self/fd/2', constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY)
      this.#isOwn = true
    } catch {
      // Another user's terminal, or no /proc: as with a socket.
    }
  }

  #speak(): void {
    if (this.#isOwn) this.#speakAtOnce()
    else if (!this.#isWriting) this.#speakAside()
  }

  #speakAtOnce(): void {
    if (this.#timer !== undefined) return
    try {
      while (this.#waiting.length > 0) this.#said(writeSync(this.#fd, this.#waiting[0]!))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return this.#fallSilent()
      this.#timer = setTimeout(() => {
        this.#timer = undefined
        this.#speakAtOnce()
      }, retryMs)
      this.#timer.unref()
    }
  }

  #speakAside(): void {
    const [next] = this.#waiting
    if (next === undefined) return
    this.#isWriting = true
    write(this.#fd, next, (error, bytes) => {
      this.#isWriting = false
      if (error === null) {
        this.#said(bytes)
        this.#speakAside()
      } else if (error.code === 'EAGAIN') {
        this.#timer = setTimeout(() => this.#speak(), retryMs)
        this.#timer.unref()
      } else {
        this.#fallSilent()
      }
    })
  }

  #said(bytes: number): void {
    const [next] = this.#waiting
    // Nobody waits any more for what has been said at last.
    if (next === undefined) return
    if (bytes < next.length) this.#waiting[0] = next.subarray(bytes)
    else this.#waiting.shift()
  }

  /** Nobody can hear it any more. */
  #fallSilent(): void {
    this.#isDeaf = true
    this.#waiting = []
    clearTimeout(this.#timer)
  }
}
