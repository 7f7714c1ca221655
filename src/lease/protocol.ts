import type { Clock } from '../clock.ts'
import type { Connection, Request, TextRow } from '../database/connection.ts'
import { RequestFailure, isRetryable } from '../database/failure.ts'
import type { Contender } from '../errors.ts'
import { optionalNumber } from './lease-list.ts'
import type { Token } from './term.ts'

/** What a new holder tells about itself. Everything but the id is for people to read. */
export interface HolderIdentity {
  readonly id: string
  readonly label: string
  readonly host: string
  readonly pid: number
  readonly meta: Readonly<Record<string, unknown>>
}

/** Why a lease was not granted, in the words of `fencepost.acquire`. */
export interface Refusal {
  readonly reason: 'held' | 'draining' | 'contended' | 'not_yet' | 'sequence'
  readonly contender: Contender
}

export type AcquireAnswer =
  | { readonly isGranted: true; readonly token: Token }
  | { readonly isGranted: false; readonly refusal: Refusal }

/** All of the leases, with their tokens in the order of the names; or none, and what stands in the way. */
export type AcquireAllAnswer =
  | { readonly isGranted: true; readonly tokens: readonly Token[] }
  | { readonly isGranted: false; readonly name: string; readonly refusal: Refusal }

export type ReleaseAnswer = 'released' | 'not_held' | 'draining'

/** The holder has expired or ended, says the database. */
export function isHolderGone(error: unknown): boolean {
  return error instanceof RequestFailure && error.sqlState === 'FP002'
}

/** The attempt was given up by its sender. */
export function isVoided(error: unknown): boolean {
  return error instanceof RequestFailure && error.sqlState === 'FP004'
}

/** Statements that were rolled back for another one's sake are sent again at most so often. */
const maxRetries = 20

/**
 * One typed call per database function. Each holder's beats have a connection to themselves, so that they never queue
 * behind anything; all else shares one. Every method throws RequestFailure.
 */
export class Protocol {
  readonly #grants: Connection
  readonly #clock: Clock
  readonly #timeoutMs: number

  constructor(grants: Connection, clock: Clock, timeoutMs: number) {
    this.#grants = grants
    this.#clock = clock
    this.#timeoutMs = timeoutMs
  }

  /** Asks nothing, but finds out whether the database can be used at all. */
  async hello(): Promise<void> {
    await this.#call(this.#grants, { text: 'select 1' })
  }

  async join(holder: HolderIdentity, ttlMs: number): Promise<void> {
    await this.#call(this.#grants, {
      text: 'select fencepost.join_holder($1::uuid, $2::text, $3::text, $4::integer, $5::jsonb, $6::bigint)',
      values: [holder.id, holder.label, holder.host, holder.pid, JSON.stringify(holder.meta), ttlMs],
    })
  }

  /** True when the holder lives for another TTL, false when it has ended for good. */
  async beat(beats: Connection, holderId: string, timeoutMs: number): Promise<boolean> {
    const rows = await this.#call(beats, {
      name: 'fencepost_beat',
      text: 'select fencepost.beat($1::uuid) as alive',
      values: [holderId],
      timeoutMs,
    })
    return rows[0]?.['alive'] === 't'
  }

  async end(holderId: string): Promise<void> {
    await this.#call(this.#grants, { text: 'select fencepost.end_holder($1::uuid)', values: [holderId] })
  }

  /** The answers are in the order of the names. */
  async acquire(
    names: readonly string[],
    holderId: string,
    attempt: number,
    sequence: string,
  ): Promise<AcquireAnswer[]> {
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_acquire',
      text: 'select * from fencepost.acquire($1::text[], $2::uuid, $3::bigint, $4::text)',
      values: [names, holderId, attempt, sequence],
    })
    return inOrder(names, rows).map(readAcquireAnswer)
  }

  async acquireAll(
    names: readonly string[],
    holderId: string,
    attempt: number,
    sequence: string,
  ): Promise<AcquireAllAnswer> {
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_acquire_all',
      text: 'select * from fencepost.acquire_all($1::text[], $2::uuid, $3::bigint, $4::text)',
      values: [names, holderId, attempt, sequence],
    })
    const refused = rows.flatMap((row) => {
      const answer = readAcquireAnswer(row)
      return answer.isGranted
        ? []
        : [{ isGranted: false, name: row['name'] ?? '', refusal: answer.refusal } as const]
    })
    // Whoever waits, waits for the one that is to be had last.
    const last = refused.toSorted((a, b) => latenessMs(b.refusal) - latenessMs(a.refusal))[0]
    if (last !== undefined) return last
    return { isGranted: true, tokens: inOrder(names, rows).map((row) => BigInt(row['token'] ?? 0) as Token) }
  }

  /** The answers are in the order of the names. */
  async release(
    names: readonly string[],
    tokens: readonly Token[],
    holderId: string,
  ): Promise<ReleaseAnswer[]> {
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_release',
      text: 'select * from fencepost.release($1::text[], $2::bigint[], $3::uuid)',
      values: [names, tokens.map(String), holderId],
    })
    return inOrder(names, rows).map((row) => row['outcome'] as ReleaseAnswer)
  }

  /** Afterwards none of these attempts, by name, grants anything any more, and what they granted is given back. */
  async settle(holderId: string, attempts: ReadonlyMap<string, number>): Promise<void> {
    await this.#call(this.#grants, {
      text: 'select fencepost.void_attempts($1::uuid, $2::bigint)',
      values: [holderId, Math.max(...attempts.values())],
    })
    await this.#call(this.#grants, {
      text: 'select fencepost.give_back($1::uuid, $2::text[], $3::bigint[])',
      values: [holderId, [...attempts.keys()], [...attempts.values()]],
    })
  }

  async #call(
    connection: Connection,
    request: Omit<Request, 'timeoutMs'> & { readonly timeoutMs?: number },
  ): Promise<TextRow[]> {
    const timeoutMs = request.timeoutMs ?? this.#timeoutMs
    const due = this.#clock.monotonicMs() + timeoutMs
    for (let retries = 0; ; retries += 1) {
      try {
        const leftMs = Math.max(1, due - this.#clock.monotonicMs())
        return await connection.query({ ...request, timeoutMs: leftMs })
      } catch (error) {
        const again =
          error instanceof RequestFailure &&
          isRetryable(error.sqlState) &&
          retries < maxRetries &&
          this.#clock.monotonicMs() < due
        if (!again) throw error
      }
    }
  }
}

function inOrder(names: readonly string[], rows: readonly TextRow[]): TextRow[] {
  if (names.length === 1 && rows.length === 1) return [rows[0]!]
  const byName = new Map(rows.map((row) => [row['name'], row]))
  return names.map((name) => {
    const row = byName.get(name)
    if (row === undefined) {
      throw new RequestFailure('unknown', new Error(`the database gave no answer for lease "${name}"`))
    }
    return row
  })
}

/** When a refused lease may be free, roughly. One of another sequence never is. */
function latenessMs({ reason, contender }: Refusal): number {
  return reason === 'sequence' ? Number.POSITIVE_INFINITY : (contender.remainingMs ?? 0)
}

function readAcquireAnswer(row: TextRow): AcquireAnswer {
  const token = row['token']
  if (token !== null && token !== undefined) return { isGranted: true, token: BigInt(token) as Token }
  return {
    isGranted: false,
    refusal: {
      reason: row['reason'] as Refusal['reason'],
      contender: {
        label: row['label'] ?? undefined,
        host: row['host'] ?? undefined,
        pid: optionalNumber(row['pid']),
        since: optionalDate(row['since_ms']),
        remainingMs: optionalNumber(row['remaining_ms']),
      },
    },
  }
}

function optionalDate(text: string | null | undefined): Date | undefined {
  const ms = optionalNumber(text)
  return ms === undefined ? undefined : new Date(ms)
}
