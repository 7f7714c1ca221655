import { randomUUID } from 'node:crypto'
import { RequestFailure, describeFailure } from '../database/failure.ts'
import { NotAcquiredError, SequenceMismatchError } from '../errors.ts'
import type { Asking, HolderIdentity, Protocol } from './protocol.ts'
import type { Term } from './term.ts'

/**
 * Asks once for a term that nobody renews: it has a holder of its own, which expires by itself. For work that outlives this
 * process, such as a shell's.
 */
export async function takeFixedTerm(
  protocol: Protocol,
  identity: Omit<HolderIdentity, 'id'>,
  request: { readonly name: string; readonly ttlMs: number; readonly asking: Asking },
): Promise<Term> {
  const { name, ttlMs, asking } = request
  const { sequence } = asking
  const holderId = randomUUID()
  try {
    await protocol.join({ ...identity, id: holderId }, ttlMs)
    const [answer] = await protocol.acquire([name], holderId, 1, asking)
    if (answer?.isGranted === true) return { lease: name, token: answer.token, holderId, sequence }
    const contender = answer?.refusal.contender
    throw answer?.refusal.reason === 'sequence'
      ? new SequenceMismatchError(name, sequence, contender?.label ?? 'unknown')
      : new NotAcquiredError(name, 0, contender)
  } catch (error) {
    // What may have been granted is given back with its holder, now or at its expiry.
    await protocol.end(holderId).catch(() => {})
    throw error instanceof RequestFailure ? describeFailure(error, `take a term of lease "${name}"`) : error
  }
}
