import {
  type FencepostError,
  ForeignLeaseError,
  HolderExpiredError,
  ProtectedError,
  StaleTermError,
} from '../errors.ts'
import { type Fence, termsOf } from './fence.ts'
import { fenceFailure, protectedFailure, termAtFault } from './fence-failure.ts'

/** The SQLSTATEs of the fence. */
const ours = /^FP00\d$/

/** What the fence refuses with where it was met by fencepost itself. */
const refusals = [StaleTermError, HolderExpiredError, ForeignLeaseError, ProtectedError]

/**
 * Finds the database's refusal in whatever a client or an ORM throws, and gives it as fencepost's own error; undefined
 * when the error is about something else. Where it is hidden differs: `error.code` (pg, Knex, TypeORM, postgres.js),
 * `error.cause.code` (Drizzle), `error.meta.driverAdapterError.cause.code` (Prisma). The error itself stays as the
 * `cause` of what is returned.
 *
 * @param fence what the write was made under: a lease, a fenced transaction or an inherited fence. Without it only the
 * refusals of protected tables (`UNFENCED`, `WRONG_LEASE`) are recognised, because the others name a term.
 * @example
 * ```ts
 * import { refusalOf } from 'fencepost'
 *
 * try {
 *   await client.query('update accounts set status = $1', ['settled'])
 * } catch (error) {
 *   throw refusalOf(error, lease) ?? error
 * }
 * ```
 */
export function refusalOf(error: unknown, fence?: Fence): FencepostError | undefined {
  for (const layer of layersOf(error)) {
    if (refusals.some((refusal) => layer instanceof refusal)) return layer as unknown as FencepostError
    const code = ['code', 'originalCode', 'sqlState', 'sqlstate'].map((key) => layer[key]).find(isOurs)
    if (code === undefined) continue
    const met = { code, detail: layer['detail'] }
    const refusal =
      fence === undefined ? protectedFailure(met) : fenceFailure(met, termAtFault(met, termsOf(fence)))
    if (refusal !== undefined) refusal.cause = error
    return refusal
  }
  return undefined
}

function isOurs(code: unknown): code is string {
  return typeof code === 'string' && ours.test(code)
}

type Layer = Readonly<Record<string, unknown>>

/** An error and everything it wraps, from the outside in, each once: an error may wrap itself. */
function* layersOf(error: unknown): Generator<Layer> {
  const seen = new Set<unknown>()
  let layers: unknown[] = [error]
  while (layers.length > 0) {
    const inner: unknown[] = []
    for (const layer of layers) {
      if (typeof layer !== 'object' || layer === null || seen.has(layer)) continue
      seen.add(layer)
      const fields = layer as Layer
      yield fields
      inner.push(
        fields['cause'],
        fields['driverError'],
        fields['driverAdapterError'],
        fields['meta'],
        fields['original'],
        fields['originalError'],
        fields['parent'],
        ...(Array.isArray(fields['errors']) ? fields['errors'] : []),
      )
    }
    layers = inner
  }
}
