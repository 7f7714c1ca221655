import { type Ask, asOperator } from './ask.ts'

/** So many leases are forgotten in one transaction: it stays short, whatever there is to do. */
const atOnce = 10_000

/** Forgets what is older, step by step. Returns how many leases were forgotten. */
export async function purge(
  ask: Ask,
  olderThanMs: number,
  onProgress: (forgotten: number) => void,
): Promise<number> {
  for (let forgotten = 0; ;) {
    // oxlint-disable-next-line no-await-in-loop -- One after the other is the point.
    const [row] = await asOperator(ask, 'purge_some(interval, bigint)', [
      'purge',
      `select fencepost.purge_some($1::bigint * interval '1 ms', $2::bigint)::text as forgotten`,
      [olderThanMs, atOnce],
    ])
    const count = Number(row?.['forgotten'])
    forgotten += count
    if (count < atOnce) return forgotten
    onProgress(forgotten)
  }
}
