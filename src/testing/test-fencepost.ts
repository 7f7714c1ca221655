import type { ClientConfig } from 'pg'
import { connectionConfig } from '../database/connect-options.ts'
import { type Duration, durationMs } from '../duration.ts'
import type { LeaseLostError } from '../errors.ts'
import type { Lease } from '../fence/lease.ts'
import { type Fencepost, type OpenOptions, openWithClock } from '../fencepost.ts'
import { checkName } from '../lease/name.ts'
import { Backstage } from './backstage.ts'
import { FaultyProxy } from './faulty-proxy.ts'
import { MovableClock } from './movable-clock.ts'
import { OwnTerms } from './own-terms.ts'
import { type DroppableReply, type ReplyDrop, patternOf } from './reply-drop.ts'
import { Rival, type RivalLease } from './rival.ts'
import { readConfig, urlThrough } from './server-address.ts'
import { TestKitError } from './test-kit-error.ts'

/** As for `Fencepost.open`, of which all other options are those; `minTtl` is 100 ms here unless it is named. */
export interface TestFencepostOptions extends OpenOptions {
  /**
   * The same database for `steal` and `expire`, as a role that may do that: the owner of the schema `fencepost`, or a superuser. Default:
   * what fencepost itself connects with.
   */
  readonly ownerConnectionString?: string | undefined
}

const dayMs = 86_400_000
const lookEveryMs = 100

/**
 * Opens a real Fencepost on a real database, with everything in between that can go wrong: a proxy of its own, a clock that can be
 * moved, and a rival who takes leases.
 *
 * It is for tests. It refuses to open where NODE_ENV is `production`; and what it does to leases it does only to those whose
 * holder has joined through its own proxy, and to those that nobody holds.
 *
 * @throws TestKitError with code `IN_PRODUCTION`; what `Fencepost.open` throws.
 * @example
 * ```ts
 * import { lost, openTestFencepost } from 'fencepost/testing'
 *
 * await using kit = await openTestFencepost({ connectionString: process.env.DATABASE_URL })
 * const lease = await kit.fencepost.acquire('jobs/import')
 * await kit.steal('jobs/import')
 * console.log(lease.isHeld) // true: nobody has told it
 * await kit.moveClock('10s') // a third of the TTL: the next heartbeat is due
 * console.log((await lost(lease)).reason) // ended
 * ```
 */
export async function openTestFencepost(options: TestFencepostOptions = {}): Promise<TestFencepost> {
  return open(options)
}

/** Settles with why it was lost when the lease is lost; at once when it is lost already. Never when it is released instead. */
export function lost(lease: Pick<Lease, 'on'>): Promise<LeaseLostError> {
  return new Promise((settle) => {
    lease.on('lost', settle)
  })
}

interface Parts {
  readonly fencepost: Fencepost
  readonly proxy: FaultyProxy
  readonly clock: MovableClock
  readonly backstage: Backstage
  readonly rival: Rival
  readonly terms: OwnTerms
  readonly url: string
}

/** Only here, so that nobody can make one by `new`. */
let open: (options: TestFencepostOptions) => Promise<TestFencepost>

/**
 * A Fencepost under test, and what can be done to it. All of it takes effect at once and waits for no TTL to pass. Close it when the
 * test is over: it ends what it has begun.
 *
 * Many of them may be open on one database, in one process or in several: none touches what another has opened. Leases are the
 * database's, so tests that run at once must not use the same names on the same database.
 *
 * Not guaranteed: that a process is stopped. `pause` stops what goes through the proxy; the code of the test and of the application runs on.
 */
export class TestFencepost implements AsyncDisposable {
  readonly #parts: Parts
  #closing: Promise<void> | undefined
  readonly #closed = Promise.withResolvers<never>()

  private constructor(parts: Parts) {
    this.#parts = parts
    this.#closed.promise.catch(() => {})
  }

  static {
    open = (options) => TestFencepost.#open(options)
  }

  static async #open(options: TestFencepostOptions): Promise<TestFencepost> {
    if (process.env['NODE_ENV'] === 'production') {
      throw new TestKitError(
        'IN_PRODUCTION',
        'fencepost/testing takes leases away and breaks connections, and NODE_ENV is "production". Run tests with another one.',
      )
    }
    const { ownerConnectionString, connectionString, connection, ...rest } = options
    const config = connectionConfig({ connectionString, connection })
    const ownerConfig =
      ownerConnectionString === undefined
        ? config
        : connectionConfig({ connectionString: ownerConnectionString })
    const timeoutMs = durationMs('requestTimeout', options.requestTimeout ?? '10s', {
      minMs: 100,
      maxMs: 300_000,
    })
    const { address, credentials } = await readConfig(config)
    const backstage = new Backstage(ownerConfig, timeoutMs)
    const rival = new Rival(backstage, timeoutMs)
    let proxy: FaultyProxy | undefined
    try {
      // Without the proxy in between the errors say best what is wrong.
      await backstage.alone('open fencepost', () => backstage.connection.connect(timeoutMs))
      proxy = await FaultyProxy.start(address)
      const clock = new MovableClock()
      const url = urlThrough(proxy.port, credentials, config.connectionString)
      const fencepost = await openWithClock(clock, {
        minTtl: '100ms',
        ...rest,
        connection: withoutServer(connection),
        connectionString: url,
      })
      const terms = new OwnTerms(backstage, rival, proxy.holders, timeoutMs)
      return new TestFencepost({ fencepost, url, proxy, clock, backstage, rival, terms })
    } catch (error) {
      await proxy?.stop()
      await rival.close()
      await backstage.close()
      throw error
    }
  }

  /** The Fencepost under test: give it to the application. Closing it is the kit's, and no harm when the application does it. */
  get fencepost(): Fencepost {
    return this.#parts.fencepost
  }

  /**
   * The same database through the same proxy, for the application's own pools, and for a Fencepost that the application opens by
   * itself, in this process or in another: they meet the same faults, except for `moveClock`. Between them and the proxy there is no
   * TLS; the proxy talks to the server as the URL said that was given. The password is in it; one from ~/.pgpass is not.
   */
  get connectionString(): string {
    return this.#parts.url
  }

  /**
   * Somebody else takes the lease, which nobody must hold, and keeps it until it is released: for code that does not get it
   * (`NOT_ACQUIRED`, null, or a wait). `sequence`: the token sequence of the lease where it is not `default`.
   *
   * @throws TestKitError with code `KIT_CLOSED`; InvalidArgumentError; NotAcquiredError when somebody holds the lease: `steal` takes it
   * from him; SequenceMismatchError; DatabaseError.
   */
  async hold(
    name: string,
    { sequence = 'default' }: { readonly sequence?: string | undefined } = {},
  ): Promise<RivalLease> {
    this.#assertOpen()
    const { backstage, rival } = this.#parts
    const checked = checkName('the name of a lease', name)
    const checkedSequence = checkName('sequence', sequence)
    const taken = await backstage.alone(`hold lease "${checked}"`, async () => {
      await rival.join()
      return rival.take(checked, checkedSequence)
    })
    return taken
  }

  /**
   * Somebody else holds the lease from now on, as after a pause of its holder that was too long: the holder has been ended, and
   * with it all leases of the same TTL that its Fencepost holds; a minimum hold and a grace are over. Fenced transactions of it that
   * are open are cut off, as the server does with those that stand still for a TTL.
   *
   * The holder is not told: `isHeld` stays true and the signal quiet until its next heartbeat, at most a third of the TTL later. What it
   * writes until then is refused by the fence (`STALE_TERM`).
   *
   * @returns what the rival holds, to give it back.
   * @throws TestKitError with code `KIT_CLOSED`, `UNKNOWN_LEASE`, `NOT_HELD`, `FOREIGN_HOLDER` (it was not acquired through this kit), or
   * `STILL_IN_USE` (fenced transactions follow one upon the other without a gap for the `requestTimeout`); InvalidArgumentError; DatabaseError, with code
   * `PERMISSION_DENIED` for a role that may not do it: see `ownerConnectionString`.
   */
  async steal(name: string): Promise<RivalLease> {
    this.#assertOpen()
    const checked = checkName('the name of a lease', name)
    // Awaited, here and below, so that the stack of an error leads to the line of the test.
    const taken = await this.#parts.terms.steal(checked)
    return taken
  }

  /**
   * The TTL of the lease's holder has passed in the database, and of all leases of the same TTL with it: the fence refuses new
   * transactions (`HOLDER_EXPIRED`), and whoever asks for the lease gets it, after its grace if it has one; the first in line is woken to ask. The holder is not told. Its next
   * heartbeat, at most a third of the TTL later, brings it back unless somebody was faster, as it does in production; `pause` keeps it from
   * that.
   *
   * @throws TestKitError with code `KIT_CLOSED`, `UNKNOWN_LEASE`, `NOT_HELD` or `FOREIGN_HOLDER` (it was not acquired through this kit);
   * InvalidArgumentError; DatabaseError, with code `PERMISSION_DENIED` for a role that may not do it: see `ownerConnectionString`.
   */
  async expire(name: string): Promise<void> {
    this.#assertOpen()
    const checked = checkName('the name of a lease', name)
    await this.#parts.terms.expire(checked)
  }

  /**
   * From now on nothing gets through, in either direction, on old connections and on new ones, as when the process is stopped (SIGSTOP, a
   * suspended VM, a long garbage collection) or the network is silent. Nothing is lost: it arrives after `resume`. No fault for the rival.
   *
   * @throws TestKitError with code `KIT_CLOSED`.
   */
  pause(): void {
    this.#assertOpen()
    this.#parts.proxy.hold()
  }

  /**
   * Resets all connections, and each new one until `resume`: the database is away. What was asked and not answered has an
   * unknown outcome. `cut` and then `resume` at once: the connections are lost, and the database can be reached.
   *
   * @returns when clients in this process have heard of it.
   * @throws TestKitError with code `KIT_CLOSED`.
   */
  async cut(): Promise<void> {
    this.#assertOpen()
    await this.#parts.proxy.cut()
  }

  /**
   * Ends `pause` and `cut`.
   *
   * @throws TestKitError with code `KIT_CLOSED`.
   */
  resume(): void {
    this.#assertOpen()
    this.#parts.proxy.restore()
  }

  /**
   * The database carries out the next such request, and the connection is reset when the answer is there, which nobody hears: the outcome is
   * unknown. Of several drops each takes a request of its own. Returns at once; `dropped` tells when it has happened.
   *
   * @throws TestKitError with code `KIT_CLOSED` or `NO_SUCH_REPLY`.
   * @example
   * ```ts
   * import { openTestFencepost } from 'fencepost/testing'
   *
   * await using kit = await openTestFencepost()
   * kit.dropNextReply('acquire')
   * await kit.fencepost.tryAcquire('jobs/import').catch((error) => console.log(error.code)) // OUTCOME_UNKNOWN
   * ```
   */
  dropNextReply(to: DroppableReply): ReplyDrop {
    this.#assertOpen()
    return this.#parts.proxy.dropNext(patternOf(to))
  }

  /**
   * The clocks of `kit.fencepost`, monotonic and wall clock, jump ahead, as those of a process that was stopped: heartbeats that are due
   * are sent, and when more than its TTL has passed since the last one that was confirmed, a lease is lost (`expired`). The database's clock
   * stays, so nobody else is granted the lease before its holder's TTL has passed there: see `expire` and `steal`. Requests that are under
   * way time out when that jumps over their bound, as they do in a process that was stopped. 1 ms to 366 days.
   *
   * @returns when all that was due has begun; a heartbeat may not be answered yet.
   * @throws TestKitError with code `KIT_CLOSED`; InvalidArgumentError.
   */
  async moveClock(by: Duration): Promise<void> {
    this.#assertOpen()
    await this.#parts.clock.move(durationMs('by', by, { minMs: 1, maxMs: 366 * dayMs }))
  }

  /**
   * Settles when somebody stands in the database's line for the lease: a waiting `acquire` has been refused and waits. Callers of one
   * Fencepost that wait for a lease which that Fencepost holds do not stand there.
   * `within`: 1 ms to 1 day, default 3 s, which is less than a test may take in most frameworks.
   *
   * @throws TestKitError with code `KIT_CLOSED`, or `NOBODY_WAITS` when `within` has passed; InvalidArgumentError; DatabaseError.
   */
  async untilWaiting(
    name: string,
    { within = '3s' }: { readonly within?: Duration | undefined } = {},
  ): Promise<void> {
    this.#assertOpen()
    const checked = checkName('the name of a lease', name)
    const withinMs = durationMs('within', within, { minMs: 1, maxMs: dayMs })
    const due = performance.now() + withinMs
    const { backstage, proxy } = this.#parts
    const acquiring = patternOf('acquire')
    for (;;) {
      // Before the look, so that nothing is missed in between. Who waits elsewhere is not heard here, but seen.
      const asked = proxy.nextReply(acquiring, lookEveryMs)
      const look = backstage.alone(`look who waits for lease "${checked}"`, () =>
        backstage.query('select from fencepost.waiters where lease = $1 limit 1', [checked]),
      )
      // oxlint-disable-next-line no-await-in-loop -- Until somebody waits.
      if ((await Promise.race([look, this.#closed.promise])).length > 0) return
      if (performance.now() >= due) {
        throw new TestKitError(
          'NOBODY_WAITS',
          `nobody has waited for lease "${checked}" within ${withinMs} ms.`,
          checked,
        )
      }
      // oxlint-disable-next-line no-await-in-loop
      await Promise.race([asked, this.#closed.promise])
    }
  }

  /**
   * Ends all faults, closes `kit.fencepost` and gives back what the rival holds. Leases that were acquired through the kit are free, also where a
   * minimum hold or a grace would keep them closed. Calling it again waits for the first.
   *
   * End pools that use `kit.connectionString` before: connections that are still open are closed.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  async #close(): Promise<void> {
    const { proxy, fencepost, rival, backstage } = this.#parts
    const closed = closedError()
    this.#closed.reject(closed)
    proxy.failDrops(closed)
    proxy.restore()
    await fencepost.close()
    await proxy.stop()
    await backstage
      .alone('clean up', async () => {
        await rival.close()
        await backstage.query(
          `update fencepost.lease l set holder_id = null, available_at = '-infinity'
             from fencepost.holder h
            where l.holder_id = any ($1::uuid[]) and h.id = l.holder_id and h.ended_at is not null`,
          [[...proxy.holders]],
        )
      })
      // What is left behind ends by itself, and a role without the right to more has done what it can.
      .catch(() => {})
    await backstage.close()
  }

  #assertOpen(): void {
    if (this.#closing !== undefined) throw closedError()
  }
}

function closedError(): TestKitError {
  return new TestKitError('KIT_CLOSED', 'this test kit has been closed. Open another one.')
}

function withoutServer(connection: ClientConfig = {}): ClientConfig {
  const { connectionString: _, host: _host, port: _port, ssl: _ssl, ...rest } = connection
  return rest
}
