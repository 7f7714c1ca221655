import type { CheckOptions } from './verdict.ts'

/** The options with what is left out filled in. */
export type Settings = Required<CheckOptions>

export function withDefaults(options: CheckOptions): Settings {
  return {
    slackUs: options.slackUs ?? 5_000,
    settleWithinUs: options.settleWithinUs ?? 20_000_000,
    carelessFaults: options.carelessFaults ?? ['async-commit'],
    sequenceOf: (lease) => options.sequenceOf?.(lease) ?? 'default',
  }
}
