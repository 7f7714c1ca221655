import { RequestFailure } from '../database/failure.ts'

interface Entry<Request, Answer> {
  readonly request: Request
  resolve(answer: Answer): void
  reject(error: unknown): void
}

export interface BatcherOptions {
  /** The largest batch. Default 2000. */
  readonly maxSize?: number
  /** Called when nothing waits and nothing is on the wire any more. */
  readonly onIdle?: () => void
}

/**
 * Natural batching: while one call is on the wire, requests gather; the next call carries all of them. A request on its
 * own is sent without delay.
 */
export class Batcher<Request, Answer> {
  readonly #send: (requests: Request[]) => Promise<Answer[]>
  readonly #subjectOf: (request: Request) => unknown
  readonly #maxSize: number
  readonly #onIdle: () => void
  #waiting: Entry<Request, Answer>[] = []
  #isRunning = false

  /** `send` answers in the order of the requests. Two requests about the same subject never travel together. */
  constructor(
    send: (requests: Request[]) => Promise<Answer[]>,
    subjectOf: (request: Request) => unknown,
    { maxSize = 2000, onIdle = () => {} }: BatcherOptions = {},
  ) {
    this.#send = send
    this.#subjectOf = subjectOf
    this.#maxSize = maxSize
    this.#onIdle = onIdle
  }

  add(request: Request): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    this.#waiting.push({ request, resolve, reject })
    if (!this.#isRunning) {
      this.#isRunning = true
      void this.#run()
    }
    return promise
  }

  async #run(): Promise<void> {
    while (this.#waiting.length > 0) {
      // Everyone who was woken by the same answer gets to add a request before the next call leaves.
      await new Promise<void>((resolve) => process.nextTick(resolve))
      await this.#deliver(this.#nextBatch())
    }
    this.#isRunning = false
    this.#onIdle()
  }

  #nextBatch(): Entry<Request, Answer>[] {
    const batch = new Map<unknown, Entry<Request, Answer>>()
    const later: Entry<Request, Answer>[] = []
    for (const entry of this.#waiting) {
      const subject = this.#subjectOf(entry.request)
      if (batch.size === this.#maxSize || batch.has(subject)) later.push(entry)
      else batch.set(subject, entry)
    }
    this.#waiting = later
    return [...batch.values()]
  }

  async #deliver(batch: Entry<Request, Answer>[]): Promise<void> {
    try {
      const answers = await this.#send(batch.map((entry) => entry.request))
      for (const [index, entry] of batch.entries()) entry.resolve(answers[index] as Answer)
    } catch (error) {
      if (batch.length > 1 && isFaultOfOneRequest(error)) {
        // Halving finds the culprit and serves its neighbours.
        const middle = batch.length >> 1
        await this.#deliver(batch.slice(0, middle))
        await this.#deliver(batch.slice(middle))
        return
      }
      for (const entry of batch) entry.reject(error)
    }
  }
}

/** Classes 22 and 23 are about the data of a request, not about the server or the holder. */
function isFaultOfOneRequest(error: unknown): boolean {
  return (
    error instanceof RequestFailure &&
    error.effect === 'refused' &&
    (error.sqlState?.startsWith('22') === true || error.sqlState?.startsWith('23') === true)
  )
}
