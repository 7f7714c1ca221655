import { setTimeout as sleep } from 'node:timers/promises'
import type { Lease } from '../../src/index.ts'
import { type Evidence, type Verdict, judge } from './judge.ts'
import { readLedger } from './ledger.ts'
import type { Outside } from './outside.ts'
import { type Pair, type Pairs, ask } from './pair.ts'
import { Relay } from './relay.ts'
import type { Scenario } from './scenarios.ts'
import type { Told } from './told.ts'
import { Worker, ttlMs } from './worker.ts'

const shared = ['settlement', 'report']
/** Held by one client that does nothing with it, and wanted by another as soon as the standby is the primary. */
const kept = 'kept'
const workers = 6
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
export async function failOverOnce(pairs: Pairs, outside: Outside, scenario: Scenario): Promise<Outcome> {
  await using pair = await pairs.start(scenario.replication)
  await using address = await Relay.to(pair.primary.port)
  await ask(pair.primary, `select fencepost.set_sequence_kind('default', '${scenario.kind}')`)
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
  readonly #told: Told[] = []
  readonly #stop = new AbortController()
  readonly #workers: Worker[] = []
  #working: Promise<unknown> = Promise.resolve()

  constructor(pair: Pair, address: Relay, outside: Outside, scenario: Scenario) {
    this.#pair = pair
    this.#address = address
    this.#outside = outside
    this.#scenario = scenario
  }

  async run(): Promise<Outcome> {
    const { isBehind, isLeftAlive } = this.#scenario
    const keeper = await this.#start('keeper')
    const heir = await this.#start('heir')
    const busy = await Promise.all(
      Array.from({ length: workers }, (_, place) =>
        this.#start(`w${place}`, isLeftAlive && place % 2 === 1 ? this.#pair.primary.url : undefined),
      ),
    )
    this.#working = Promise.all(busy.map((worker) => worker.work(this.#stop.signal)))
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
    this.#stop.abort()
    await this.#working
    await this.#haunt(heir)
    return { ...judge(await this.#evidence(promotedAtMs)), writableMs, overlapMs, stuck }
  }

  async end(): Promise<void> {
    this.#stop.abort()
    await this.#working.catch(() => {})
    // Whoever still waits for an answer of it gets none.
    await this.#pair.primary.crash()
    await Promise.all(this.#workers.map((worker) => worker[Symbol.asyncDispose]()))
  }

  async #start(name: string, url = this.#address.url): Promise<Worker> {
    const worker = await Worker.start({
      name,
      url,
      leases: shared,
      outside: this.#outside,
      tell: (told) => this.#told.push(told),
    })
    this.#workers.push(worker)
    return worker
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
        [standby.port, shared],
      )
      const stuck = shared.length - rows.length
      if (stuck === 0 || performance.now() - promotedAtMs > watchedMs) return stuck
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await sleep(50)
    }
  }

  /** Clients that were paused over the failover wake up: each writes once under the last terms that it knows of. */
  async #haunt(ghost: Worker): Promise<void> {
    const terms = this.#told.flatMap(({ what, term }) =>
      what === 'acquire' && term !== undefined && term.lease !== kept ? [term] : [],
    )
    const { granted } = await readLedger(this.#pair.standby)
    const known = new Set(granted.map(({ token, holderId }) => `${token}:${holderId}`))
    const lost = terms.filter(({ token, holderId }) => !known.has(`${token}:${holderId}`))
    for (const term of [...lost.slice(-20), ...terms.slice(0, 5)]) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      await ghost.writeBlindly(term)
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await this.#outside.send(term)
    }
  }

  async #evidence(promotedAtMs: number): Promise<Evidence> {
    const { standby } = this.#pair
    return {
      told: this.#told,
      ledger: await readLedger(standby),
      server: standby.port,
      passed: this.#outside.passed,
      refused: this.#outside.refused,
      promotedAtMs,
    }
  }
}
