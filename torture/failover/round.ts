import { setTimeout as sleep } from 'node:timers/promises'
import type { Lease } from '../../src/index.ts'
import { Crew, sharedLeases } from './crew.ts'
import { type Evidence, type Verdict, judge } from './judge.ts'
import { readLedger } from './ledger.ts'
import type { Outside } from './outside.ts'
import { type Pair, type Pairs, ask } from './pair.ts'
import { Relay } from './relay.ts'
import type { Scenario, SequenceKind } from './scenarios.ts'
import { type Worker, ttlMs } from './worker.ts'

/** Held by one client that does nothing with it, and wanted by another as soon as the standby is the primary. */
const kept = 'kept'
/** Three TTLs: by then whoever has died has expired. */
const watchedMs = 3 * ttlMs

export interface Outcome extends Verdict {
  /** From the order to promote until the new primary took writes, and clients were led there. */
  readonly writableMs: number
  /**
   * For how long a client went on trusting a term that the new primary had given to another. 0: it had heard of the end before;
   * undefined: the new primary knew of the term. `Infinity`: as long as it was looked at, which is three TTLs.
   */
  readonly overlapMs: number | undefined
  /** Leases that the new primary granted to nobody for three TTLs, although nobody believed to hold them. */
  readonly stuck: number
}

/** One failover, with clients at work. */
export async function failOverOnce(
  pairs: Pairs,
  outside: Outside,
  scenario: Scenario,
  kind: SequenceKind,
): Promise<Outcome> {
  await using pair = await pairs.start(scenario.replication)
  await using address = await Relay.to(pair.primary.port)
  await ask(pair.primary, `select fencepost.set_sequence_kind('default', '${kind}')`)
  await pair.caughtUp()
  outside.newRound()
  const round = new Round(pair, address, outside, scenario)
  try {
    return await round.run()
  } finally {
    await round.end()
  }
}

class Round {
  readonly #pair: Pair
  readonly #address: Relay
  readonly #outside: Outside
  readonly #scenario: Scenario
  readonly #crew: Crew

  constructor(pair: Pair, address: Relay, outside: Outside, scenario: Scenario) {
    this.#pair = pair
    this.#address = address
    this.#outside = outside
    this.#scenario = scenario
    this.#crew = new Crew(outside)
  }

  async run(): Promise<Outcome> {
    const { isBehind, isLeftAlive } = this.#scenario
    const address = this.#address.url
    const keeper = await this.#crew.join('keeper', address)
    const heir = await this.#crew.join('heir', address)
    await this.#crew.work(address, isLeftAlive ? this.#pair.primary.url : address)
    // So that the standby knows the two, whatever else it does not know.
    for (const one of [keeper, heir]) {
      // oxlint-disable-next-line no-await-in-loop -- Two.
      await (await one.acquire(kept, '1s'))?.release()
    }
    await sleep(500)
    if (isBehind) {
      this.#pair.line.hold()
      await sleep(300)
    }
    const keeping = await keeper.acquire(kept, '1s')
    const promotedAtMs = await this.#failOver()
    const writableMs = performance.now() - promotedAtMs
    const overlapMs = await this.#overlap(keeping, heir)
    const stuck = await this.#stuck(promotedAtMs)
    await sleep(700)
    await this.#crew.rest()
    await this.#crew.haunt(heir, this.#pair.standby)
    return { ...judge(await this.#evidence(promotedAtMs)), writableMs, overlapMs, stuck }
  }

  async end(): Promise<void> {
    // Whoever still waits for an answer of it gets none.
    await this.#pair.primary.crash()
    await this.#crew[Symbol.asyncDispose]()
  }

  async #failOver(): Promise<number> {
    if (!this.#scenario.isLeftAlive) await this.#pair.primary.crash()
    const promotedAtMs = performance.now()
    await this.#pair.promote()
    this.#address.moveTo(this.#pair.standby.port)
    return promotedAtMs
  }

  async #overlap(keeping: Lease | null, heir: Worker): Promise<number | undefined> {
    if (keeping === null) return undefined
    const lost = new Promise<void>((resolve) =>
      keeping.signal.addEventListener('abort', () => resolve(), { once: true }),
    )
    let inherited: Lease | null = null
    // As long as the term can be alive, were it known.
    const until = performance.now() + 1.5 * ttlMs
    while (inherited === null && keeping.isHeld && performance.now() < until) {
      // oxlint-disable-next-line no-await-in-loop -- One attempt after the other.
      inherited = await heir.acquire(kept, '0s')
      // oxlint-disable-next-line no-await-in-loop -- As above.
      if (inherited === null) await sleep(20)
    }
    if (inherited === null) return keeping.isHeld ? undefined : 0
    if (!keeping.isHeld) return 0
    const since = performance.now()
    await Promise.race([lost, sleep(watchedMs)])
    return keeping.isHeld ? Infinity : performance.now() - since
  }

  /** Waits for the new primary to grant both leases, by its own account, and returns how many it has not. */
  async #stuck(promotedAtMs: number): Promise<number> {
    const { standby } = this.#pair
    for (;;) {
      // oxlint-disable-next-line no-await-in-loop -- Until it has.
      const rows = await ask<{ lease: string }>(
        standby,
        'select distinct lease from lab.granted where server = $1 and lease = any ($2)',
        [standby.port, sharedLeases],
      )
      const stuck = sharedLeases.length - rows.length
      if (stuck === 0 || performance.now() - promotedAtMs > watchedMs) return stuck
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await sleep(50)
    }
  }

  async #evidence(promotedAtMs: number): Promise<Evidence> {
    const { standby } = this.#pair
    return {
      told: this.#crew.told,
      ledger: await readLedger(standby),
      server: standby.port,
      passed: this.#outside.passed,
      refused: this.#outside.refused,
      promotedAtMs,
    }
  }
}
