export { Fencepost, type AcquireOptions, type LeaseOptions, type OpenOptions } from './fencepost.ts'
export type { ConnectOptions } from './database/connect-options.ts'
export { Lease } from './fence/lease.ts'
export { Leases } from './fence/leases.ts'
export type { HandOverOutcome, LeaseEvents, LeaseState, ReleaseOutcome } from './lease/held-lease.ts'
export type { LeaseInfo, WaiterInfo } from './lease/lease-list.ts'
export type { Term, Token } from './lease/term.ts'
export {
  inheritedFence,
  type Fence,
  type FenceBounds,
  type QueryClient,
  type Statement,
} from './fence/fence.ts'
export { refusalOf } from './fence/refusal.ts'
export {
  fencedTransaction,
  type FencedTransaction,
  type FencedTransactionOptions,
} from './fence/fenced-transaction.ts'
export { fencedSession, type FencedSessionOptions } from './fence/fenced-session.ts'
export {
  FencedRepository,
  type NewRow,
  type Patch,
  type RepositoryOptions,
  type RowKey,
} from './fence/fenced-repository.ts'
export type {
  ProtectOptions,
  ProtectSchemaOptions,
  ProtectedSchema,
  ProtectedTable,
  Protections,
} from './fence/protection.ts'
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
  ProtectedError,
  SequenceMismatchError,
  StaleTermError,
  type Contender,
  type FencepostErrorCode,
  type LossReason,
} from './errors.ts'
export type { DoctorReport, Finding, FindingCode, FixKind, Severity } from './doctor/finding.ts'
export type { ForceReleaseOptions, ForcedRelease } from './operators/force-release.ts'
export type { HolderInfo } from './operators/holder-list.ts'
export type { FencedTransactionInfo, ForcedReleaseInfo, LeaseDetail } from './operators/lease-detail.ts'
export type { SequenceInfo, SequenceKind } from './operators/sequences.ts'
export type { Duration } from './duration.ts'
export type { Logger } from './logger.ts'
export type { MigrateOptions, MigrateResult } from './database/migrate.ts'
export { announce, type AnnounceOptions } from './fence/announce.ts'
export { HttpFence, type EnterOptions, type FencedHandler, type HttpFenceOptions } from './http/http-fence.ts'
export type { Passage } from './http/passage.ts'
export { RequestRefusedError, type RefusalCode, type WritableResponse } from './http/request-refused.ts'
export type { RequestHeaders } from './http/request-token.ts'
export type { Election, ElectionEvents, ElectionOptions, StopOutcome } from './roles/election.ts'
export type { EndReason } from './roles/office.ts'
export type { Leader } from './roles/leader-watch.ts'
