import { withoutPasswords } from './hidden-passwords.ts'

/** What the database says of the lease that stands in the way; null where it does not say. */
interface InTheWay {
  readonly holder: string | null
  readonly host: string | null
  readonly pid: number | null
  readonly since: string | null
}

/**
 * What `fencepost run` tells, and with which facts: with `--json` these are the lines on stderr. Their names and meanings
 * stay; facts and events may be added. Tokens are strings, because they may be greater than what a JSON number holds.
 */
interface RunFacts {
  /** Somebody else has the lease, or nobody gets it yet. Told again when the state, the holder or the place changes. */
  waiting: InTheWay & {
    readonly state: string
    /** How long the holder's TTL lasts unless it is renewed, or how long the lease is withheld. */
    readonly remainingMs: number | null
    /** Its own place in line, from 1; null when it stands in none. */
    readonly place: number | null
    readonly waiters: number
  }
  granted: { readonly token: string; readonly waitedMs: number; readonly ttlMs: number }
  started: { readonly token: string; readonly pid: number }
  /** A heartbeat failed: the lease is lost after so long unless one comes through. */
  'at-risk': { readonly token: string; readonly expiresInMs: number }
  /** What does not change the outcome by itself. */
  warning: object
  /** The command, or what is left of it, gets TERM, and KILL after the grace. */
  ending: { readonly token: string; readonly reason: 'lost' | 'running-out' | 'overdue' | 'left-over' }
  /** Final: the lease was not held for as long as the command ran. `commandExitCode` is null when it was not started. */
  lost: {
    readonly token: string
    readonly reason: string
    readonly commandExitCode: number | null
    readonly exitCode: number
  }
  /** Final: the command is gone. `unknown`: the lease could not be given back, and is free after its TTL. */
  released: {
    readonly token: string
    readonly outcome: 'released' | 'unknown'
    readonly exitCode: number
  }
  /** Final: not granted within `--wait`. */
  conflict: InTheWay & { readonly waitedMs: number; readonly exitCode: number }
  /** Final: a signal came before the command was started. */
  stopped: { readonly signal: string; readonly exitCode: number }
  /** Final, unless the command could not be started: then `released` follows. */
  error: { readonly exitCode: number }
}

type RunEvent = keyof RunFacts

/** What text does not show unless there is something to say: a run that goes well is as quiet as its command. */
const untold: ReadonlySet<RunEvent> = new Set(['started', 'at-risk', 'released', 'stopped'])
/** What explains an exit code of fencepost's own. */
const needed: ReadonlySet<RunEvent> = new Set(['lost', 'conflict', 'error'])

/** A conflict that is skipped ends with 0, of which there is nothing to explain. */
function explainsCode(event: RunEvent, facts: object): boolean {
  return needed.has(event) && !('exitCode' in facts && facts.exitCode === 0)
}

export interface RunReportOptions {
  /** Null: wrong usage, of which nothing is known. */
  readonly lease: string | null
  readonly isJson?: boolean
  readonly isQuiet?: boolean
  readonly write: (line: string) => void
}

/** The voice of `fencepost run`: lines on stderr for people or, one JSON object per line, for programs. */
export class RunReport {
  readonly #options: RunReportOptions

  constructor(options: RunReportOptions) {
    this.#options = options
  }

  /** Nobody reads what is not needed, so what only serves to be told need not be found out. */
  get isQuiet(): boolean {
    return this.#options.isQuiet === true
  }

  /** `isTold: false` keeps it from people, but not from programs. */
  tell<Event extends RunEvent>(
    event: Event,
    message: string,
    facts: RunFacts[Event],
    { isTold = !untold.has(event) }: { readonly isTold?: boolean } = {},
  ): void {
    const { lease, isJson, write } = this.#options
    if (this.isQuiet && !explainsCode(event, facts)) return
    const said = withoutPasswords(message)
    if (isJson === true) {
      write(`${JSON.stringify({ event, time: new Date().toISOString(), lease, ...facts, message: said })}\n`)
    } else if (isTold) {
      write(`fencepost: ${said}\n`)
    }
  }

  warn(message: string): void {
    this.tell('warning', message, {})
  }
}
