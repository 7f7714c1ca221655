import type { Curve } from './curve.ts'
import type { BulkFigures } from './measures/bulk.ts'
import type { CrowdFigures } from './measures/crowd.ts'
import type { HandOverFigure } from './measures/hand-over.ts'
import type { HeartbeatFigures } from './measures/heartbeat.ts'
import type { LeaseFigures } from './measures/lease.ts'
import type { LockFigures } from './measures/locks.ts'
import type { RepositoryFigures } from './measures/repository.ts'
import type { StartUpFigures } from './measures/start-up.ts'
import type { TakeOverFigures } from './measures/take-over.ts'
import type { Figure } from './rounds.ts'
import { type Spread, ratios, spread } from './spread.ts'

/** When, where and how something was measured. */
export interface Run {
  readonly at: string
  readonly cores: number
  readonly node: string
  readonly postgres: string
  readonly rounds: number
  readonly forMs: number
}

/** The JSON: what was measured, by the name of the measure. */
export interface Results {
  readonly runs?: Readonly<Record<string, Run>>
  readonly lease?: LeaseFigures
  readonly fence?: readonly Figure[]
  readonly session?: readonly Figure[]
  readonly repository?: RepositoryFigures
  readonly bulk?: BulkFigures
  readonly locks?: LockFigures
  readonly 'hand-over'?: readonly HandOverFigure[]
  readonly 'take-over'?: TakeOverFigures
  readonly 'start-up'?: StartUpFigures
  readonly heartbeat?: HeartbeatFigures
  readonly rows?: readonly Figure[]
  readonly crowd?: CrowdFigures
  readonly 'scale-leases'?: Curve
  readonly 'scale-holders'?: Curve
  readonly 'scale-waiters'?: Curve
  readonly 'scale-processes'?: Curve
  readonly 'scale-transactions'?: Curve
  readonly 'scale-batch'?: Curve
}

export type MeasureName = Exclude<keyof Results, 'runs'>

/** One contender's operations per second ÷ another one's, round by round. Undefined where one of the two was not measured. */
export function against(
  figures: readonly Figure[] | undefined,
  workers: number,
  name: string,
  floor: string,
): Spread | undefined {
  const find = (wanted: string): Figure | undefined =>
    figures?.find((each) => each.contender === wanted && each.workers === workers)
  const [own, other] = [find(name), find(floor)]
  return own === undefined || other === undefined ? undefined : spread(ratios(own.perSecond, other.perSecond))
}
