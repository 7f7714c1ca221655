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
  /** Whether the wire takes a call before the last one has been answered. Default: no. */
  readonly overlaps?: () => boolean
}

/** So many requests, or more, are worth a second call. */
const worthHalving = 16

/** Of all requests, when those who are not here do not matter. */
const nearlyAll = 0.75

type Tell = () => void

const afterThisStep = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve))

/**
 * Natural batching: while a call is on the wire, requests gather; the next call carries all of them. A request on its
 * own is sent without delay. At most two calls are on the wire, and the second one only when waiting would gather nothing more.
 */
export class Batcher<Request, Answer> {
  readonly #send: (requests: Request[]) => Promise<Answer[]>
  readonly #subjectOf: (request: Request) => unknown
  readonly #maxSize: number
  readonly #onIdle: () => void
  readonly #crowd: () => number
  readonly #overlaps: () => boolean
  #waiting: Entry<Request, Answer>[] = []
  #isRunning = false
  /** Requests that are on the wire. */
  #sent = 0
  /** A second call is about to leave, or on the wire. */
  #isAhead = false

  /** `send` answers in the order of the requests. Two requests about the same subject never travel together. */
  constructor(
    send: (requests: Request[]) => Promise<Answer[]>,
    subjectOf: (request: Request) => unknown,
    {
      maxSize = 2000,
      onIdle = () => {},
      crowd = () => Number.POSITIVE_INFINITY,
      overlaps = () => false,
    }: BatcherOptions = {},
  ) {
    this.#send = send
    this.#subjectOf = subjectOf
    this.#maxSize = maxSize
    this.#onIdle = onIdle
    this.#crowd = crowd
    this.#overlaps = overlaps
  }

  add(request: Request): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    this.#waiting.push({ request, resolve, reject })
    if (this.#isRunning) {
      this.#mayGoAhead()
    } else {
      this.#isRunning = true
      void this.#run()
    }
    return promise
  }

  async #run(): Promise<void> {
    // Everyone who asks in the same step, or was woken by the same answer, gets to add a request before the next call leaves.
    await afterThisStep()
    while (this.#waiting.length > 0) {
      let tell = await this.#deliverNext()
      while (this.#waiting.length > 0) {
        const next = this.#deliverNext()
        // Those whom the last call has answered go on when this one has left: the database works while they do.
        process.nextTick(tell)
        tell = await next
      }
      tell()
      await afterThisStep()
    }
    this.#isRunning = false
    if (!this.#isAhead) this.#onIdle()
  }

  #deliverNext(): Promise<Tell> {
    const delivered = this.#deliver(this.#nextBatch())
    this.#mayGoAhead()
    return delivered
  }

  #mayGoAhead(): void {
    if (this.#isAhead || this.#waiting.length < worthHalving || this.#sent === 0 || !this.#overlaps()) return
    this.#isAhead = true
    void this.#goAhead()
  }

  /**
   * Sends a second call before the last one has been answered, where hardly anybody is left who could join it until then: the database
   * finds it when it is done with the other, instead of waiting for us.
   */
  async #goAhead(): Promise<void> {
    await afterThisStep()
    const { length } = this.#waiting
    if (this.#sent > 0 && length >= worthHalving && length + this.#sent > this.#crowd() * nearlyAll) {
      const tell = await this.#deliver(this.#nextBatch())
      tell()
    }
    this.#isAhead = false
    if (!this.#isRunning) this.#onIdle()
  }

  #nextBatch(): Entry<Request, Answer>[] {
    // Where nearly all requests that there are wait here, they would go on in step: either the database works, or we do. Of two halves
    // one is worked on there while the other one is here.
    const { length } = this.#waiting
    const size = length >= worthHalving && length > this.#crowd() * nearlyAll ? length >> 1 : this.#maxSize
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
    this.#sent += batch.length
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
    } finally {
      this.#sent -= batch.length
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
