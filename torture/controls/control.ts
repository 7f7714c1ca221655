import type { ViolationKind } from '../check/check.ts'

/**
 * A fencepost without one of its safeguards, and what the torture suite has to find wrong with it: a suite that stays green on it
 * would prove nothing by being green.
 */
export interface Control {
  readonly name: string
  /** What is taken out, in one sentence. */
  readonly without: string
  /** Of which one is enough. */
  readonly caughtAs: readonly ViolationKind[]
  /** Which promise it breaks: that nothing bad happens, or that something good does. */
  readonly mode: 'safety' | 'liveness'
  readonly provocation: Provocation
  /** By the signature of the function in the database. */
  readonly functions?: Readonly<Record<string, readonly Piece[]>>
  /** By the path of the module in `src`. */
  readonly modules?: Readonly<Record<string, readonly Piece[]>>
  /** What the database gets in place of what it loses. */
  readonly sql?: string
}

/** Under what it shows fastest. */
interface Provocation {
  readonly clients: number
  readonly leases: number
  readonly ttlMs: number
  /** How long it takes at most. Default: as long as any run. */
  readonly seconds?: number
  /** As `--faults` takes them; none: the clients do it by themselves. */
  readonly faults: readonly string[]
  /** All clients reach the server through PgBouncer in transaction mode. */
  readonly pooler?: boolean
  /** PostgreSQL settings of the server. */
  readonly settings?: Readonly<Record<string, string>>
}

/** What a text loses, and what it gets instead. It is a mistake when the text does not have it exactly so many times. */
export interface Piece {
  readonly out: string
  readonly in: string
  /** Default 1. */
  readonly times?: number
}

/**
 * The text with all pieces exchanged.
 *
 * @throws when one of them is not found: a control that weakens nothing any more must not look as if it did.
 */
export function exchange(text: string, pieces: readonly Piece[], whose: string): string {
  return pieces.reduce((changed, { out, in: replacement, times = 1 }) => {
    const parts = changed.split(out)
    if (parts.length - 1 !== times) {
      throw new Error(
        `${whose} has changed: this piece of it is there ${parts.length - 1} times instead of ${times}, so the control would not ` +
          `weaken what it says:\n${out}`,
      )
    }
    return parts.join(replacement)
  }, text)
}
