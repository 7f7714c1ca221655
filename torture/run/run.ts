import { setTimeout as sleep } from 'node:timers/promises'
import type { Verdict } from '../check/check.ts'
import type { LivenessBounds } from '../check/verdict.ts'
import type { Control } from '../controls/control.ts'
import { clientFaults } from '../faults/kinds.ts'
import { longSilenceMs } from '../client/round.ts'
import { poolerReason } from '../faults/pooler.ts'
import type { Casualty } from './crew.ts'
import type { Figures } from './figures.ts'
import { lasting } from './lasting.ts'
import { Nemesis } from './nemesis.ts'
import type { TortureOptions } from './options.ts'
import { planInTurn, planOverlapping } from './plan.ts'
import { Stage } from './stage.ts'

/** How long a client may take to end when everything has been healed. */
const stopWithinMs = 20_000
const readEveryMs = 1500
/** What has been answered while the log was read is not known yet, and would count as hanging if that took long. */
const maxReadMs = 2000
/** Share of the time that is spent on judging while it goes on. */
const judgingShare = 0.05

export interface Outcome {
  readonly ranForMs: number
  /** Clients, one after the other. */
  readonly processes: number
  readonly figures: Figures
  readonly missed: readonly { readonly fault: string; readonly why: string }[]
  readonly casualties: readonly Casualty[]
  readonly verdict: Verdict
  /** What is not possible on this machine was left out. */
  readonly unavailable: readonly Unavailable[]
  /** Where the histories and logs are, if they were kept. */
  readonly keptIn: string | undefined
}

interface Unavailable {
  readonly fault: string
  readonly why: string
}

const nothing = { heal: async () => {}, gone: [] }

/** Told while it goes on. */
export type Progress = (elapsedMs: number, figures: Figures) => void

/** Plays a run and judges it; undefined: it was interrupted. */
export async function run(
  options: TortureOptions,
  tell: Progress,
  interrupted: AbortSignal,
): Promise<Outcome | undefined> {
  const unavailable = await impossible(options)
  const isPossible = (fault: string): boolean => unavailable.every((each) => each.fault !== fault)
  await using stage = await Stage.set({
    ...options,
    pooler: isPossible('pooler') ? options.pooler : 'none',
  })
  const { crew, judge } = stage
  const playing = new Playing(stage, options, tell, interrupted)
  const nemesis = startNemesis(stage, options, isPossible)
  let verdict: Verdict | undefined
  let bounds: LivenessBounds | undefined
  try {
    verdict = await playing.until(faultsForMs(options))
  } finally {
    await nemesis.end()
  }
  if (options.liveness && verdict === undefined && !interrupted.aborted) {
    const last = options.faults.length === 0 ? nothing : await lasting(stage, options.seed)
    bounds = boundsFrom(options, last.gone)
    verdict = await playing.until(options.seconds * 1000, bounds)
    await last.heal()
  }
  const ranForMs = playing.elapsedMs
  if (interrupted.aborted) return undefined
  if (verdict === undefined) {
    await crew.stop(stopWithinMs)
    await judge.readOn()
    verdict = judge.verdict(bounds)
  }
  const { casualties } = crew
  const isBad = verdict.violations.length + casualties.length > 0 && options.control === undefined
  const keptIn = options.keep !== undefined || isBad ? await stage.keep(options.keep) : undefined
  return {
    ...{ ranForMs, processes: crew.started, figures: judge.figures, missed: nemesis.missed },
    ...{ casualties, verdict, unavailable, keptIn },
  }
}

/** Whether what was taken out is what was found: something else would be a finding of its own. */
export function isCaught({ caughtAs }: Control, { violations }: Verdict): boolean {
  return violations.some(({ kind }) => caughtAs.includes(kind))
}

/** The time in which a run goes on. */
class Playing {
  readonly #stage: Stage
  readonly #options: TortureOptions
  readonly #tell: Progress
  readonly #interrupted: AbortSignal
  readonly #startedMs = performance.now()
  #judgedMs = 0

  constructor(stage: Stage, options: TortureOptions, tell: Progress, interrupted: AbortSignal) {
    this.#stage = stage
    this.#options = options
    this.#tell = tell
    this.#interrupted = interrupted
  }

  get elapsedMs(): number {
    return performance.now() - this.#startedMs
  }

  /** Lets it go on until then, or until something is found: that is returned, and nothing else. */
  async until(ms: number, bounds?: LivenessBounds): Promise<Verdict | undefined> {
    const { crew, judge } = this.#stage
    while (this.elapsedMs < ms && !this.#interrupted.aborted && crew.casualties.length === 0) {
      // oxlint-disable no-await-in-loop -- Until it is over.
      await pause(Math.min(readEveryMs, ms - this.elapsedMs), this.#interrupted)
      const sinceReadMs = performance.now()
      const isRead = await judge.tryToReadOn()
      const isTooOld = bounds !== undefined && performance.now() - sinceReadMs > maxReadMs
      // oxlint-enable no-await-in-loop
      this.#tell(this.elapsedMs, judge.figures)
      const mayJudge = this.#options.control !== undefined || this.#judgedMs < this.elapsedMs * judgingShare
      if (!mayJudge || !isRead || isTooOld) continue
      const sinceMs = performance.now()
      const verdict = judge.verdict(bounds)
      this.#judgedMs += performance.now() - sinceMs
      const { control } = this.#options
      if (control === undefined ? verdict.violations.length > 0 : isCaught(control, verdict)) return verdict
    }
    return undefined
  }
}

function startNemesis(
  { crew, server, folder }: Stage,
  options: TortureOptions,
  isPossible: (fault: string) => boolean,
): Nemesis {
  const { seed, faults } = options
  const untilMs = faultsForMs(options)
  // What is not possible is planned all the same: the others are then the same ones on each machine.
  const overlapping = planOverlapping(
    seed,
    faults.filter((kind) => clientFaults.includes(kind)),
    untilMs,
  )
  const inTurn = planInTurn(
    seed,
    faults.filter((kind) => !clientFaults.includes(kind)),
    untilMs,
  )
  return new Nemesis({
    ...{ seed, server, clients: crew.clients, overlapping },
    inTurn: inTurn.filter(({ kind }) => isPossible(kind.name)),
    record: (event) => folder.record(event),
  })
}

/** When nothing more is done on purpose, but for what lasts. */
function faultsForMs({ liveness, faults, seconds }: TortureOptions): number {
  if (!liveness) return seconds * 1000
  return faults.length === 0 ? 0 : seconds * 500
}

function boundsFrom({ ttlMs = 2000 }: TortureOptions, gone: readonly string[]): LivenessBounds {
  return {
    healedAtUs: Date.now() * 1000,
    ttlUs: ttlMs * 1000,
    // What a client is told to dawdle, and what the server allows it to be silent after that.
    longestTransactionUs: Math.max(3000, ttlMs, longSilenceMs) * 1000,
    // Connections that were lost are tried again, with a pause that grows, and a request may take its two seconds until it is given up.
    retryUs: 3_000_000,
    gone,
  }
}

async function impossible({ faults, pooler }: TortureOptions): Promise<Unavailable[]> {
  const answers = await Promise.all(
    faults.map(async (kind) => {
      const why = 'reason' in kind ? await (kind.reason as () => Promise<string | undefined>)() : undefined
      return why === undefined ? [] : [{ fault: kind.name, why }]
    }),
  )
  const why = pooler === 'none' ? undefined : poolerReason()
  return [...answers.flat(), ...(why === undefined ? [] : [{ fault: 'pooler', why }])]
}

async function pause(forMs: number, interrupted: AbortSignal): Promise<void> {
  try {
    await sleep(Math.max(0, forMs), undefined, { signal: interrupted })
  } catch (error) {
    if (!interrupted.aborted) throw error
  }
}
