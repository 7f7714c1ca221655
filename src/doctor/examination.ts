import type { Client } from 'pg'
import type { TextRow } from '../database/connection.ts'
import { isConnectionState, sqlStateOf } from '../database/failure.ts'
import type { Finding, FindingCode, FixKind, Severity } from './finding.ts'

/** What a query looks at, for the note that is left when it may not. */
export interface Subject {
  readonly what: string
  /** The right that it takes, as somebody would grant it. */
  readonly needs: string
}

/** What everything else depends on, read first. */
export interface Facts {
  readonly version: number
  readonly versionText: string
  readonly database: string
  readonly isInRecovery: boolean
  readonly hasSchema: boolean
  /** The body of fencepost.schema_version(), which names the version; undefined when there is none. */
  readonly schemaSource: string | undefined
  /** Tables and views of the schema. */
  readonly relations: ReadonlySet<string>
}

/** Whether the database only guards data whose leases live elsewhere. */
export function isFenceOnly({ relations }: Facts): boolean {
  return relations.has('highest_token')
}

/** How long things may last before they are worth a finding. */
export interface Limits {
  /** A silent session or prepared transaction that keeps a lease. */
  readonly idleMs: number
  readonly longFencedMs: number
  readonly longMs: number
  /** Blocks of a table that may be read in search of stamps when no index helps. */
  readonly sampledBlocks: number
}

export const usualLimits: Limits = {
  idleMs: 60_000,
  longFencedMs: 300_000,
  longMs: 3_600_000,
  sampledBlocks: 2000,
}

/** How a finding is mended. */
export interface Fix {
  readonly kind: FixKind
  readonly text: string
}

export const sql = (text: string): Fix => ({ kind: 'sql', text })
export const advice = (text: string): Fix => ({ kind: 'advice', text })

/** A command for the shell, each word quoted where it must be. */
export function command(...words: readonly string[]): Fix {
  const quoted = words.map((word) =>
    /^[\w./:@%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`,
  )
  return { kind: 'command', text: quoted.join(' ') }
}

/** Room for the locks and plans of a look: it must neither wait for long nor hold anybody up. */
const begin = `begin transaction isolation level read committed read only;
set local search_path to pg_catalog;
set local lock_timeout to '2s';
set local statement_timeout to '10s'`

/**
 * One run of the doctor: it looks, through a session of its own and in read-only transactions that end with each check, and
 * gathers what it finds. What it may not look at becomes a note.
 */
export class Examination {
  readonly facts: Facts
  readonly limits: Limits
  readonly findings: Finding[] = []
  readonly checked: string[] = []
  readonly #client: Client
  #isOpen = false

  constructor(client: Client, facts: Facts, limits: Limits) {
    this.#client = client
    this.facts = facts
    this.limits = limits
  }

  /** Runs one check. Its transaction, and with it every lock that its looks took, ends here. */
  async check(name: string, run: (exam: Examination) => Promise<void>): Promise<void> {
    this.checked.push(name)
    try {
      await run(this)
    } finally {
      await this.letGo()
    }
  }

  /** Ends the transaction early, and with it the locks on tables of the user's own: whoever alters one waits for them. */
  async letGo(): Promise<void> {
    await this.#end('commit')
  }

  /** The rows, all values as text; undefined when they could not be had, which leaves a note. */
  async look(
    subject: Subject,
    text: string,
    values: readonly unknown[] = [],
  ): Promise<TextRow[] | undefined> {
    try {
      return await this.ask(text, values)
    } catch (error) {
      this.couldNotLook(subject, error)
      return undefined
    }
  }

  /** As `look`, for a caller that knows what an error means. */
  async ask(text: string, values: readonly unknown[] = []): Promise<TextRow[]> {
    try {
      if (!this.#isOpen) await this.#client.query(begin)
      this.#isOpen = true
      return (await this.#client.query<TextRow>(text, [...values])).rows
    } catch (error) {
      await this.#end('rollback')
      throw error
    }
  }

  found(code: FindingCode, severity: Severity, object: string, what: string, fix: Fix): void {
    this.findings.push({ code, severity, object, what, fix: fix.text, fixKind: fix.kind })
  }

  /** Leaves the note that something could not be looked at; a lost connection is thrown on. */
  couldNotLook(subject: Subject, error: unknown): void {
    const sqlState = sqlStateOf(error)
    if (sqlState === undefined || isConnectionState(sqlState)) throw error
    const reason =
      sqlState === '42501'
        ? `it needs ${subject.needs}`
        : sqlState === '57014' || sqlState === '55P03'
          ? 'it would have taken too long'
          : `the server answered ${sqlState} (${(error as Error).message})`
    this.found(
      'not-checked',
      'note',
      subject.what,
      `The doctor could not look at ${subject.what}: ${reason}.`,
      advice(
        sqlState === '42501'
          ? `Run it again as a role with ${subject.needs}; the owner of the schema or a superuser sees everything.`
          : 'Run it again, at a quieter time or as the owner of the schema.',
      ),
    )
  }

  async #end(how: 'commit' | 'rollback'): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    await this.#client.query(how)
  }
}

/** `a`, `a and b`, `a, b and c`. */
export function enumerate(words: readonly string[]): string {
  return words.length < 2 ? (words[0] ?? '') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)!}`
}
