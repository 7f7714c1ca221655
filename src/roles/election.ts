import type { Clock } from '../clock.ts'
import { type Duration, durationMs, show } from '../duration.ts'
import { FencepostError, InvalidArgumentError } from '../errors.ts'
import { Events } from '../lease/events.ts'
import type { HandOverOutcome } from '../lease/held-lease.ts'
import type { Token } from '../lease/term.ts'
import type { Line } from '../lease/line.ts'
import { Patience } from '../lease/patience.ts'
import type { Logger } from '../logger.ts'
import { type Leader, LeaderWatch } from './leader-watch.ts'
import { type ElectedLease, type EndReason, Office, handOver } from './office.ts'
import { isBrief, restMs } from './rest.ts'

/**
 * # Elections
 *
 * An *election* makes one of many processes the *leader*: the one that holds the lease of the election's name. Each time
 * a process is elected is a *term*, the lease's own, with its token. During it, `lead` runs.
 *
 *     standing ──granted──▶ leading ──lead settled──▶ giving up the lease ──▶ resting ──▶ standing
 *        ▲                     │                                                 ▲
 *        │                     └──lost──▶ draining ──lead settled────────────────┤
 *        └── a candidacy failed: resting ────────────────────────────────────────┘
 *
 *     stop(): standing and resting are over at once; a lead is asked to stop by its signal, and waited for.
 *
 * Rules:
 *
 * 1. `elected` and `ended` come once per term and in turn, and the tokens grow.
 * 2. A term ends when `lead` settles or when the lease is lost, whichever comes first. `ended` is told before the lease is
 *    given up, so what is done between the two never overlaps with another leader, as far as a clock on this
 *    machine can tell.
 * 3. The lease is given up when `lead` has settled, never before. A `lead` that does not settle keeps it, or when the election is
 *    being stopped, lets it run out.
 * 4. This process does not stand again before `lead` has settled, even when the lease is long lost. Elections of one name on one
 *    Fencepost stand one after the other.
 * 5. Between two candidacies lies a rest with jitter, which grows while terms are brief or candidacies fail.
 *
 * Not guaranteed: that a `lead` that ignores its signal has stopped working when another leader begins. That is what
 * the fence is for: what `lead` writes in `lease.transaction()` is refused once the term is stale.
 */

export interface ElectionOptions {
  /** Whether this process may be elected. Default true. With false it only watches, and needs no `lead`. */
  readonly candidate?: boolean | undefined
  /** How long `stop()` waits for `lead` to settle. 0 to 1 day, default 30 s. */
  readonly stopTimeout?: Duration | undefined
  /**
   * The shortest rest before this process stands again. It is lengthened by up to a half at random, and doubles, to 32 times or
   * a minute, while terms are shorter than ten of it or candidacies fail. 10 ms to 10 minutes, default 1 s.
   */
  readonly retryDelay?: Duration | undefined
}

/**
 * What became of a stopped election: of the lease it held; `not-leading`, because it held none; `abandoned`, because `lead`
 * has not settled within `stopTimeout`: it still runs, and the lease is not given back early but runs out within its
 * TTL, or is given up when `lead` settles before that.
 */
export type StopOutcome = HandOverOutcome | 'not-leading' | 'abandoned'

// oxlint-disable-next-line typescript/consistent-type-definitions -- An event map needs an index signature.
export type ElectionEvents = {
  /** This process leads. `lead` is called next. */
  elected: { readonly token: Token }
  /**
   * This process leads no more, for the term that was begun last. `error` is what `lead` threw (`failed`) or the LeaseLostError
   * (`lost`, `closed`, `abandoned`).
   */
  ended: { readonly token: Token; readonly reason: EndReason; readonly error: unknown }
  /**
   * Somebody else leads, or nobody does. The database is asked about twice per TTL while anybody listens and until `stop()`;
   * a term that comes and goes in between is not seen. The first look counts as a change.
   */
  leader: Leader | undefined
  /**
   * `lead` threw something else than its signal's news, in the term of `token`; or a candidacy failed for good, as by a missing
   * right, and `token` is undefined. It is tried again after a rest.
   */
  failed: { readonly error: unknown; readonly token: Token | undefined }
}

/** What an election needs from the room of leases, for its own name and with the lease's options in it. */
export interface Electorate<L extends ElectedLease> {
  readonly clock: Clock
  readonly logger: Logger
  readonly ttlMs: number
  /** Aborts when the Fencepost is closed. */
  readonly closed: AbortSignal
  /** Where elections of the same Fencepost stand in line. */
  readonly line: Line
  random(): number
  /** Waits for the lease. Throws the signal's reason when it aborts, and an error with code `CLOSED` when nothing is left to wait for. */
  acquire(signal: AbortSignal): Promise<L>
  /** Who holds the lease, from the database. */
  leader(): Promise<Leader | undefined>
}

const dayMs = 86_400_000

/**
 * One process's part in an election: it stands, leads when it is elected, and stands again after each term until it is
 * stopped or its Fencepost is closed. See `Fencepost.elect`.
 *
 * @example
 * ```ts
 * const election = fencepost.elect('scheduler', { ttl: '10s' }, async (lease) => {
 *   while (!lease.signal.aborted) {
 *     await lease.transaction(db, async (tx) => {
 *       await tx.updateTable('accounts').set({ status: 'settled' }).where('status', '=', 'due').execute()
 *     })
 *   }
 * })
 * election.on('elected', ({ token }) => console.log(`leading under token ${token}`))
 * election.on('ended', ({ reason, error }) => console.log(`leading no more: ${reason}`, error))
 * const leader = await election.leader()
 * console.log(leader?.holder, leader?.token)
 * await election.stop()
 * ```
 */
export class Election<L extends ElectedLease> implements AsyncDisposable {
  /** The name of the election and of its lease. */
  readonly name: string
  /** False when this process only watches. */
  readonly isCandidate: boolean
  readonly #lead: (lease: L) => unknown
  readonly #electorate: Electorate<L>
  readonly #stopTimeoutMs: number
  readonly #retryDelayMs: number
  readonly #events: Events<ElectionEvents>
  readonly #watch: LeaderWatch
  readonly #halt = new AbortController()
  readonly #over: Promise<void>
  #listenersToLeader = 0
  #office: Office<L> | undefined
  #stopped: Promise<StopOutcome> | undefined

  /**
   * Stands at once, unless it is no candidate.
   *
   * @throws InvalidArgumentError
   */
  constructor(
    name: string,
    options: ElectionOptions,
    lead: ((lease: L) => unknown) | undefined,
    electorate: Electorate<L>,
  ) {
    const { candidate = true, stopTimeout = 30_000, retryDelay = 1000 } = options
    if (typeof candidate !== 'boolean') {
      throw new InvalidArgumentError(
        'candidate',
        candidate,
        `candidate must be true or false; got ${show(candidate)}`,
      )
    }
    if (typeof lead !== 'function' && (candidate || lead !== undefined)) {
      throw new InvalidArgumentError('lead', lead, `lead must be a function; got ${show(lead)}`)
    }
    this.#stopTimeoutMs = durationMs('stopTimeout', stopTimeout, { minMs: 0, maxMs: dayMs })
    this.#retryDelayMs = durationMs('retryDelay', retryDelay, { minMs: 10, maxMs: 600_000 })
    this.name = name
    this.isCandidate = candidate
    this.#lead = lead ?? (() => {})
    this.#electorate = electorate
    const { clock, logger, ttlMs } = electorate
    this.#events = new Events(logger)
    this.#watch = new LeaderWatch({
      name,
      ttlMs,
      clock,
      logger,
      random: () => electorate.random(),
      look: () => electorate.leader(),
      onChange: (leader) => this.#events.emit('leader', leader),
    })
    electorate.closed.addEventListener('abort', () => this.#watch.stop(), { once: true })
    this.#over = candidate ? this.#stand() : Promise.resolve()
  }

  /**
   * Whether this process leads, by this machine's clock and the last confirmed heartbeat. It is arithmetic, so it is right
   * even when the event loop was blocked.
   */
  get isLeader(): boolean {
    return this.lease?.isHeld ?? false
  }

  /** The lease of the term that this process leads in; undefined when it does not lead, also while a `lead` still drains. */
  get lease(): L | undefined {
    return this.#office?.lease
  }

  /**
   * Who leads now, from the database: this process, another one, or nobody (undefined). Out of date the moment it is read.
   *
   * @throws DatabaseError
   */
  leader(): Promise<Leader | undefined> {
    return this.#electorate.leader()
  }

  /**
   * Listens to an event of this election; the returned function stops it. Listeners are called in the order of the events. One
   * that throws is reported to the logger and hurts nobody.
   */
  on<Name extends keyof ElectionEvents>(
    name: Name,
    listener: (event: ElectionEvents[Name]) => unknown,
  ): () => void {
    const off = this.#events.on(name, listener)
    if (name !== 'leader') return off
    this.#listenersToLeader += 1
    if (this.#stopped === undefined && !this.#electorate.closed.aborted) this.#watch.start()
    let isListening = true
    return () => {
      off()
      if (!isListening) return
      isListening = false
      this.#listenersToLeader -= 1
      if (this.#listenersToLeader === 0) this.#watch.stop()
    }
  }

  /**
   * Stands and watches no more. A `lead` that runs is told by `lease.signal` and waited for, up to `stopTimeout`; then the lease goes
   * straight to the next candidate that waits. Calling it again returns the first call's outcome. Never throws. Do not await it
   * inside `lead`, which it waits for.
   */
  stop(): Promise<StopOutcome> {
    if (this.#stopped !== undefined) return this.#stopped
    // Known before anything is told: what hears of it may call this again at once.
    const { promise, resolve, reject } = Promise.withResolvers<StopOutcome>()
    this.#stopped = promise
    this.#stop().then(resolve, reject)
    return promise
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  async #stop(): Promise<StopOutcome> {
    const reason = new FencepostError(
      'ELECTION_STOPPED',
      `election "${this.name}" is being stopped in this process. Finish the work, and return.`,
    )
    const office = this.#office
    this.#watch.stop()
    this.#halt.abort(reason)
    const outcome = (await office?.stop(reason)) ?? 'not-leading'
    // What was granted in the very moment of stopping is given back there.
    if (outcome !== 'abandoned') await this.#over
    return outcome
  }

  /** Stands and leads, again and again, until it is stopped or its Fencepost is closed. Never rejects. */
  async #stand(): Promise<void> {
    const { clock, line, logger } = this.#electorate
    const over = AbortSignal.any([this.#halt.signal, this.#electorate.closed])
    const patience = new Patience(clock, Number.POSITIVE_INFINITY, over)
    let inARow = 0
    try {
      for (;;) {
        // oxlint-disable-next-line no-await-in-loop -- One term after the other is the point.
        const turn = await line.enter(this.name, patience)
        let candidacy: Candidacy
        try {
          // oxlint-disable-next-line no-await-in-loop
          candidacy = await this.#candidacy()
        } finally {
          turn.leave()
        }
        if (candidacy === 'over') return
        inARow = candidacy === 'steady' ? 1 : inARow + 1
        // oxlint-disable-next-line no-await-in-loop
        await patience.sleep(restMs(this.#retryDelayMs, inARow, this.#electorate.random()))
      }
    } catch (error) {
      if (!over.aborted) logger.error(`fencepost: election "${this.name}" is over: ${String(error)}`)
    } finally {
      patience.done()
    }
  }

  /** Stands once and, when elected, leads until the next candidacy may begin. */
  async #candidacy(): Promise<Candidacy> {
    const { clock, logger } = this.#electorate
    const halt = this.#halt.signal
    let lease: L
    try {
      lease = await this.#electorate.acquire(halt)
    } catch (error) {
      return this.#notElected(error)
    }
    if (halt.aborted || lease.state === 'lost') {
      await handOver(lease, logger)
      return halt.aborted ? 'over' : 'brief'
    }
    const { token } = lease
    const office = new Office({
      lease,
      lead: this.#lead,
      clock,
      logger,
      stopTimeoutMs: this.#stopTimeoutMs,
      onEnd: ({ reason, error }) => {
        this.#events.emit('ended', { token, reason, error })
        this.#watch.hurry()
      },
      onFailure: (error) => this.#failed(error, token),
    })
    this.#office = office
    this.#events.emit('elected', { token })
    this.#watch.hurry()
    await office.serve()
    this.#office = undefined
    this.#watch.hurry()
    if (halt.aborted || office.end?.reason === 'closed') return 'over'
    return isBrief(office.ledMs, this.#retryDelayMs) ? 'brief' : 'steady'
  }

  #notElected(error: unknown): Candidacy {
    if (this.#halt.signal.aborted) return 'over'
    if (error instanceof FencepostError && error.code === 'CLOSED') {
      this.#watch.stop()
      return 'over'
    }
    this.#failed(error, undefined)
    return 'brief'
  }

  #failed(error: unknown, token: Token | undefined): void {
    const { logger } = this.#electorate
    const what = token === undefined ? 'could not stand' : `lead failed (token ${token})`
    logger.error(`fencepost: election "${this.name}": ${what}: ${String(error)}`)
    this.#events.emit('failed', { error, token })
  }
}

/** How a candidacy went: `brief` also when it failed; `over`: there will be no other. */
type Candidacy = 'steady' | 'brief' | 'over'
