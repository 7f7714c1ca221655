import { InvalidArgumentError } from '../errors.ts'
import { checkName } from '../lease/name.ts'
import { type Ask, asOperator } from './ask.ts'
import { checkToken } from './force-release.ts'

/** Half of all tokens: what is raised is never lowered, and at 2^63 - 1 no lease of the sequence can be granted any more. */
const highestFloor = 2n ** 62n

/** Has the next token of the sequence be greater than `floor`. Returns the last token as it is then. */
export async function raiseTokenFloor(ask: Ask, floor: bigint, sequence: string): Promise<bigint> {
  checkToken('floor', floor)
  if (floor > highestFloor) {
    throw new InvalidArgumentError(
      'floor',
      floor,
      `floor must be at most ${highestFloor} (2^62), because it can never be lowered and tokens end at 2^63 - 1; got ${floor}`,
    )
  }
  checkName('sequence', sequence)
  const [row] = await asOperator(ask, 'raise_token_floor(text, bigint)', [
    'raise the tokens',
    'select fencepost.raise_token_floor($1::text, $2::bigint)::text as last_token',
    [sequence, floor.toString()],
  ])
  return BigInt(row?.['last_token'] ?? 0)
}
