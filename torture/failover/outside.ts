import { Pool } from 'pg'
import { Fencepost, HttpFence, type Term } from '../../src/index.ts'
import type { DebianFolder } from '../../test/support/debian-server.ts'

/** A request that a service let in. */
export interface Passed {
  readonly lease: string
  readonly token: bigint
  readonly holderId: string
}

/** A request that it refused as stale. */
export interface Refused extends Passed {
  /** The last one that it had let in. */
  readonly over: Passed
}

/** A service with a database of its own, which knows no holders and compares tokens: what a failover of the leases cannot take along. */
export class Outside implements AsyncDisposable {
  readonly #pool: Pool
  readonly #handle: (request: Request) => Promise<Response>
  /** For each round a resource of its own. */
  #round = 0
  #passed: Passed[] = []
  #refused: Refused[] = []

  private constructor(pool: Pool) {
    this.#pool = pool
    const fence = new HttpFence(pool, { wait: '2s' })
    this.#handle = fence.wrap(
      (request) => request.headers.get('resource')!,
      (request) => {
        const { headers } = request
        this.#passed.push({
          lease: headers.get('lease')!,
          token: BigInt(headers.get('fencing-token')!),
          holderId: headers.get('holder')!,
        })
        return new Response(null, { status: 204 })
      },
    )
  }

  static async start(folder: DebianFolder): Promise<Outside> {
    await folder.initialize('outside')
    const { url } = await folder.serve('outside', { fsync: 'off' })
    await Fencepost.migrate({ connectionString: url, fenceOnly: true })
    const pool = new Pool({ connectionString: url, max: 20 })
    pool.on('error', () => {})
    return new Outside(pool)
  }

  /** Everything is new to it. */
  newRound(): void {
    this.#round += 1
    this.#passed = []
    this.#refused = []
  }

  /** In the order in which they were let in. */
  get passed(): readonly Passed[] {
    return this.#passed
  }

  get refused(): readonly Refused[] {
    return this.#refused
  }

  /** Writes outside under that term. */
  async send({ lease, token, holderId }: Term): Promise<void> {
    const headers = {
      'fencing-token': `${token}`,
      resource: `${this.#round}/${lease}`,
      lease,
      holder: holderId,
    }
    const { status } = await this.#handle(new Request('http://outside.test/', { method: 'PUT', headers }))
    if (status === 204) return
    if (status !== 412) throw new Error(`the service outside answered with ${status}`)
    const over = this.#passed.findLast((one) => one.lease === lease)
    this.#refused.push({ lease, token, holderId, over: over! })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.end()
  }
}
