import { FencepostError } from '../../src/errors.ts'
import type { Line } from '../../src/lease/line.ts'
import { Election, type ElectionOptions } from '../../src/roles/election.ts'
import type { FakeDatabase, FakeLease } from './fake-electorate.ts'

/** A `lead` that runs until the test says so. */
export interface Leading {
  readonly lease: FakeLease
  readonly isDone: boolean
  returns(): void
  throws(error: unknown): void
}

/** An election of the fake database with all that it tells, and what `lead` is called with. */
export class Candidate {
  readonly election: Election<FakeLease>
  readonly leads: Leading[] = []
  readonly events: string[] = []
  readonly errors: unknown[] = []
  mostAtOnce = 0
  #running = 0

  constructor(
    database: FakeDatabase,
    options: ElectionOptions & { readonly line?: Line; readonly obeys?: boolean } = {},
  ) {
    const { line, obeys = false } = options
    this.election = new Election(
      'scheduler',
      options,
      (lease: FakeLease) => this.#lead(lease, obeys),
      database.electorate('scheduler', line),
    )
    this.election.on('elected', ({ token }) => this.events.push(`elected ${token}`))
    this.election.on('ended', ({ token, reason, error }) => {
      this.events.push(`ended ${token} ${reason}`)
      this.errors.push(error)
    })
    this.election.on('failed', ({ error, token }) =>
      this.events.push(
        `failed ${token ?? 'standing'} ${error instanceof FencepostError ? error.code : (error as Error).message}`,
      ),
    )
  }

  get last(): Leading {
    return this.leads.at(-1)!
  }

  async #lead(lease: FakeLease, obeys: boolean): Promise<void> {
    this.#running += 1
    this.mostAtOnce = Math.max(this.mostAtOnce, this.#running)
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const leading = { lease, isDone: false, returns: resolve, throws: reject }
    this.leads.push(leading)
    if (obeys) lease.signal.addEventListener('abort', () => reject(lease.signal.reason as Error))
    try {
      await promise
    } finally {
      leading.isDone = true
      this.#running -= 1
    }
  }
}
