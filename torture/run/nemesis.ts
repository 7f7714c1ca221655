import { setTimeout as sleep } from 'node:timers/promises'
import { Missed } from '../faults/choose.ts'
import type { TortureClient, TortureServer } from '../faults/fault.ts'
import type { Fault } from '../history.ts'
import type { Planned } from './plan.ts'
import { Stream } from './stream.ts'

export interface NemesisOptions {
  readonly seed: string
  readonly clients: readonly TortureClient[]
  readonly server: TortureServer
  /** Each a row of faults; those of one row may overlap when it says so. */
  readonly overlapping: readonly Planned[]
  readonly inTurn: readonly Planned[]
  record(event: Fault): void
}

/** Carries a plan out, and heals whatever it has done. */
export class Nemesis {
  readonly #options: NemesisOptions
  readonly #over = new AbortController()
  readonly #startedMs = performance.now()
  readonly #underWay = new Set<Promise<void>>()
  readonly #rows: Promise<unknown>
  readonly missed: { fault: string; why: string }[] = []
  #failure: Error | undefined

  constructor(options: NemesisOptions) {
    this.#options = options
    this.#rows = Promise.all([this.#overlap(options.overlapping), this.#inTurn(options.inTurn)])
  }

  /** Nothing new begins, and what has begun is healed at once. */
  async end(): Promise<void> {
    this.#over.abort()
    await this.#rows
    await Promise.all(this.#underWay)
    if (this.#failure !== undefined) throw this.#failure
  }

  async #overlap(plan: readonly Planned[]): Promise<void> {
    for (const planned of plan) {
      // oxlint-disable-next-line no-await-in-loop -- Each at its time.
      if (!(await this.#until(planned.atMs))) return
      const one = this.#inflict(planned)
      this.#underWay.add(one)
      void one.finally(() => this.#underWay.delete(one))
    }
  }

  async #inTurn(plan: readonly Planned[]): Promise<void> {
    for (const planned of plan) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      if (!(await this.#until(planned.atMs))) return
      // oxlint-disable-next-line no-await-in-loop
      await this.#inflict(planned)
    }
  }

  async #inflict({ kind, lastsMs, stream }: Planned): Promise<void> {
    const { clients, server, seed } = this.#options
    const numbers = new Stream(seed, stream)
    const fault = kind.name
    try {
      const affliction = await kind.inflict({ clients, server, random: () => numbers.next() })
      const { target } = affliction
      if (target.startsWith('nothing')) return void this.missed.push({ fault, why: target })
      this.#record(fault, 'begins', target)
      await this.#pause(lastsMs)
      await affliction.heal()
      this.#record(fault, 'ends', target)
    } catch (error) {
      if (error instanceof Missed) this.missed.push({ fault, why: error.message })
      // The run goes on, so that it is healed and cleared away; then it is told.
      else
        this.#failure ??= new Error(`the fault ${fault} could not be inflicted or healed`, { cause: error })
    }
  }

  #record(fault: string, phase: Fault['phase'], target: string): void {
    this.#options.record({ kind: 'fault', atUs: Date.now() * 1000, fault, phase, target })
  }

  /** False: it is over before. */
  async #until(atMs: number): Promise<boolean> {
    await this.#pause(this.#startedMs + atMs - performance.now())
    return !this.#over.signal.aborted
  }

  async #pause(forMs: number): Promise<void> {
    if (forMs <= 0 || this.#over.signal.aborted) return
    try {
      await sleep(forMs, undefined, { signal: this.#over.signal })
    } catch (error) {
      if (!this.#over.signal.aborted) throw error
    }
  }
}
