import type { TextRow } from '../database/connection.ts'
import { show } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { optionalNumber } from '../lease/lease-list.ts'
import { checkName } from '../lease/name.ts'
import { type Ask, asOperator } from './ask.ts'

/**
 * How a token sequence goes on. `counter`: one more than the last token. `clock`: the same, but never less than the microseconds since 1970 of
 * the database's clock, so that after a failover, a restore or a move that has lost the last grants no number is handed out twice.
 */
export type SequenceKind = 'counter' | 'clock'

/** A token sequence, as the view `fencepost.sequences` shows it. */
export interface SequenceInfo {
  readonly name: string
  readonly kind: SequenceKind
  /** The last token that was drawn, or below which none may be drawn; 0 when none was. */
  readonly lastToken: bigint
  /**
   * Of a clock sequence: how far its last token is ahead of the clock, in milliseconds, mostly 0. Until the clock has caught up it counts,
   * and what a counter does not survive it does not survive either. Undefined for a counter.
   */
  readonly aheadMs: number | undefined
}

const kinds: readonly unknown[] = ['counter', 'clock'] satisfies SequenceKind[]

export const listSequences = `
  select s.name, s.kind, s.last_token::text as last_token, (extract(epoch from s.ahead) * 1000)::bigint::text as ahead_ms
    from fencepost.sequences s
   order by s.name`

export function readSequenceInfo(row: TextRow): SequenceInfo {
  return {
    name: row['name'] ?? '',
    kind: row['kind'] as SequenceKind,
    lastToken: BigInt(row['last_token'] ?? 0),
    aheadMs: optionalNumber(row['ahead_ms']),
  }
}

/** Makes the sequence, or has it go on in this way. Returns its last token. */
export async function setSequenceKind(ask: Ask, name: string, kind: SequenceKind): Promise<bigint> {
  checkName('the name of a sequence', name)
  if (!kinds.includes(kind)) {
    throw new InvalidArgumentError('kind', kind, `kind must be "counter" or "clock"; got ${show(kind)}`)
  }
  const [row] = await asOperator(ask, 'set_sequence_kind(text, text)', [
    `make "${name}" a ${kind} sequence`,
    'select fencepost.set_sequence_kind($1::text, $2::text)::text as last_token',
    [name, kind],
  ])
  return BigInt(row?.['last_token'] ?? 0)
}
