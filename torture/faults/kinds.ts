import { clockFaults } from './clock.ts'
import type { FaultKind } from './fault.ts'
import { networkFaults } from './network.ts'
import { processFaults } from './process.ts'

/** Faults that begin whatever else is going on, and so overlap. */
export const clientFaults: readonly FaultKind[] = [...processFaults, ...networkFaults, ...clockFaults]
