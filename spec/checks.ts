import { compile, translate } from './compiled-model.ts'
import { type Explored, type Exploring, explore } from './explore.ts'
import { exactKey, plainKey } from './sameness.ts'
import type { World } from './world.ts'

export interface Checked {
  readonly name: string
  readonly explored: Explored<World>
  readonly isAsExpected: boolean
  /** Of processor time. */
  readonly seconds: number
}

const invariants = [
  'oneHolder',
  'tokensRise',
  'noStaleWrite',
  'endedIsFinal',
  'trustIsBacked',
  'noTokenTwice',
]
const onOneServer = [
  'takesOver',
  'lateBeatLoses',
  'lateBeatIsAsGood',
  'fenceKeepsTakerOut',
  'expiredFinishes',
]
const afterFailover = [...onOneServer, 'grantIsLost', 'tokensAreEqual']

/** What each of the controls in controls.qnt breaks. */
const controls: readonly (readonly [instance: string, invariant: string])[] = [
  ['noFenceLock', 'noStaleWrite'],
  ['tokenOnly', 'oneHolder'],
  ['takerLeavesHolder', 'trustIsBacked'],
  ['beatRevives', 'endedIsFinal'],
  ['trustFromReply', 'trustIsBacked'],
  ['noMargin', 'trustIsBacked'],
  ['releaseByName', 'trustIsBacked'],
  ['counterInRow', 'noTokenTwice'],
]

/** Far more than a weakened protocol needs to break. */
const maxControlStates = 200_000

/** Each check when it is done. `isFull`: not only as far as it goes in a minute. */
export async function* checkAll(file: string, isFull: boolean): AsyncGenerator<Checked> {
  const compiled = await compile(file, 'fencepost', 'sound')
  const check = (
    name: string,
    instance: string,
    exploring: Omit<Exploring<World>, 'model' | 'isSame'>,
    isExpected: (explored: Explored<World>) => boolean,
    step = 'step',
  ): Checked => {
    const model = translate<World>(compiled, instance, step)
    const startedAt = process.cpuUsage().user
    const explored = explore({ ...exploring, model, isSame })
    return {
      name,
      explored,
      isAsExpected: isExpected(explored),
      seconds: (process.cpuUsage().user - startedAt) / 1e6,
    }
  }

  yield check(
    'one server, three holders, two leases',
    'exhaustive',
    {
      key: exactKey({ trustWindow: 1, servers: [0] }),
      invariants,
      witnesses: onOneServer,
      ...(isFull ? {} : { maxDepth: depths.oneServer }),
    },
    ({ isComplete, violation, unseen }) =>
      isComplete === isFull && violation === undefined && unseen.length === 0,
    'call',
  )
  yield check(
    'a failover, three holders, two leases',
    'exhaustive',
    {
      key: exactKey({ trustWindow: 1, servers: [0, 1] }),
      invariants,
      witnesses: afterFailover,
      maxDepth: isFull ? depths.fullFailover : depths.failover,
    },
    ({ violation, unseen }) => violation === undefined && unseen.length === 0,
  )
  yield check(
    'tokens from the clock, and a failover that is seen',
    'clockTokens',
    {
      key: plainKey({ trustWindow: 1, isClock: true }),
      invariants: [...invariants, 'numbersAreNew'],
      witnesses: ['grantIsLost'],
      maxDepth: depths.clock,
    },
    ({ violation, unseen }) => violation === undefined && unseen.length === 0,
  )
  yield check(
    'the same with a counter',
    'countedTokens',
    { key: plainKey({ trustWindow: 1 }), invariants: ['numbersAreNew'], maxDepth: depths.clock },
    ({ violation }) => violation !== undefined,
  )
  for (const [instance, invariant] of controls) {
    yield check(
      instance,
      instance,
      {
        key: plainKey({ trustWindow: instance === 'noMargin' ? 2 : 1 }),
        invariants: [invariant],
        maxStates: maxControlStates,
      },
      ({ violation }) => violation !== undefined,
    )
  }
}

/** How many steps the checks go that have no end, or not within a minute. */
const depths = { oneServer: 13, failover: 8, fullFailover: 9, clock: 9 }

function isSame(from: World, to: World): boolean {
  return (
    from.servers === to.servers &&
    from.processes === to.processes &&
    from.txs === to.txs &&
    from.now === to.now
  )
}
