import { randomBytes } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { hostname } from 'node:os'
import { type Clock, systemClock } from './clock.ts'
import { type ConnectOptions, connectionConfig } from './database/connect-options.ts'
import { Connection, type Ear, type TextRow } from './database/connection.ts'
import { RequestFailure, describeFailure } from './database/failure.ts'
import { type Grants, grantsConnection } from './database/grants.ts'
import { Listener } from './database/listener.ts'
import type { MigrateOptions, MigrateResult } from './database/migrate.ts'
import { schemaGreeting } from './database/schema.ts'
import { ServerWatch } from './database/whereabouts.ts'
import type { DoctorReport } from './doctor/finding.ts'
import { type Duration, durationMs, show } from './duration.ts'
import { FencepostError, InvalidArgumentError, LeaseLostError } from './errors.ts'
import type { Fence } from './fence/fence.ts'
import { Lease } from './fence/lease.ts'
import { Leases } from './fence/leases.ts'
import type { ProtectOptions, ProtectSchemaOptions, Protections } from './fence/protection.ts'
import type { ReleaseOutcome } from './lease/held-lease.ts'
import { takeFixedTerm } from './lease/fixed-term.ts'
import { LeaseClient } from './lease/lease-client.ts'
import type { AcquireRequest } from './lease/lease-room.ts'
import { Line } from './lease/line.ts'
import { type LeaseInfo, listLeases, readLeaseInfo } from './lease/lease-list.ts'
import { checkName } from './lease/name.ts'
import { type Asking, type HolderIdentity, Protocol } from './lease/protocol.ts'
import { Wakes } from './lease/wakes.ts'
import type { Ask } from './operators/ask.ts'
import type { ForceReleaseOptions, ForcedRelease } from './operators/force-release.ts'
import type { HolderInfo } from './operators/holder-list.ts'
import type { LeaseDetail } from './operators/lease-detail.ts'
import type { SequenceInfo, SequenceKind } from './operators/sequences.ts'
import { Election, type ElectionOptions } from './roles/election.ts'
import type { Leader } from './roles/leader-watch.ts'
import { type Logger, harmless, silent } from './logger.ts'

export interface OpenOptions extends ConnectOptions {
  /** TTL of leases that do not name their own. 1 s to 1 day, default 30 s. */
  readonly ttl?: Duration | undefined
  /** The shortest TTL allowed. Default 1 s, at least 100 ms: shorter ones are for tests. */
  readonly minTtl?: Duration | undefined
  /** What people see as the holder. Default `host:pid`. It is no identity. */
  readonly label?: string | undefined
  /** More about the holder for people to see, stored as JSON. */
  readonly meta?: Readonly<Record<string, unknown>> | undefined
  /** Bound on connecting and on each request of fencepost's own. 100 ms to 5 minutes, default 10 s. */
  readonly requestTimeout?: Duration | undefined
  /**
   * Whether waiters listen for wake-ups, over one connection that is open while somebody waits. False: they ask about once a
   * second, as they also do where wake-ups do not come, such as behind a transaction-mode pooler. Default true.
   */
  readonly listen?: boolean | undefined
  /** Where trouble is reported that no caller is waiting for. Default: nowhere. */
  readonly logger?: Logger | undefined
}

export interface LeaseOptions {
  /** How long the lease outlives its holder's last heartbeat. 1 s to 1 day, default: the Fencepost's. */
  readonly ttl?: Duration | undefined
  /** The token sequence to draw from, fixed for a lease by its first grant. Default `default`, shared by all leases. */
  readonly sequence?: string | undefined
  /**
   * Minimum hold: nobody else is granted the lease for so long after the grant, even when it is released or its holder dies before. So that
   * a job that takes moments runs once although its starts are skewed. 0 to 1 day, default 0.
   */
  readonly minHold?: Duration | undefined
  /**
   * Maximum hold: the lease is lost so long after the grant, however well it is renewed (`lost`, with reason `overdue`), and others can be
   * granted it. For work that may hang. At least the Fencepost's `minTtl` and `minHold`, at most 366 days. Default: none.
   */
  readonly maxHold?: Duration | undefined
  /**
   * Nobody else is granted the lease for so long after a term that was not released: its holder has died, or could not renew it, or
   * held it for too long, and may go on for a while with what the database cannot refuse. 0 to 1 day, default 0.
   */
  readonly graceAfterCrash?: Duration | undefined
  /** Takes the lease when it is free, although others stand in line for it. Default false. */
  readonly barge?: boolean | undefined
}

export interface AcquireOptions extends LeaseOptions {
  /**
   * How long to wait for the lease, at most 366 days; 0 for one attempt. Default: until the signal aborts. A database that gives no first
   * answer is waited for up to a second.
   */
  readonly wait?: Duration | undefined
  /** Stops the waiting; `acquire` then throws the signal's reason. It has no effect on a lease already granted. */
  readonly signal?: AbortSignal | undefined
}

const dayMs = 86_400_000
const yearMs = 366 * dayMs

/** More of them would make one slow call, in which nothing else is granted. */
const maxTogether = 1000
const maxMany = 10_000

/** Opens on a connection that is on its way already: for the command line, which loads this meanwhile. */
export let openOn: (grants: Grants, options: OpenOptions) => Promise<Fencepost>

/** Opens with another clock than this machine's: for the test kit. */
export let openWithClock: (clock: Clock, options: OpenOptions) => Promise<Fencepost>

/**
 * What a service opens once: it joins a PostgreSQL database as a participant, takes leases and keeps them alive over
 * connections of its own: one for grants, and one for the heartbeats of each TTL in use.
 *
 * @example
 * ```ts
 * import { Fencepost } from 'fencepost'
 *
 * const fencepost = await Fencepost.open({ connectionString: process.env.DATABASE_URL })
 * await fencepost.withLease('settlement', { ttl: '30s', wait: '10s' }, async (lease) => {
 *   console.log(lease.token)
 * })
 * await fencepost.close()
 * ```
 */
export class Fencepost implements AsyncDisposable {
  readonly #protocol: Protocol
  readonly #grants: Connection
  readonly #listener: Listener | undefined
  readonly #connect: (applicationName: string, ear?: Ear) => Connection
  readonly #timeoutMs: number
  readonly #leases: LeaseClient<Lease>
  readonly #identity: Omit<HolderIdentity, 'id'>
  readonly #clock: Clock
  readonly #logger: Logger
  readonly #elections = new Line()
  readonly #closed = new AbortController()
  readonly #ttlMs: number
  readonly #minTtlMs: number
  #closing: Promise<void> | undefined

  private constructor(options: OpenOptions, grants?: Connection, clock: Clock = systemClock) {
    this.#minTtlMs = durationOr(1000, 'minTtl', options.minTtl, { minMs: 100, maxMs: dayMs })
    this.#ttlMs = durationOr(Math.max(30_000, this.#minTtlMs), 'ttl', options.ttl, this.#ttlBounds)
    this.#timeoutMs = durationOr(10_000, 'requestTimeout', options.requestTimeout, {
      minMs: 100,
      maxMs: 300_000,
    })
    const { label = `${hostname()}:${process.pid}`, meta = {} } = options
    const logger = options.logger === undefined ? silent : harmless(options.logger)
    this.#clock = clock
    this.#logger = logger
    // Every election listens to it: that is no leak to be warned of.
    setMaxListeners(0, this.#closed.signal)
    this.#identity = {
      label: checkName('label', label),
      host: hostname(),
      pid: process.pid,
      meta: checkMeta(meta),
    }
    const config = connectionConfig(options)
    const timeoutMs = this.#timeoutMs
    const wakes = new Wakes()
    const watch = new ServerWatch(logger, (what) => this.#leases.databaseMoved(new Error(what)))
    this.#connect = (applicationName, ear) => {
      const connection = new Connection(
        { config, applicationName, clock, logger, ...(ear === undefined ? {} : { ear }) },
        schemaGreeting,
      )
      connection.reportTo(watch)
      return connection
    }
    this.#grants = grants ?? grantsConnection(config, clock, logger)
    this.#grants.reportTo(watch)
    const listens = checkFlag('listen', options.listen, true)
    const channel = listens ? `fencepost_${randomBytes(16).toString('hex')}` : undefined
    this.#protocol = new Protocol({ grants: this.#grants, clock, logger, timeoutMs, wakes, channel })
    this.#listener =
      channel !== undefined
        ? new Listener({
            channel,
            connect: (ear) => this.#connect('fencepost listener', ear),
            notify: (payloads) => this.#protocol.notify(payloads),
            heard: (wake) => wakes.deliver(wake),
            changed: () => wakes.askAll(),
            clock,
            logger,
            timeoutMs,
          })
        : undefined
    this.#leases = new LeaseClient({
      protocol: this.#protocol,
      clock,
      logger,
      identity: this.#identity,
      wakes,
      listener: this.#listener,
      connectBeats: () => this.#connect('fencepost beats'),
      createLease: (held) => new Lease(held),
    })
  }

  /**
   * Connects and checks the schema.
   *
   * @throws InvalidArgumentError for a wrong option or when no database is named.
   * @throws DatabaseError with code `SCHEMA_MISSING`, `SCHEMA_OUTDATED`, `AUTHENTICATION_FAILED`, `READ_ONLY_SERVER`,
   * `PERMISSION_DENIED` or `DATABASE_UNAVAILABLE`.
   */
  static async open(options: OpenOptions = {}): Promise<Fencepost> {
    return Fencepost.#open(options)
  }

  static {
    openOn = (grants, options) => Fencepost.#open(options, grants)
    openWithClock = (clock, options) => Fencepost.#open(options, undefined, clock)
  }

  static async #open(options: OpenOptions, grants?: Grants, clock?: Clock): Promise<Fencepost> {
    const fencepost = new Fencepost(options, grants?.connection, clock)
    try {
      await (grants?.connected ?? fencepost.#grants.connect(fencepost.#timeoutMs))
      return fencepost
    } catch (error) {
      await fencepost.close()
      throw error instanceof RequestFailure ? describeFailure(error, 'open fencepost') : error
    }
  }

  /**
   * Installs or upgrades the schema `fencepost`, or removes its newest migration. Safe for any number of processes at
   * once, and nothing to do for a role that may not create anything once it is installed.
   *
   * @throws DatabaseError
   */
  static async migrate(options: ConnectOptions & MigrateOptions = {}): Promise<MigrateResult> {
    const { migrate } = await import('./database/migrate.ts')
    return migrate(connectionConfig(options), options)
  }

  /**
   * Protects a table of the caller's: from now on the database refuses every write to it, and to each of its partitions,
   * whose transaction carries no valid fence of a lease that guards it, whoever the writer is. Adds the fence column when it
   * is missing (no rewrite of the table). Nothing to do where all is as wanted; on a table protected otherwise it replaces
   * the protection in one step. `table` is its name, with its schema where needed.
   *
   * Writers are held up for moments only: it waits for its lock at most 1.5 s at a time, and leaves the queue in between.
   *
   * Not covered: a superuser or owner who disables triggers, a role with the right TRIGGER that replaces them,
   * `session_replication_role = replica`, the apply workers of logical replication, and partitions made later, until it is
   * called again. `fencepost doctor` finds these.
   *
   * @returns how many tables are guarded: it and its partitions.
   * @throws InvalidArgumentError; DatabaseError with code `UNKNOWN_TABLE`, `UNKNOWN_COLUMN` (of a template),
   * `NOT_PROTECTABLE` (a view, a foreign or system table, a partition, a fence column of another type), `TABLE_BUSY` or
   * `PERMISSION_DENIED`: nothing was changed.
   * @example
   * ```ts
   * import { Fencepost } from 'fencepost'
   *
   * const connectionString = process.env.DATABASE_URL
   * await Fencepost.protect('accounts', { connectionString, lease: 'settlement' })
   * await Fencepost.protect('orders', { connectionString, lease: 'customer/{customer_id}' })
   * ```
   */
  static async protect(table: string, options: ConnectOptions & ProtectOptions): Promise<number> {
    const { protectTable } = await import('./fence/protection.ts')
    return protectTable(connectionConfig(options), table, options)
  }

  /**
   * Takes a table's protection away. The fence column stays, with what it holds.
   *
   * @returns how many tables had triggers; 0 when there was nothing to do.
   * @throws DatabaseError with code `UNKNOWN_TABLE`, `TABLE_BUSY` or `PERMISSION_DENIED`: nothing was changed.
   */
  static async unprotect(
    table: string,
    options: ConnectOptions & { readonly wait?: Duration | undefined } = {},
  ): Promise<number> {
    const { unprotectTable } = await import('./fence/protection.ts')
    return unprotectTable(connectionConfig(options), table, options)
  }

  /**
   * Protects a schema of the database: DDL in it is refused in a transaction without a valid fence of a lease that guards it,
   * so that a stale migration runner cannot alter it either. By event triggers, which only a superuser may create.
   *
   * Not covered: what event triggers do not see or the catalogs do not count to the schema: roles, REASSIGN OWNED, TRUNCATE,
   * casts, publications, membership in an extension, and event triggers themselves. A statement with CONCURRENTLY commits on the
   * way: a lease lost in the middle of it is noticed at its end only, and an index stays that is INVALID. DDL elsewhere that runs
   * while somebody commits DDL in the schema may be refused without need.
   *
   * @throws InvalidArgumentError; DatabaseError with code `PERMISSION_DENIED`, `UNKNOWN_TABLE` (no such schema) or
   * `NOT_PROTECTABLE`.
   */
  static async protectSchema(schema: string, options: ConnectOptions & ProtectSchemaOptions): Promise<void> {
    const { protectSchema } = await import('./fence/protection.ts')
    return protectSchema(connectionConfig(options), schema, options)
  }

  /** @returns whether there was a protection to take away. */
  static async unprotectSchema(schema: string, options: ConnectOptions = {}): Promise<boolean> {
    const { unprotectSchema } = await import('./fence/protection.ts')
    return unprotectSchema(connectionConfig(options), schema)
  }

  /** The tables and schemas that are protected, by name, and which of their partitions lack the protection. */
  static async protections(options: ConnectOptions = {}): Promise<Protections> {
    const { listProtections } = await import('./fence/protection.ts')
    return listProtections(connectionConfig(options))
  }

  /**
   * Looks for everything that breaks the wall or a promise: triggers that are missing or disabled, roles and settings that get
   * past them, rows that somebody has edited, standbys and settings that lose what was answered, a pooler that leaks SET. Each
   * finding says what mends it. Changes nothing. With few rights it sees less, and notes what it did not see.
   *
   * @throws DatabaseError when the database cannot be used. A schema that is missing is a finding.
   * @example
   * ```ts
   * import { Fencepost } from 'fencepost'
   *
   * const { findings } = await Fencepost.doctor({ connectionString: process.env.DATABASE_URL })
   * const errors = findings.filter((finding) => finding.severity === 'error')
   * for (const { code, what, fix } of errors) console.error(code, what, fix)
   * ```
   */
  static async doctor(options: ConnectOptions = {}): Promise<DoctorReport> {
    const { examine } = await import('./doctor/doctor.ts')
    return examine(connectionConfig(options))
  }

  /**
   * Asks once for a term that nobody renews: it ends by itself after its TTL, whatever becomes of this process. For work
   * that outlives it, such as a shell's or a person's. Give it back early with `endFixedTerm`.
   *
   * @throws NotAcquiredError when somebody else holds the lease; DatabaseError.
   * @example
   * ```ts
   * import { Fencepost, fencedTransaction } from 'fencepost'
   * import { Pool } from 'pg'
   *
   * const connectionString = process.env.DATABASE_URL
   * const pool = new Pool({ connectionString })
   * const fencepost = await Fencepost.open({ connectionString })
   * const fence = await fencepost.takeFixedTerm('stock-taking', { ttl: '20m' })
   * await fencedTransaction(fence, pool, (client) => client.query('update stock set counted = true'))
   * await fencepost.endFixedTerm(fence)
   * ```
   */
  async takeFixedTerm(name: string, options: LeaseOptions = {}): Promise<Fence> {
    if (this.#closing !== undefined) throw closedError()
    const { ttlMs, asking } = this.#request(name, options)
    return { term: await takeFixedTerm(this.#protocol, this.#identity, { name, ttlMs, asking }) }
  }

  /**
   * Ends the holder of a fixed term, for good. The lease is free at once, or after its `graceAfterCrash` or `minHold`. Of no effect when
   * it has ended already.
   */
  async endFixedTerm(fence: Fence): Promise<void> {
    if (this.#closing !== undefined) throw closedError()
    try {
      await this.#protocol.end(fence.term.holderId)
    } catch (error) {
      throw error instanceof RequestFailure ? describeFailure(error, 'give a term back') : error
    }
  }

  /**
   * Waits for the lease and returns it. Callers of one process get it in the order they asked.
   *
   * @throws NotAcquiredError when `wait` has passed; the signal's reason when it aborted.
   */
  async acquire(name: string, options: AcquireOptions = {}): Promise<Lease> {
    const leases = await this.#leases.acquire(waiting(this.#request(name, options), options))
    return leases[0]!
  }

  /**
   * Asks once. Null when somebody else holds the lease, in this process or in another.
   *
   * @throws DatabaseError; with code `OUTCOME_UNKNOWN` when the answer was lost. What may have been granted is then
   * given back as soon as the database answers, after the TTL at the latest.
   */
  async tryAcquire(name: string, options: LeaseOptions = {}): Promise<Lease | null> {
    const leases = await this.#leases.tryAcquire(this.#request(name, options))
    return leases?.[0] ?? null
  }

  /**
   * Runs `work` under the lease and gives it back when `work` has settled, not before. `lease.signal` tells `work` when to
   * stop early.
   *
   * @throws NotAcquiredError; what `work` throws; LeaseLostError when the lease was lost although `work` settled well.
   */
  withLease<T>(name: string, options: AcquireOptions, work: (lease: Lease) => Promise<T>): Promise<T>
  withLease<T>(name: string, work: (lease: Lease) => Promise<T>): Promise<T>
  async withLease<T>(
    name: string,
    optionsOrWork: AcquireOptions | ((lease: Lease) => Promise<T>),
    lastWork?: (lease: Lease) => Promise<T>,
  ): Promise<T> {
    const { options, work } = optionsAndWork(optionsOrWork, lastWork)
    return underLeases(await this.acquire(name, options), work)
  }

  /**
   * Waits for all of the leases and returns them together, or none: no order of the names can deadlock, in one process or
   * in several. They share the options, the TTL and the sequence among them. Meanwhile none of them is held. 1 to 1,000 names, all
   * different.
   *
   * Not guaranteed: fairness. While it waits, others may be granted one of the leases again and again.
   *
   * @throws NotAcquiredError when `wait` has passed, for one that stood in the way; the signal's reason when it aborted.
   * @example
   * ```ts
   * await using leases = await fencepost.acquireAll(['stock/7', 'stock/9'], { wait: '5s' })
   * console.log(leases.get('stock/7').token)
   * ```
   */
  async acquireAll(names: readonly string[], options: AcquireOptions = {}): Promise<Leases> {
    return new Leases(await this.#leases.acquire(waiting(this.#requestAll(names, options), options)))
  }

  /**
   * Asks once for all of the leases. Null when one of them is held by somebody else, in this process or in another.
   *
   * @throws DatabaseError; with code `OUTCOME_UNKNOWN` when the answer was lost, as `tryAcquire`.
   */
  async tryAcquireAll(names: readonly string[], options: LeaseOptions = {}): Promise<Leases | null> {
    const leases = await this.#leases.tryAcquire(this.#requestAll(names, options))
    return leases === null ? null : new Leases(leases)
  }

  /**
   * Runs `work` under all of the leases and gives them back when it has settled: `withLease` for several.
   *
   * @throws NotAcquiredError; what `work` throws; LeaseLostError when one was lost although `work` settled well.
   */
  withLeases<T>(
    names: readonly string[],
    options: AcquireOptions,
    work: (leases: Leases) => Promise<T>,
  ): Promise<T>
  withLeases<T>(names: readonly string[], work: (leases: Leases) => Promise<T>): Promise<T>
  async withLeases<T>(
    names: readonly string[],
    optionsOrWork: AcquireOptions | ((leases: Leases) => Promise<T>),
    lastWork?: (leases: Leases) => Promise<T>,
  ): Promise<T> {
    const { options, work } = optionsAndWork(optionsOrWork, lastWork)
    return underLeases(await this.acquireAll(names, options), work)
  }

  /**
   * Asks once for many leases that have nothing to do with each other, in a few statements whatever their number. 1 to 10,000
   * names, all different.
   *
   * @returns those that were granted, by name; a name that is missing is held by somebody else.
   * @throws DatabaseError when one of the statements failed. What others were granted is given back then: before the error
   * reaches the caller when the database answers, else as soon as it does.
   * @example
   * ```ts
   * const shards = await fencepost.acquireMany(['shard/1', 'shard/2', 'shard/3'], { ttl: '15s' })
   * for (const [name, lease] of shards) console.log(name, lease.token)
   * await fencepost.releaseMany(shards.values())
   * ```
   */
  async acquireMany(names: readonly string[], options: LeaseOptions = {}): Promise<Map<string, Lease>> {
    const request = this.#requestAll(names, options, maxMany)
    const answers = await Promise.allSettled(
      request.names.map((name) => this.#leases.tryAcquire({ ...request, names: [name] })),
    )
    const granted = answers.flatMap((answer) => (answer.status === 'fulfilled' ? (answer.value ?? []) : []))
    const failed = answers.find((answer) => answer.status === 'rejected')
    if (failed !== undefined) {
      const givenBack = this.releaseMany(granted)
      const { code } = failed.reason as { code?: unknown }
      if (code !== 'OUTCOME_UNKNOWN' && code !== 'DATABASE_UNAVAILABLE') await givenBack
      throw failed.reason
    }
    return new Map(granted.map((lease) => [lease.name, lease]))
  }

  /** Gives many leases back, in a few statements, and tells what became of each, in their order. Never throws. */
  async releaseMany(leases: Iterable<Lease>): Promise<ReleaseOutcome[]> {
    return Promise.all([...leases].map((lease) => lease.release()))
  }

  /**
   * Takes part in the election of one leader among all processes that elect under this name: it stands in line for the lease of that
   * name, calls `lead` when it is elected, and stands again after each term, until it is stopped. Never two `lead` at once in
   * a process. `lease.signal` tells `lead` when it must stop; the lease is given up when it has settled, not before.
   *
   * With `candidate: false` it only watches, and needs no `lead`.
   *
   * @throws InvalidArgumentError; what happens later is told by events.
   * @example
   * ```ts
   * const election = fencepost.elect('scheduler', { ttl: '10s' }, async (lease) => {
   *   while (!lease.signal.aborted) {
   *     await lease.transaction(db, async (tx) => {
   *       await tx.updateTable('accounts').set({ status: 'settled' }).where('status', '=', 'due').execute()
   *     })
   *   }
   * })
   * election.on('ended', ({ token, reason }) => console.log(`led under token ${token}: ${reason}`))
   * process.once('SIGTERM', () => void election.stop())
   * ```
   */
  elect(
    name: string,
    options: LeaseOptions & ElectionOptions,
    lead?: (lease: Lease) => unknown,
  ): Election<Lease> {
    if (this.#closing !== undefined) throw closedError()
    const request = waiting(this.#request(name, options), {})
    return new Election(name, options, lead, {
      clock: this.#clock,
      logger: this.#logger,
      closed: this.#closed.signal,
      line: this.#elections,
      ttlMs: request.ttlMs,
      random: Math.random,
      acquire: async (signal) => (await this.#leases.acquire({ ...request, signal }))[0]!,
      leader: async () => {
        const lease = await this.inspect(name)
        return lease?.state === 'held' ? asLeader(lease) : undefined
      },
    })
  }

  /** Every lease the database knows, by name: for people and tools, out of date the moment it is read. */
  async leases(): Promise<LeaseInfo[]> {
    const rows = await this.#ask('list the leases', listLeases, [null])
    return rows.map(readLeaseInfo)
  }

  /** One lease as the database knows it, with those who stand in line; undefined when it was never granted, or is forgotten. */
  async inspect(name: string): Promise<LeaseInfo | undefined> {
    const checked = checkName('the name of a lease', name)
    const [row] = await this.#ask(`look at lease "${checked}"`, listLeases, [checked])
    return row === undefined ? undefined : readLeaseInfo(row)
  }

  /**
   * One lease with all that the database knows of it: those who stand in line, the fenced transactions that are open under it, and what was
   * taken away by force. Undefined when it was never granted, or is forgotten.
   *
   * @throws InvalidArgumentError; DatabaseError.
   * @example
   * ```ts
   * const lease = await fencepost.describe('deploy')
   * for (const { pid, ageMs } of lease?.transactions ?? []) console.log(`session ${pid} has kept it for ${ageMs} ms`)
   * ```
   */
  async describe(name: string): Promise<LeaseDetail | undefined> {
    const checked = checkName('the name of a lease', name)
    const { describeLease, readLeaseDetail } = await import('./operators/lease-detail.ts')
    const [row] = await this.#ask(`look at lease "${checked}"`, describeLease, [checked])
    return row === undefined ? undefined : readLeaseDetail(row)
  }

  /**
   * Everybody who takes part, the first to join first: holders that nobody has ended, alive or expired. Out of date the moment it is read.
   *
   * @throws DatabaseError
   * @example
   * ```ts
   * for (const { holder, leases, waits } of await fencepost.holders()) console.log(holder, leases, waits)
   * ```
   */
  async holders(): Promise<HolderInfo[]> {
    const { listHolders, readHolderInfo } = await import('./operators/holder-list.ts')
    const rows = await this.#ask('list the holders', listHolders, [])
    return rows.map(readHolderInfo)
  }

  /**
   * Takes a lease away from its holder: the term is over, and the first in line is granted the lease, or it is free. `token` says which term
   * is meant; when the lease has another one by now nothing changes. The holder's other leases stay. From the commit on the fence refuses
   * the old holder, so no write of it lands any more.
   *
   * Not guaranteed: that the old holder knows. It is not told; its `isHeld` stays true until it writes, releases or beats in vain, and what
   * it does outside the database goes on. A minimum hold goes on as well; a grace after a crash ends.
   *
   * For operators: an application's role may not call it.
   *
   * @returns what became of it; nothing has changed unless `outcome` is `released`.
   * @throws InvalidArgumentError; DatabaseError, with code `PERMISSION_DENIED` also when the sessions may not be ended, and `OUTCOME_UNKNOWN`
   * when the answer was lost: look with `describe`.
   * @example
   * ```ts
   * const lease = await fencepost.describe('deploy')
   * if (lease?.state === 'held') {
   *   const { outcome, next } = await fencepost.forceRelease('deploy', lease.token, { reason: 'runner 7 hangs', wait: '10s' })
   *   console.log(outcome, next?.holder)
   * }
   * ```
   */
  async forceRelease(name: string, token: bigint, options: ForceReleaseOptions): Promise<ForcedRelease> {
    const wake = async (wakes: readonly string[]): Promise<void> => {
      if (wakes.length === 0) return
      await this.#protocol.notify(wakes).catch((error: unknown) => {
        this.#logger.warn(
          `fencepost: a wake-up was not sent, the waiter finds out by asking: ${String(error)}`,
        )
      })
    }
    const timeoutMs = this.#timeoutMs
    const { forceRelease } = await import('./operators/force-release.ts')
    return forceRelease({ ask: this.#asking, clock: this.#clock, timeoutMs, wake }, name, token, options)
  }

  /**
   * Has the next token be greater than `floor`, and never lowers it: for use after a partial restore, when rows carry stamps above the
   * restored sequence. `fencepost doctor` finds the highest stamp. `floor`: at most 2^62, because it can never be lowered. `sequence`: default
   * `default`; one that is not there is made. For operators.
   *
   * @returns the last token as it is now: the floor, or what was above it.
   * @throws InvalidArgumentError; DatabaseError.
   * @example
   * ```ts
   * console.log(await fencepost.raiseTokenFloor(4711n)) // the next token is 4712 or more
   * ```
   */
  async raiseTokenFloor(
    floor: bigint,
    { sequence = 'default' }: { readonly sequence?: string | undefined } = {},
  ): Promise<bigint> {
    const { raiseTokenFloor } = await import('./operators/raise-token-floor.ts')
    return raiseTokenFloor(this.#asking, floor, sequence)
  }

  /**
   * The token sequences, by name: which kind each is of, and its last token.
   *
   * @throws DatabaseError
   * @example
   * ```ts
   * for (const { name, kind, lastToken } of await fencepost.sequences()) console.log(name, kind, lastToken)
   * ```
   */
  async sequences(): Promise<SequenceInfo[]> {
    const { listSequences, readSequenceInfo } = await import('./operators/sequences.ts')
    const rows = await this.#ask('list the token sequences', listSequences, [])
    return rows.map(readSequenceInfo)
  }

  /**
   * Makes a token sequence of this kind, or has one that is there go on in this way: a `counter`, as all are unless told otherwise, or a
   * `clock`. Safe at any time, in either direction: the next token is greater than the last one. For operators.
   *
   * A clock sequence hands no number out twice after an asynchronous failover, a restore or a move to another cluster, as long as the clock
   * then shows a later time than at the last grant that was lost. Its tokens have 16 digits (below 2^53 until the year 2255), so stamps need
   * a `bigint` column.
   *
   * @returns the last token.
   * @throws InvalidArgumentError; DatabaseError.
   * @example
   * ```ts
   * await fencepost.setSequenceKind('default', 'clock')
   * ```
   */
  async setSequenceKind(name: string, kind: SequenceKind): Promise<bigint> {
    const { setSequenceKind } = await import('./operators/sequences.ts')
    return setSequenceKind(this.#asking, name, kind)
  }

  /**
   * Forgets leases that nobody has held for so long, in short transactions, and what is recorded of holders and forced releases that are
   * older. Tokens go on rising. `olderThan`: 0 to 100 years. `onProgress` hears how many leases were forgotten so far. For operators.
   *
   * @returns how many leases were forgotten.
   * @throws InvalidArgumentError; DatabaseError: what was forgotten before it stays forgotten.
   */
  async purge(options: {
    readonly olderThan: Duration
    readonly onProgress?: ((forgotten: number) => void) | undefined
  }): Promise<number> {
    const olderThanMs = durationMs('olderThan', options.olderThan, { minMs: 0, maxMs: 100 * yearMs })
    const { purge } = await import('./operators/purge.ts')
    return purge(this.#asking, olderThanMs, options.onProgress ?? (() => {}))
  }

  /**
   * Ends every lease and closes the connections. Leases still held are lost, with reason `closed`, and go to whoever waits for them: at
   * once, or after their `graceAfterCrash` or `minHold`. Waiting callers are refused. Calling it again waits for the first.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  async #close(): Promise<void> {
    this.#closed.abort(closedError())
    await this.#leases.close(closedError())
    await Promise.all([this.#grants.close(), this.#listener?.close()])
  }

  readonly #asking: Ask = (action, text, values) => this.#ask(action, text, values)

  /** What may take long runs on a connection of its own, so that no grant queues behind it. */
  async #ask(action: string, text: string, values: readonly unknown[]): Promise<TextRow[]> {
    if (this.#closing !== undefined) throw closedError()
    const connection = this.#connect('fencepost administration')
    try {
      return await connection.query({ text, values, timeoutMs: this.#timeoutMs })
    } catch (error) {
      throw error instanceof RequestFailure ? describeFailure(error, action) : error
    } finally {
      await connection.close()
    }
  }

  #requestAll(names: readonly string[], options: LeaseOptions, most: number = maxTogether): AcquireRequest {
    if (!Array.isArray(names) || names.length < 1 || names.length > most) {
      throw new InvalidArgumentError(
        'names',
        names,
        `names must be a list of 1 to ${most} names; got ${show(names)}`,
      )
    }
    const seen = new Set<string>()
    const twice = names.find((name) => {
      if (seen.has(name)) return true
      seen.add(name)
      return false
    })
    if (twice !== undefined) {
      throw new InvalidArgumentError(
        'names',
        twice,
        `names must be all different; ${show(twice)} is there twice`,
      )
    }
    const checked = names.map((name) => checkName('the name of a lease', name))
    return { ...this.#request(checked[0]!, options), names: checked }
  }

  #request(name: string, options: LeaseOptions): AcquireRequest {
    const { ttl, sequence, minHold, maxHold, graceAfterCrash, barge } = options
    const names = [checkName('the name of a lease', name)]
    const ttlMs = durationOr(this.#ttlMs, 'ttl', ttl, this.#ttlBounds)
    if (
      sequence === undefined &&
      minHold === undefined &&
      maxHold === undefined &&
      graceAfterCrash === undefined &&
      barge === undefined
    ) {
      return { names, ttlMs, asking: plainly, waitMs: 0, signal: undefined }
    }
    const minHoldMs = durationOr(0, 'minHold', minHold, { minMs: 0, maxMs: dayMs })
    return {
      names,
      ttlMs,
      asking: {
        sequence: sequence === undefined ? 'default' : checkName('sequence', sequence),
        stands: false,
        barges: checkFlag('barge', barge, false),
        bounds: {
          minHoldMs,
          maxHoldMs: durationOr(Number.POSITIVE_INFINITY, 'maxHold', maxHold, {
            minMs: Math.max(this.#minTtlMs, minHoldMs),
            maxMs: yearMs,
          }),
          graceMs: durationOr(0, 'graceAfterCrash', graceAfterCrash, { minMs: 0, maxMs: dayMs }),
        },
      },
      waitMs: 0,
      signal: undefined,
    }
  }

  get #ttlBounds(): { minMs: number; maxMs: number } {
    return { minMs: this.#minTtlMs, maxMs: dayMs }
  }
}

/** The same request, ready to wait. Several leases, all or none, are waited for outside the line. */
function waiting(request: AcquireRequest, { wait, signal }: AcquireOptions): AcquireRequest {
  const waitMs = durationOr(Number.POSITIVE_INFINITY, 'wait', wait, { minMs: 0, maxMs: yearMs })
  const stands = waitMs > 0 && request.names.length === 1
  const { names, ttlMs, asking } = request
  const standing = asking === plainly ? standingPlainly : { ...asking, stands }
  return { names, ttlMs, asking: stands ? standing : asking, waitMs, signal }
}

/** How a lease is asked for without options: one object, because it is compared with each request. */
const plainly: Asking = {
  sequence: 'default',
  stands: false,
  barges: false,
  bounds: { minHoldMs: 0, maxHoldMs: Number.POSITIVE_INFINITY, graceMs: 0 },
}

const standingPlainly: Asking = { ...plainly, stands: true }

function checkFlag(option: string, value: unknown, otherwise: boolean): boolean {
  if (value === undefined) return otherwise
  if (typeof value === 'boolean') return value
  throw new InvalidArgumentError(option, value, `${option} must be true or false; got ${show(value)}`)
}

/** Null is no way to leave an option out: it is refused like any other value that is no duration. */
function durationOr(
  otherwiseMs: number,
  option: string,
  value: Duration | undefined,
  bounds: { readonly minMs: number; readonly maxMs: number },
): number {
  return value === undefined ? otherwiseMs : durationMs(option, value, bounds)
}

/** The last two arguments of `withLease` and `withLeases`, of which the options may be left out. */
function optionsAndWork<Held, T>(
  optionsOrWork: AcquireOptions | ((held: Held) => Promise<T>),
  lastWork: ((held: Held) => Promise<T>) | undefined,
): { options: AcquireOptions; work: (held: Held) => Promise<T> } {
  const options = typeof optionsOrWork === 'function' ? {} : optionsOrWork
  const work = typeof optionsOrWork === 'function' ? optionsOrWork : lastWork
  if (typeof work !== 'function') {
    throw new InvalidArgumentError('work', work, `work must be a function; got ${show(work)}`)
  }
  return { options, work }
}

/** Runs `work` and gives back what it ran under, when it has settled. */
async function underLeases<Held extends Lease | Leases, T>(
  held: Held,
  work: (held: Held) => Promise<T>,
): Promise<T> {
  const leases: readonly Lease[] = held instanceof Leases ? [...held] : [held]
  let lost: Lease | undefined
  let result: T
  let outcomes: ReleaseOutcome[] = []
  try {
    result = await work(held)
    lost = leases.find((lease) => lease.state === 'lost')
  } finally {
    outcomes = await Promise.all(leases.map((lease) => lease.release()))
  }
  // "not-held" is how a loss comes out that no heartbeat has met yet.
  lost ??= leases[outcomes.indexOf('not-held')]
  if (lost !== undefined) throw lost.loss ?? new LeaseLostError(lost.name, lost.token, 'ended')
  return result
}

function asLeader({ holder, host, pid, token, since }: LeaseInfo): Leader {
  return { holder, host, pid, token, since }
}

function closedError(): FencepostError {
  return new FencepostError('CLOSED', 'this Fencepost has been closed. Open another one.')
}

function checkMeta(meta: unknown): Readonly<Record<string, unknown>> {
  try {
    if (
      typeof meta === 'object' &&
      meta !== null &&
      !Array.isArray(meta) &&
      JSON.stringify(meta).length <= 8192
    ) {
      return meta as Record<string, unknown>
    }
  } catch {
    // Circular, or with a bigint: not JSON.
  }
  throw new InvalidArgumentError('meta', meta, 'meta must be an object of at most 8192 characters of JSON')
}
