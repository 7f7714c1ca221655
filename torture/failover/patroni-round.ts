import { setTimeout as sleep } from 'node:timers/promises'
import { Fencepost } from '../../src/index.ts'
import type { DebianFolder } from '../../test/support/debian-server.ts'
import { Crew } from './crew.ts'
import { Haproxy } from './haproxy.ts'
import { type Verdict, judge } from './judge.ts'
import { keepLedger, readLedger } from './ledger.ts'
import type { Outside } from './outside.ts'
import { PatroniCluster, type PatroniNode } from './patroni.ts'
import { ask } from './pair.ts'
import type { SequenceKind } from './scenarios.ts'
import type { Told } from './told.ts'

export interface PatroniOutcome extends Verdict {
  /** From the order to switch over, and from the death of the primary, until somebody was told of a grant of the next one. */
  readonly switchoverMs: number
  readonly failoverMs: number
  /** Grants and writes that were answered before the second node granted anything, and are gone. */
  readonly lostInSwitchover: number
}

/** A switchover, and then the death of the new primary, with clients at work all the time. */
export async function patroniOnce(
  folder: DebianFolder,
  outside: Outside,
  isSynchronous: boolean,
  kind: SequenceKind,
): Promise<PatroniOutcome> {
  outside.newRound()
  await using cluster = await PatroniCluster.start(folder, isSynchronous)
  const first = (await cluster.primary())!
  await Fencepost.migrate({ connectionString: urlOf(first) })
  await keepLedger({ url: urlOf(first) })
  await ask({ url: urlOf(first) }, `select fencepost.set_sequence_kind('default', '${kind}')`)
  await using address = await Haproxy.start(folder, cluster.nodes)
  await using crew = new Crew(outside)
  const ghost = await crew.join('ghost', address.url)
  await crew.work(address.url)
  await sleep(1000)

  const orderedAtMs = performance.now()
  await cluster.switchOver(first)
  const second = cluster.nodes.find((node) => node !== first)!
  const switchoverMs = await untilGranted(crew, second, orderedAtMs)
  await cluster.complete()
  await sleep(1000)

  const killedAtMs = performance.now()
  await cluster.kill(second)
  const failoverMs = await untilGranted(crew, first, killedAtMs)
  await sleep(1000)
  await crew.rest()
  await crew.haunt(ghost, { url: urlOf(first) })
  const { told } = crew
  const { passed, refused } = outside
  const ledger = await readLedger({ url: urlOf(first) })
  const isLate = ({ atMs }: Told): boolean => atMs > orderedAtMs + switchoverMs
  const evidence = { told, ledger, server: first.port, passed, refused, promotedAtMs: killedAtMs }
  const lostInSwitchover = judge({ ...evidence, told: told.filter((one) => !isLate(one)) })
  return {
    ...judge(evidence),
    lostInSwitchover: lostInSwitchover.lostGrants + lostInSwitchover.lostWrites,
    switchoverMs,
    failoverMs,
  }
}

function urlOf({ port }: PatroniNode): string {
  return `postgres://postgres@127.0.0.1:${port}/postgres`
}

async function untilGranted(crew: Crew, node: PatroniNode, sinceMs: number): Promise<number> {
  for (;;) {
    // oxlint-disable-next-line no-await-in-loop -- Until it has granted something.
    const granted = await grantsOf(node)
    const first = crew.told.find(
      ({ what, atMs, term }) =>
        what === 'acquire' &&
        atMs > sinceMs &&
        term !== undefined &&
        granted.has(`${term.token}:${term.holderId}`),
    )
    if (first !== undefined) return first.atMs - sinceMs
    if (performance.now() - sinceMs > 90_000) throw new Error(`node ${node.name} grants nothing`)
    // oxlint-disable-next-line no-await-in-loop -- As above.
    await sleep(100)
  }
}

/** The grants that were made on that node. */
async function grantsOf(node: PatroniNode): Promise<Set<string>> {
  try {
    const { granted } = await readLedger({ url: urlOf(node) })
    const own = granted.filter(({ server }) => server === node.port)
    return new Set(own.map(({ token, holderId }) => `${token}:${holderId}`))
  } catch {
    // It does not answer, or does not yet.
    return new Set()
  }
}
