import { checkName } from '../lease/name.ts'
import { type Ask, asOperator } from './ask.ts'
import { checkToken } from './force-release.ts'

/** Has the next token of the sequence be greater than `floor`. Returns the last token as it is then. */
export async function raiseTokenFloor(ask: Ask, floor: bigint, sequence: string): Promise<bigint> {
  checkToken('floor', floor)
  checkName('sequence', sequence)
  const [row] = await asOperator(ask, 'raise_token_floor(text, bigint)', [
    'raise the tokens',
    'select fencepost.raise_token_floor($1::text, $2::bigint)::text as last_token',
    [sequence, floor.toString()],
  ])
  return BigInt(row?.['last_token'] ?? 0)
}
