import { durationMs, type Duration } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { checkName } from '../lease/name.ts'
import type { Term, Token } from '../lease/term.ts'
import { fenceFailure, termAtFault } from './fence-failure.ts'

/**
 * Anything that a fenced write can be made under: a lease, a fenced transaction, or a fence inherited from a parent
 * process.
 */
export interface Fence {
  /** The term, or the first of several. */
  readonly term: Term
  /** All terms, where there are several (see `Leases`). */
  readonly terms?: readonly Term[] | undefined
  /** Throws when this process already knows that the term is over. */
  assertHeld?(): void
}

/** SQL with its parameters, in the form that `pg` and most other clients take. */
export interface Statement {
  readonly text: string
  readonly values: unknown[]
}

/** Bounds that the server puts on a fenced transaction. */
export interface FenceBounds {
  /**
   * How long the client may be silent inside the transaction before the server ends the session, so that a paused
   * holder does not keep the lease. A duration, or false for no bound. Default: the holder's TTL. A stricter
   * `idle_in_transaction_session_timeout` of the session stays.
   */
  readonly idleTimeout?: Duration | false | undefined
  /**
   * Bound on the whole transaction on PostgreSQL 17 and later, on each statement before. Default: none, because a
   * healthy holder's long statement is not to be cut off. It is also the only bound that catches a client that stops
   * while it reads a large result, and only on 17 and later.
   */
  readonly timeout?: Duration | undefined
}

const dayMs = 86_400_000

export function termsOf(fence: Fence): readonly Term[] {
  return fence.terms ?? [fence.term]
}

/** The call that begins fenced work, whatever it is called with. */
export const fenceText =
  'select fencepost.fence($1::text, $2::bigint, $3::uuid, $4::bigint, $5::bigint) as token'

/** The call that begins fenced work, with its parameters. */
export function fenceStatement(term: Term, bounds: FenceBounds = {}): Statement {
  const { idleMs, timeoutMs } = boundsInMs(bounds)
  return { text: fenceText, values: [term.lease, term.token.toString(), term.holderId, idleMs, timeoutMs] }
}

/** The call of one term, in both forms. */
export interface FenceCall {
  readonly literal: string
  /** Of `fenceText`. */
  readonly values: readonly (string | null)[]
}

const calls = new WeakMap<Term, FenceCall>()

/** A call for each term of a fence. Bounds that are out of range are refused here. */
export function fenceCallsOf(fence: Fence, bounds: FenceBounds): FenceCall[] {
  return termsOf(fence).map((term) => fenceCallOf(term, bounds))
}

function fenceCallOf(term: Term, bounds: FenceBounds): FenceCall {
  const isBounded = bounds.idleTimeout !== undefined || bounds.timeout !== undefined
  const known = isBounded ? undefined : calls.get(term)
  if (known !== undefined) return known
  const { idleMs, timeoutMs } = boundsInMs(bounds)
  const values = [
    term.lease,
    term.token.toString(),
    term.holderId,
    numberOrNull(idleMs),
    numberOrNull(timeoutMs),
  ]
  const literals = [
    quote(term.lease),
    term.token.toString(),
    `${quote(term.holderId)}::uuid`,
    idleMs ?? 'null',
    timeoutMs ?? 'null',
  ]
  const call = { literal: `select fencepost.fence(${literals.join(', ')})`, values }
  // Every transaction of a term begins with it.
  if (!isBounded) calls.set(term, call)
  return call
}

function numberOrNull(ms: number | null): string | null {
  return ms === null ? null : String(ms)
}

/** The same call as a statement without parameters, for sending it together with `begin`. */
export function fenceLiteral(term: Term, bounds: FenceBounds): string {
  return fenceCallOf(term, bounds).literal
}

/** The same for all terms of a fence: several calls in one message. */
export function fenceLiterals(fence: Fence, bounds: FenceBounds): string {
  return termsOf(fence)
    .map((term) => fenceLiteral(term, bounds))
    .join('; ')
}

/** What `lease.fence` needs of a database client: `pg`'s Client and PoolClient have it. */
export interface QueryClient {
  query(statement: { text: string; values: unknown[] }): Promise<unknown>
  /** `I` when no transaction is open. Recent versions of `pg` tell it. */
  getTransactionStatus?(): string | null
}

/** Fences the transaction that is open on the client. Must be its first statement after `begin`. */
export async function fenceClient(
  fence: Fence,
  client: QueryClient,
  bounds: FenceBounds = {},
): Promise<void> {
  const statements = termsOf(fence).map((term) => fenceStatement(term, bounds))
  fence.assertHeld?.()
  if (client.getTransactionStatus?.() === 'I') {
    throw new InvalidArgumentError(
      'client',
      client,
      'no transaction is open on the client, so a fence would guard nothing: send "begin" first',
    )
  }
  try {
    // oxlint-disable-next-line no-await-in-loop -- A client sends one statement after the other anyway.
    for (const { text, values } of statements) await client.query({ text, values })
  } catch (error) {
    throw fenceFailure(error, termAtFault(error, termsOf(fence))) ?? error
  }
}

/**
 * The fence as libpq takes it from the environment variable PGOPTIONS: every transaction of such a session that writes a
 * protected table is fenced by the term. For psql, pg_restore, and whatever else is built on libpq or on `pg`.
 */
export function fencePgOptions(term: Term): string {
  const fence = `${term.token}:${term.holderId}:${term.lease}`
  // The server splits the options at blanks that no backslash precedes.
  return `-c fencepost.fence=${fence.replaceAll(/[\\\s]/g, (character) => `\\${character}`)}`
}

/** The environment variables that hand a fence to a child process. */
export function fenceEnvironment(term: Term): Record<string, string> {
  return {
    FENCEPOST_LEASE: term.lease,
    FENCEPOST_TOKEN: term.token.toString(),
    FENCEPOST_HOLDER: term.holderId,
    FENCEPOST_SEQUENCE: term.sequence,
    FENCEPOST_FENCE_SQL: `${fenceLiteral(term, {})};`,
    FENCEPOST_PGOPTIONS: fencePgOptions(term),
  }
}

/**
 * The fence that `fencepost run` (or a parent process that passed these variables on) put into the environment. The
 * child's writes are then fenced by the parent's term. The child does not know when the lease is lost: the database
 * does, and refuses.
 *
 * @throws InvalidArgumentError when a variable is missing or malformed.
 * @example
 * ```ts
 * import { fencedTransaction, inheritedFence } from 'fencepost'
 *
 * await fencedTransaction(inheritedFence(), db, async (tx) => {
 *   await tx.updateTable('accounts').set({ status: 'settled' }).where('id', '=', 7).execute()
 * })
 * ```
 */
export function inheritedFence(env: Readonly<Record<string, string | undefined>> = process.env): Fence {
  const variable = (name: string, form: RegExp): string => {
    const value = env[name]
    if (value === undefined || !form.test(value)) {
      throw new InvalidArgumentError(
        name,
        // A malformed secret is still one.
        undefined,
        `${name} is ${value === undefined ? 'not set' : 'malformed'}: run this program under "fencepost run LEASE -- …"`,
      )
    }
    return value
  }
  const token = BigInt(variable('FENCEPOST_TOKEN', /^\d{1,19}$/)) as Token
  return {
    term: {
      lease: checkName('FENCEPOST_LEASE', env['FENCEPOST_LEASE']),
      token,
      holderId: variable('FENCEPOST_HOLDER', /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/),
      sequence: checkName('FENCEPOST_SEQUENCE', env['FENCEPOST_SEQUENCE'] ?? 'default'),
    },
  }
}

/** Null for what was not said; an idle bound of 0 for none. */
export function boundsInMs(bounds: FenceBounds): { idleMs: number | null; timeoutMs: number | null } {
  const { idleTimeout, timeout } = bounds
  return {
    idleMs:
      idleTimeout === undefined
        ? null
        : idleTimeout === false
          ? 0
          : durationMs('idleTimeout', idleTimeout, { minMs: 1, maxMs: dayMs }),
    timeoutMs: timeout === undefined ? null : durationMs('timeout', timeout, { minMs: 1, maxMs: dayMs }),
  }
}

/** A string literal that means the same whatever `standard_conforming_strings` says. */
function quote(text: string): string {
  const doubled = text.replaceAll("'", "''")
  return doubled.includes('\\') ? ` E'${doubled.replaceAll('\\', '\\\\')}'` : `'${doubled}'`
}
