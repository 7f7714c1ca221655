/**
 * How bad a finding is:
 *   - `error`: the wall, or a promise, is broken now;
 *   - `warning`: it can be broken, without anybody noticing;
 *   - `note`: worth knowing, or something that could not be looked at.
 */
export type Severity = 'error' | 'warning' | 'note'

/** What the text of a fix is: SQL to run, a command for the shell, or something to be done by hand. */
export type FixKind = 'sql' | 'command' | 'advice'

/** One thing that is not as it should be. */
export interface Finding {
  /** Stable across versions; docs/doctor.md lists them all. */
  readonly code: FindingCode
  readonly severity: Severity
  /** What it is about: `public.accounts`, `role app`, `lease settlement`. */
  readonly object: string
  /** One sentence for people. It may change between versions. */
  readonly what: string
  /** What mends it. SQL may have several statements, one a line or more, each ended by a semicolon. */
  readonly fix: string
  readonly fixKind: FixKind
}

/** What `Fencepost.doctor` has found: errors first, then warnings, then notes. */
export interface DoctorReport {
  readonly findings: readonly Finding[]
  /** What was looked at, in words. What it could not see of that is among the findings, as `not-checked`. */
  readonly checked: readonly string[]
}

/** Every code there is, with what it means in a few words. */
export const findingCodes = {
  // The schema "fencepost" itself.
  'schema-missing': 'the schema is not installed',
  'schema-outdated': 'the schema is older than this library needs',
  'schema-newer': 'the schema is newer than this library',
  'function-missing': 'a function of the schema is gone',
  'function-altered': 'a function of the schema is not the one that was shipped',
  'view-altered': 'a view that the wall looks at is not the one that was shipped',
  'relation-missing': 'a table or view of the schema is gone',
  'object-unknown': 'somebody else has put something into the schema',
  'foreign-owner': 'part of the schema belongs to another role',
  'create-granted': 'another role may create objects in the schema',
  'public-execute': 'everybody may call functions of the schema',
  'grant-incomplete': 'a role lacks rights on newer functions',
  'table-writable': 'a role may write the tables of the schema past its functions',
  'holder-id-readable': 'a role may read the ids of holders, which are secrets',
  'trigger-planted': 'a trigger or rule runs with the rights of the schema',
  'row-security': 'row security is on for a table of the schema',
  'child-planted': 'another table inherits from one of the schema',
  'primary-key-missing': 'a table of the schema has lost its primary key',
  'table-unlogged': 'a table of the schema is emptied by a crash',
  // Protected tables.
  'protected-table-dropped': 'a protected table no longer exists',
  'protected-table-remade': 'a protected table was dropped and made anew',
  'trigger-missing': 'a protected table lacks a trigger',
  'trigger-disabled': 'a trigger of a protected table is disabled',
  'trigger-altered': 'a trigger of a protected table is not the one that protect made',
  'trigger-unwanted': 'a table has a trigger of another protection',
  'partition-unguarded': 'a partition lacks a trigger',
  'partition-foreign': 'a partition lives on another server',
  'parent-unprotected': 'a protected table, or a partition of it, is part of another one as well',
  'guard-column-missing': 'the guard names a column that is gone or has changed',
  'table-unrecorded': 'a table has triggers of a protection that nobody has recorded',
  'fence-column-missing': 'the fence column is gone',
  'fence-column-type': 'the fence column is no plain bigint',
  'fence-default-missing': 'an INSERT does not stamp its rows, or with the token of another guard',
  'stamp-above-sequence': 'a row carries a token that was not granted yet',
  'stamps-sampled': 'only part of the stamps was looked at',
  'rule-on-protected-table': 'a rule changes what a write to a protected table does',
  // Protected schemas.
  'protected-schema-missing': 'a protected schema no longer exists',
  'event-trigger-missing': 'an event trigger is gone',
  'event-trigger-disabled': 'an event trigger is disabled',
  'event-trigger-altered': 'an event trigger is not the one that protect made',
  'event-triggers-off': 'the server fires no event triggers',
  // Who and what gets past the wall.
  'replication-role': 'sessions write past triggers (session_replication_role)',
  'replication-role-grant': 'a role may write past triggers',
  subscription: 'logical replication writes past triggers',
  superuser: 'a role may do anything',
  'owner-may-bypass': 'a role that logs in may disable triggers',
  'trigger-grant': 'a role may add triggers to a protected table',
  'fence-stored': 'a setting gives sessions a fence, or takes it away',
  'fence-leaked': 'a new session carries the fence of another',
  // Rows of leases, holders and sequences.
  'sequence-missing': 'a token sequence has lost its row',
  'sequence-ahead': 'a token sequence that follows the clock is ahead of it',
  'sequence-exhausted': 'a token sequence is near its end',
  'token-above-sequence': 'a lease has a token that its sequence has not given out',
  'token-duplicate': 'two leases have the same token',
  'lease-edited': 'a lease has a value that no grant gives',
  'lease-holder-unknown': 'a lease was granted lately to a holder that is gone',
  'holder-expiry-edited': 'a holder stays alive for longer than its TTL',
  // The server.
  'server-in-recovery': 'the server is a standby',
  'server-too-old': 'the version of the server is not supported',
  'no-client-check': 'the server does not notice a dead client during a statement',
  'standby-async': 'a failover can lose the last grants',
  'synchronous-commit-off': 'a crash can lose writes that were answered',
  'fsync-off': 'a crash of the machine can damage the data',
  'full-page-writes-off': 'a crash of the machine can damage the data',
  'prepared-transaction': 'a prepared transaction keeps a lease',
  'idle-in-fenced-transaction': 'a silent session keeps a lease',
  'long-fenced-transaction': 'a long transaction keeps a lease',
  'long-transaction': 'a long transaction keeps old rows from being cleared away',
  'clock-backwards': "the database's clock went back",
  'clock-jump': "the database's clock jumped",
  'clock-offset': "this machine's clock and the database's differ",
  'time-in-future': 'a row has a time that is yet to come',
  // Poolers, and what could not be seen.
  pooler: 'a pooler stands between this machine and the server',
  'pooler-leaks-set': 'the pooler hands a SET of one client to others',
  'pooler-refuses-transactions': 'the pooler allows no transactions',
  'not-checked': 'something could not be looked at',
} as const

export type FindingCode = keyof typeof findingCodes

const order: readonly Severity[] = ['error', 'warning', 'note']

/** Errors first; among equals, in the order of the checks. */
export function sortFindings(findings: readonly Finding[]): Finding[] {
  return findings.toSorted((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity))
}
