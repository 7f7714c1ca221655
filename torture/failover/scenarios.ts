import type { Replication } from './pair.ts'

export type SequenceKind = 'counter' | 'clock'

export interface Scenario {
  readonly name: string
  readonly replication: Replication
  /** The standby is as far behind as the primary has come in the last 300 ms, and what it lacks is lost. */
  readonly isBehind: boolean
  /** The old primary is not killed, and half of the clients stay on it. */
  readonly isLeftAlive: boolean
  readonly kind: SequenceKind
}

const setups: readonly Omit<Scenario, 'kind'>[] = [
  setup('synchronous', 'synchronous'),
  setup('remote-apply', 'synchronous, remote_apply'),
  setup('synchronous-left-alive', 'synchronous', { isLeftAlive: true }),
  setup('asynchronous', 'asynchronous'),
  setup('behind', 'asynchronous', { isBehind: true }),
  setup('left-alive', 'asynchronous', { isLeftAlive: true }),
]

export const scenarios: readonly Scenario[] = setups.flatMap((each) =>
  (['counter', 'clock'] as const).map((kind) => ({ ...each, kind })),
)

export const setupNames: readonly string[] = setups.map(({ name }) => name)

function setup(
  name: string,
  replication: Replication,
  more: { readonly isBehind?: boolean; readonly isLeftAlive?: boolean } = {},
): Omit<Scenario, 'kind'> {
  return { name, replication, isBehind: false, isLeftAlive: false, ...more }
}
