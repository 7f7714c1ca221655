export {
  Fencepost,
  type AcquireOptions,
  type ConnectOptions,
  type LeaseOptions,
  type OpenOptions,
} from './fencepost.ts'
export { Lease } from './fence/lease.ts'
export type { LeaseEvents, LeaseState, ReleaseOutcome } from './lease/held-lease.ts'
export type { LeaseInfo } from './lease/lease-list.ts'
export type { Term, Token } from './lease/term.ts'
export {
  inheritedFence,
  type Fence,
  type FenceBounds,
  type QueryClient,
  type Statement,
} from './fence/fence.ts'
export {
  fencedTransaction,
  type FencedTransaction,
  type FencedTransactionOptions,
} from './fence/fenced-transaction.ts'
export {
  FencedRepository,
  type NewRow,
  type Patch,
  type RepositoryOptions,
  type RowKey,
} from './fence/fenced-repository.ts'
export {
  DatabaseError,
  FencepostError,
  ForeignLeaseError,
  HolderExpiredError,
  InvalidArgumentError,
  LeaseLostError,
  LeaseReleasedError,
  NotAcquiredError,
  OutcomeUnknownError,
  SequenceMismatchError,
  StaleTermError,
  type Contender,
  type FencepostErrorCode,
  type LossReason,
} from './errors.ts'
export type { Duration } from './duration.ts'
export type { Logger } from './logger.ts'
export type { MigrateOptions, MigrateResult } from './database/migrate.ts'
