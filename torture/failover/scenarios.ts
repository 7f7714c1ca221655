import type { Replication } from './pair.ts'

export type SequenceKind = 'counter' | 'clock'

export interface Scenario {
  readonly name: string
  readonly replication: Replication
  /** The standby is as far behind as the primary has come in the last 300 ms, and what it lacks is lost. */
  readonly isBehind: boolean
  /** The old primary is not killed, and half of the clients stay on it. */
  readonly isLeftAlive: boolean
  /** Of the token sequence. Where nothing may be lost it makes no difference, so both are taken in turn. */
  readonly kinds: readonly SequenceKind[]
}

interface Setup extends Omit<Scenario, 'kinds'> {
  /** For people. */
  readonly title: string
}

const setups: readonly Setup[] = [
  setup('synchronous', 'synchronous', 'synchronous'),
  setup('remote-apply', 'synchronous, `remote_apply`', 'synchronous, remote_apply'),
  setup('synchronous-left-alive', 'synchronous, old primary left alive', 'synchronous', {
    isLeftAlive: true,
  }),
  setup('asynchronous', 'asynchronous, standby close behind', 'asynchronous'),
  setup('behind', 'asynchronous, standby 0.3 s behind', 'asynchronous', { isBehind: true }),
  setup('left-alive', 'asynchronous, old primary left alive', 'asynchronous', { isLeftAlive: true }),
]

export const scenarios: readonly Scenario[] = setups.flatMap((each) =>
  (each.replication === 'asynchronous' ? [['counter'], ['clock']] : [['counter', 'clock']]).map((kinds) => ({
    ...each,
    kinds: kinds as SequenceKind[],
  })),
)

export const setupNames: readonly string[] = setups.map(({ name }) => name)

export const titles: ReadonlyMap<string, string> = new Map(setups.map(({ name, title }) => [name, title]))

function setup(
  name: string,
  title: string,
  replication: Replication,
  more: { readonly isBehind?: boolean; readonly isLeftAlive?: boolean } = {},
): Setup {
  return { name, title, replication, isBehind: false, isLeftAlive: false, ...more }
}
