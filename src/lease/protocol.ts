import type { Clock } from '../clock.ts'
import type { Connection, Request, TextRow } from '../database/connection.ts'
import { RequestFailure, isRetryable } from '../database/failure.ts'
import type { Contender } from '../errors.ts'
import type { Logger } from '../logger.ts'
import { optionalNumber } from './lease-list.ts'
import type { Term, Token } from './term.ts'
import type { Wakes } from './wakes.ts'

/** What a new holder tells about itself. Everything but the id is for people to read. */
export interface HolderIdentity {
  readonly id: string
  readonly label: string
  readonly host: string
  readonly pid: number
  readonly meta: Readonly<Record<string, unknown>>
}

/** How a lease is asked for. Requests that are asked for alike travel together. */
export interface Asking {
  readonly sequence: string
  /** Where it is refused, stand in line. */
  readonly stands: boolean
  /** Do not mind those in line. */
  readonly barges: boolean
  readonly bounds: TermBounds
}

/** What is agreed about a term when it is granted. */
interface TermBounds {
  /** Nobody else is granted the lease for so long, even when it is released before. */
  readonly minHoldMs: number
  /** The term ends after so long. Infinity: never. */
  readonly maxHoldMs: number
  /** Nobody else is granted the lease for so long after the term, unless it was released. */
  readonly graceMs: number
}

/** Why a lease was not granted, in the words of `fencepost.acquire`. */
export interface Refusal {
  readonly reason: 'held' | 'queued' | 'draining' | 'contended' | 'not_yet' | 'sequence' | 'gone'
  readonly contender: Contender
  /** The place in line, for as long as it is valid. */
  readonly ticket: string | undefined
  /** Until then the passing of time alone does not bring the lease. */
  readonly againMs: number
}

export type AcquireAnswer =
  | {
      readonly isGranted: true
      readonly token: Token
      /** Until the end of its maximum hold, when the database answered. */
      readonly deadlineMs: number | undefined
    }
  | { readonly isGranted: false; readonly refusal: Refusal }

/** All of the leases, with their tokens in the order of the names; or none, and what stands in the way. */
export type AcquireAllAnswer =
  | { readonly isGranted: true; readonly tokens: readonly Token[] }
  | { readonly isGranted: false; readonly name: string; readonly refusal: Refusal }

export interface ReleaseAnswer {
  readonly outcome: 'released' | 'not_held' | 'draining'
  /** Straight to the next in line. */
  readonly isHandedOver: boolean
}

/** An attempt to acquire a lease whose answer was lost. */
export interface Unsettled {
  readonly name: string
  readonly attempt: number
}

/** The holder has expired or ended, says the database. */
export function isHolderGone(error: unknown): boolean {
  return error instanceof RequestFailure && error.sqlState === 'FP002'
}

/** The attempt was given up by its sender. */
export function isVoided(error: unknown): boolean {
  return error instanceof RequestFailure && error.sqlState === 'FP004'
}

/** Too many notifications that some session has not read yet. */
const queueIsFull = '54000'

/** Statements that were rolled back for another one's sake are sent again at most so often. */
const maxRetries = 20

/** So many leases that somebody waits for are remembered. */
const maxWaitedFor = 10_000

export interface ProtocolOptions {
  /** Where this process hears its wake-ups, and nobody else does. */
  readonly channel?: string | undefined
  readonly grants: Connection
  readonly clock: Clock
  readonly logger: Logger
  /** For everything about one request. */
  readonly timeoutMs: number
  /** Gets the wake-ups that come out of a request first; those for other processes are sent. */
  readonly wakes: Pick<Wakes, 'deliver' | 'ticketsOf'>
}

/**
 * One typed call per database function. Each holder's beats have a connection to themselves, so that they never queue
 * behind anything; all else shares one. Every method throws RequestFailure.
 */
export class Protocol {
  readonly #grants: Connection
  readonly #clock: Clock
  readonly #logger: Logger
  readonly #timeoutMs: number
  readonly #wakes: Pick<Wakes, 'deliver' | 'ticketsOf'>
  readonly #channel: string | undefined
  /** Leases that others waited for when they were last seen. */
  readonly #waitedFor = new Set<string>()
  #isMute = false

  constructor(options: ProtocolOptions) {
    this.#channel = options.channel
    this.#grants = options.grants
    this.#clock = options.clock
    this.#logger = options.logger
    this.#timeoutMs = options.timeoutMs
    this.#wakes = options.wakes
  }

  /** Whether a call may be sent before the last one has been answered. */
  get overlaps(): boolean {
    return !this.#grants.isPooled
  }

  async join(holder: HolderIdentity, ttlMs: number): Promise<void> {
    await this.#call(this.#grants, {
      text: 'select fencepost.join_holder($1::uuid, $2::text, $3::text, $4::integer, $5::jsonb, $6::bigint, $7::text)',
      values: [
        ...[holder.id, holder.label, holder.host, holder.pid],
        ...[JSON.stringify(holder.meta), ttlMs, this.#channel ?? null],
      ],
    })
  }

  /** True when the holder lives for another TTL, false when it has ended for good. */
  async beat(beats: Connection, holderId: string, timeoutMs: number): Promise<boolean> {
    const whereabouts = beats.whereaboutsList
    const [row = {}] = await this.#call(beats, {
      name: 'fencepost_beat',
      text: `select fencepost.beat($1::uuid) as alive${whereabouts === undefined ? '' : `, ${whereabouts}`}`,
      values: [holderId],
      timeoutMs,
    })
    if (whereabouts !== undefined) beats.ledTo(row)
    return row['alive'] === 't'
  }

  /**
   * Which of the holder's terms the server that gets its beats does not know: by the name of the lease, the token under which that is the
   * holder's there, if it is.
   */
  async missing(
    beats: Connection,
    holderId: string,
    terms: readonly Pick<Term, 'lease' | 'token'>[],
  ): Promise<Map<string, Token | undefined>> {
    const rows = await this.#call(beats, {
      text: 'select name, token from fencepost.missing_terms($1::uuid, $2::text[], $3::bigint[])',
      values: [holderId, terms.map(({ lease }) => lease), terms.map(({ token }) => token.toString())],
    })
    return new Map(
      rows.map(({ name, token }) => [name ?? '', token == null ? undefined : (BigInt(token) as Token)]),
    )
  }

  /** What the database takes for the holder's terms, by attempts up to this one, apart from these leases. It reads all leases. */
  async strays(
    holderId: string,
    known: readonly string[],
    attempt: number,
  ): Promise<{ readonly term: Term; readonly ticket: string | undefined }[]> {
    const rows = await this.#call(this.#grants, {
      text: 'select name, token, sequence, ticket from fencepost.stray_terms($1::uuid, $2::text[], $3::bigint)',
      values: [holderId, known, attempt],
    })
    return rows.map(({ name, token, sequence, ticket }) => ({
      term: {
        lease: name ?? '',
        token: BigInt(token ?? 0) as Token,
        holderId,
        sequence: sequence ?? 'default',
      },
      ticket: ticket ?? undefined,
    }))
  }

  /** Ends the holder, so that its leases are free at once, and lets those go on that somebody waits for. */
  async end(holderId: string): Promise<void> {
    await this.#call(this.#grants, { text: 'select fencepost.end_holder($1::uuid)', values: [holderId] })
    const rows = await this.#call(this.#grants, {
      text: 'select fencepost.hand_on($1::uuid) as wake',
      values: [holderId],
    })
    this.#wake(wakesOf(rows))
  }

  /** The answers are in the order of the names. */
  async acquire(
    names: readonly string[],
    holderId: string,
    attempt: number,
    asking: Asking,
  ): Promise<AcquireAnswer[]> {
    const { sequence, stands, barges, bounds } = asking
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_acquire',
      text:
        `select ${acquireColumns} from fencepost.acquire_batch($1::text[], $2::uuid, $3::bigint, $4::text, ` +
        '$5::boolean, $6::boolean, $7::bigint, $8::bigint, $9::bigint)',
      values: [textArray(names), holderId, attempt, sequence, stands, barges, ...boundValues(bounds)],
    })
    const all = answerForAll(rows)
    if (all === undefined) return inOrder(names, rows).map(readAcquireAnswer)
    const first = BigInt(all['token'] ?? 0)
    const deadlineMs = optionalNumber(all['deadline_ms'])
    return names.map((_, place) => {
      return { isGranted: true, token: (first + BigInt(place)) as Token, deadlineMs }
    })
  }

  /** Asks again for those who stand in line. It may be repeated: a ticket is good for one grant. */
  async askAgain(
    names: readonly string[],
    tickets: readonly string[],
    holderId: string,
    sequence: string,
  ): Promise<AcquireAnswer[]> {
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_ask_again',
      text:
        `select ${acquireColumns} from fencepost.acquire($1::text[], $2::uuid, p_sequence => $3::text, ` +
        'p_tickets => $4::bigint[])',
      values: [names, holderId, sequence, tickets],
    })
    return inOrder(names, rows).map(readAcquireAnswer)
  }

  async acquireAll(
    names: readonly string[],
    holderId: string,
    attempt: number,
    asking: Asking,
  ): Promise<AcquireAllAnswer> {
    const { sequence, barges, bounds } = asking
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_acquire_all',
      text:
        'select name, token, reason, label, host, pid, since_ms, remaining_ms from fencepost.acquire_all($1::text[], ' +
        '$2::uuid, $3::bigint, $4::text, $5::boolean, $6::bigint, $7::bigint, $8::bigint)',
      values: [names, holderId, attempt, sequence, barges, ...boundValues(bounds)],
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
    if (names.length === 1 && this.#waitedFor.has(names[0]!)) {
      return [await this.#handOver(names[0]!, tokens[0]!, holderId)]
    }
    const rows = await this.#call(this.#grants, {
      name: 'fencepost_release',
      text: 'select name, outcome, wake from fencepost.release_batch($1::text[], $2::bigint[], $3::uuid)',
      values: [textArray(names), `{${tokens.join(',')}}`, holderId],
    })
    if (answerForAll(rows) !== undefined) return names.map(() => released)
    this.#wake(wakesOf(rows))
    for (const { name, wake } of rows) if (name != null && wake != null) this.rememberWaitedFor(name)
    return inOrder(names, rows).map((row) => {
      const outcome = row['outcome'] as ReleaseAnswer['outcome']
      return { outcome, isHandedOver: row['wake']?.includes(':') === true }
    })
  }

  /** Somebody stood in line for the lease just now, so it is likely that somebody does when it is given back. */
  rememberWaitedFor(name: string): void {
    this.#waitedFor.delete(name)
    this.#waitedFor.add(name)
    const [oldest] = this.#waitedFor
    if (this.#waitedFor.size > maxWaitedFor && oldest !== undefined) this.#waitedFor.delete(oldest)
  }

  /** The statement that hands the lease over also wakes the next in line, after it has committed. */
  async #handOver(name: string, token: Token, holderId: string): Promise<ReleaseAnswer> {
    const here = this.#wakes.ticketsOf(name)
    const [row] = await this.#call(this.#grants, {
      name: 'fencepost_hand_over',
      text: 'call fencepost.hand_over($1::text, $2::bigint, $3::uuid, $4::bigint[])',
      values: [name, token.toString(), holderId, here],
    })
    const wakes = row?.['wakes']?.split(' ') ?? []
    if (wakes.length === 0) this.#waitedFor.delete(name)
    const isSent = row?.['is_sent'] === 't'
    // Somebody who was here may have left meanwhile, and then it has not been sent.
    this.#wake(isSent ? wakes.filter((wake) => here.includes(wake.split(':', 1)[0]!)) : wakes)
    return {
      outcome: row?.['outcome'] as ReleaseAnswer['outcome'],
      isHandedOver: row?.['is_handed_over'] === 't',
    }
  }

  /** Leaves the line; what was granted meanwhile goes on. False: somebody works on the lease right now, ask again. */
  async leave(holderId: string, names: readonly string[], tickets: readonly string[]): Promise<boolean[]> {
    const rows = await this.#call(this.#grants, {
      text: 'select name, outcome, wake from fencepost.leave($1::uuid, $2::text[], $3::bigint[])',
      values: [holderId, names, tickets],
    })
    this.#wake(wakesOf(rows))
    return inOrder(names, rows).map((row) => row['outcome'] === 'left')
  }

  /** Lets a term end by itself. False: ask again. */
  async limitTerm(name: string, token: Token, holderId: string, withinMs: number): Promise<boolean> {
    const rows = await this.#call(this.#grants, {
      text: 'select outcome, wake from fencepost.limit_term($1::text, $2::bigint, $3::uuid, $4::bigint)',
      values: [name, token.toString(), holderId, Math.ceil(withinMs)],
    })
    this.#wake(wakesOf(rows))
    return rows[0]?.['outcome'] !== 'draining'
  }

  /** Afterwards none of these attempts grants anything or stands in line any more, and what they were granted is given back. */
  async settle(holderId: string, attempts: readonly Unsettled[]): Promise<void> {
    await this.#call(this.#grants, {
      text: 'select fencepost.void_attempts($1::uuid, $2::bigint)',
      values: [holderId, Math.max(...attempts.map(({ attempt }) => attempt))],
    })
    const rows = await this.#call(this.#grants, {
      text: 'select fencepost.give_back($1::uuid, $2::text[], $3::bigint[]) as wake',
      values: [holderId, attempts.map(({ name }) => name), attempts.map(({ attempt }) => attempt)],
    })
    this.#wake(wakesOf(rows))
  }

  /** Sends a notification on the channel of the wake-ups. */
  async notify(payloads: readonly string[]): Promise<void> {
    // As fencepost.wake() does it, in fewer steps: somebody is waiting for nothing but this.
    const request = {
      name: 'fencepost_wake',
      text:
        `select pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify(coalesce(nullif(` +
        `pg_catalog.split_part(wake, ':', 4), ''), 'fencepost'), wake) from pg_catalog.unnest($1::text[]) wake`,
      values: [payloads],
    }
    try {
      await this.#call(this.#grants, request)
    } catch (error) {
      if (!(error instanceof RequestFailure) || error.sqlState !== queueIsFull) throw error
      // A queue that was full stays so after everybody has read it, until somebody asks how full it is.
      await this.#call(this.#grants, { text: 'select pg_catalog.pg_notification_queue_usage()' })
      await this.#call(this.#grants, request)
    }
  }

  /** Whoever is to be woken is here, or is told by a statement of its own, whose failure is no failure of the request. */
  #wake(all: readonly string[]): void {
    const wakes = all.filter((wake) => !this.#wakes.deliver(wake))
    if (wakes.length === 0) return
    this.notify(wakes).then(
      () => {
        this.#isMute = false
      },
      (error: unknown) => {
        // Once for each time that it stops working.
        if (!this.#isMute) {
          this.#logger.warn(
            `fencepost: wake-ups cannot be sent, waiters find out by asking: ${String(error)}`,
          )
        }
        this.#isMute = true
      },
    )
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

const released: ReleaseAnswer = { outcome: 'released', isHandedOver: false }

/** The row of a batch that has gone as it nearly always goes: see migrations/0008. */
function answerForAll(rows: readonly TextRow[]): TextRow | undefined {
  const [row] = rows
  return rows.length === 1 && row!['name'] === null ? row : undefined
}

/** As PostgreSQL reads it: `pg` writes an array too, one element after the other into a string that grows. */
function textArray(texts: readonly string[]): string {
  return `{${texts.map((text) => `"${text.replaceAll(/["\\]/g, String.raw`\$&`)}"`).join(',')}}`
}

function wakesOf(rows: readonly TextRow[]): string[] {
  return rows.flatMap(({ wake }) => wake ?? [])
}

function inOrder(names: readonly string[], rows: readonly TextRow[]): TextRow[] {
  if (names.length === 1 && rows[0]?.['name'] === names[0]) return [rows[0]!]
  const byName = new Map(rows.map((row) => [row['name'], row]))
  return names.map((name) => {
    const row = byName.get(name)
    if (row === undefined) {
      throw new RequestFailure('unknown', new Error(`the database gave no answer for lease "${name}"`))
    }
    return row
  })
}

/** Named one by one, so that a plan outlives the columns that a later schema adds. */
const acquireColumns =
  'name, token, reason, label, host, pid, since_ms, remaining_ms, ticket, again_ms, deadline_ms'

function boundValues({ minHoldMs, maxHoldMs, graceMs }: TermBounds): (number | null)[] {
  return [minHoldMs, Number.isFinite(maxHoldMs) ? maxHoldMs : null, graceMs]
}

/** When a refused lease may be free, roughly. One of another sequence never is. */
function latenessMs({ reason, contender }: Refusal): number {
  return reason === 'sequence' ? Number.POSITIVE_INFINITY : (contender.remainingMs ?? 0)
}

function readAcquireAnswer(row: TextRow): AcquireAnswer {
  const token = row['token']
  if (token !== null && token !== undefined) {
    return {
      isGranted: true,
      token: BigInt(token) as Token,
      deadlineMs: optionalNumber(row['deadline_ms']),
    }
  }
  return {
    isGranted: false,
    refusal: {
      reason: row['reason'] as Refusal['reason'],
      ticket: row['ticket'] ?? undefined,
      againMs: optionalNumber(row['again_ms'] ?? row['remaining_ms']) ?? 0,
      contender: {
        isInLine: row['reason'] === 'queued',
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
