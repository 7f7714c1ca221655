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
  /** How many requests of any kind are under way, those in this batcher among them. Default: more than can be told. */
  readonly crowd?: () => number
}

/** So many requests, or more, are worth a second call. */
const worthHalving = 16

type Tell = () => void

const afterThisStep = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve))

/**
 * Natural batching: while one call is on the wire, requests gather; the next call carries all of them. A request on its
 * own is sent without delay.
 */
export class Batcher<Request, Answer> {
  readonly #send: (requests: Request[]) => Promise<Answer[]>
  readonly #subjectOf: (request: Request) => unknown
  readonly #maxSize: number
  readonly #onIdle: () => void
  readonly #crowd: () => number
  #waiting: Entry<Request, Answer>[] = []
  #isRunning = false

  /** `send` answers in the order of the requests. Two requests about the same subject never travel together. */
  constructor(
    send: (requests: Request[]) => Promise<Answer[]>,
    subjectOf: (request: Request) => unknown,
    { maxSize = 2000, onIdle = () => {}, crowd = () => Number.POSITIVE_INFINITY }: BatcherOptions = {},
  ) {
    this.#send = send
    this.#subjectOf = subjectOf
    this.#maxSize = maxSize
    this.#onIdle = onIdle
    this.#crowd = crowd
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
    // Everyone who asks in the same step, or was woken by the same answer, gets to add a request before the next call leaves.
    await afterThisStep()
    while (this.#waiting.length > 0) {
      let tell = await this.#deliver(this.#nextBatch())
      while (this.#waiting.length > 0) {
        const next = this.#deliver(this.#nextBatch())
        // Those whom the last call has answered go on when this one has left: the database works while they do.
        process.nextTick(tell)
        tell = await next
      }
      tell()
      await afterThisStep()
    }
    this.#isRunning = false
    this.#onIdle()
  }

  #nextBatch(): Entry<Request, Answer>[] {
    // Where nearly all requests that there are wait here, they would go on in step: either the database works, or we do. Of two halves
    // one is worked on there while the other one is here.
    const { length } = this.#waiting
    const size = length >= worthHalving && length > this.#crowd() * 0.75 ? length >> 1 : this.#maxSize
    const batch = new Map<unknown, Entry<Request, Answer>>()
    const later: Entry<Request, Answer>[] = []
    for (const entry of this.#waiting) {
      const subject = this.#subjectOf(entry.request)
      if (batch.size >= Math.min(size, this.#maxSize) || batch.has(subject)) later.push(entry)
      else batch.set(subject, entry)
    }
    this.#waiting = later
    return [...batch.values()]
  }

  /** Sends the batch, and returns how to tell those who are in it what has come of it. */
  async #deliver(batch: Entry<Request, Answer>[]): Promise<Tell> {
    try {
      const answers = await this.#send(batch.map((entry) => entry.request))
      return () => {
        for (let index = 0; index < batch.length; index += 1) batch[index]!.resolve(answers[index] as Answer)
      }
    } catch (error) {
      if (batch.length > 1 && isFaultOfOneRequest(error)) {
        // Halving finds the culprit and serves its neighbours.
        const middle = batch.length >> 1
        const tells = [await this.#deliver(batch.slice(0, middle)), await this.#deliver(batch.slice(middle))]
        return () => {
          for (const tell of tells) tell()
        }
      }
      return () => {
        for (const entry of batch) entry.reject(error)
      }
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
