import { TestKitError } from './test-kit-error.ts'

/**
 * A request whose reply can be dropped: what fencepost asks when it takes a lease (`acquire`), gives it back (`release`) or keeps it
 * (`beat`); the `commit` of any transaction, fenced or not; or the first text of SQL in which the expression finds something.
 */
export type DroppableReply = 'acquire' | 'release' | 'beat' | 'commit' | RegExp

const patterns: Readonly<Record<string, RegExp>> = {
  acquire: /\bfencepost\.acquire(?:_batch|_all)?\s*\(/i,
  release: /\bfencepost\.(?:release(?:_batch)?|hand_over)\s*\(/i,
  beat: /\bfencepost\.beat\s*\(/i,
  commit: /(?:^|;)\s*(?:commit|end)\b/i,
}

/** What is to be found in the text of a request. */
export function patternOf(to: DroppableReply): RegExp {
  if (to instanceof RegExp) return to
  const pattern = typeof to === 'string' ? patterns[to] : undefined
  if (pattern !== undefined) return pattern
  const names = Object.keys(patterns).map((name) => `"${name}"`)
  throw new TestKitError(
    'NO_SUCH_REPLY',
    `a reply to drop must be ${names.join(', ')} or a regular expression for the SQL; got ${JSON.stringify(to) ?? typeof to}`,
  )
}

/** A reply that is to be dropped when it comes. */
export interface ReplyDrop {
  /** Settles when the reply was dropped. Rejects with `KIT_CLOSED` when it has not come by the time the kit is closed. */
  readonly dropped: Promise<void>
  /** Lets the reply through after all. Of no effect once a request is under way whose reply is to be dropped. */
  cancel(): void
}

/** The same as the proxy knows it. */
export class ArmedDrop implements ReplyDrop {
  readonly dropped: Promise<void>
  readonly #pattern: RegExp
  readonly #settling = Promise.withResolvers<void>()
  readonly #disarm: (drop: ArmedDrop) => void

  constructor(pattern: RegExp, disarm: (drop: ArmedDrop) => void) {
    this.#pattern = pattern
    this.#disarm = disarm
    this.dropped = this.#settling.promise
    // Nobody has to wait for it.
    this.dropped.catch(() => {})
  }

  isFor(texts: readonly string[]): boolean {
    // One that is global or sticky would go on where it has stopped.
    return texts.some((text) => text.search(this.#pattern) >= 0)
  }

  cancel(): void {
    this.#disarm(this)
  }

  happened(): void {
    this.#settling.resolve()
  }

  fail(error: Error): void {
    this.#settling.reject(error)
  }
}
