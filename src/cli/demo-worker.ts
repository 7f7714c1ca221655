import { Pool } from 'pg'
import { FencepostError } from '../errors.ts'
import { fencedTransaction } from '../fence/fenced-transaction.ts'
import { Fencepost } from '../fencepost.ts'
import type { Lease } from '../fence/lease.ts'

/** What the demo tells one of its two processes to do. */
export type DemoOrder =
  | { readonly do: 'acquire'; readonly lease: string; readonly ttl: '1s' }
  | { readonly do: 'read' }
  | { readonly do: 'write'; readonly balance: number }
  | { readonly do: 'close' }

/** What came of it. */
export interface DemoMessage {
  readonly token?: string
  readonly balance?: number
  /** The code of the error that refused the write. */
  readonly refusal?: string
  readonly message?: string
  readonly isAborted?: boolean
  readonly isFault?: boolean
}

const connectionString = process.env['FENCEPOST_DATABASE_URL'] ?? ''
const isFenced = process.env['FENCEPOST_DEMO_UNFENCED'] !== '1'
const pool = new Pool({ connectionString, max: 1 })
pool.on('error', () => {})
let fencepost: Fencepost | undefined
let lease: Lease | undefined

const statement = 'update fencepost_demo set balance = $1, fence_token = $2 where id = 1'

async function obey(order: DemoOrder): Promise<DemoMessage> {
  switch (order.do) {
    case 'acquire':
      fencepost = await Fencepost.open({ connectionString })
      lease = await fencepost.acquire(order.lease, { ttl: order.ttl })
      return { token: lease.token.toString() }
    case 'read': {
      const { rows } = await pool.query<{ balance: number }>(
        'select balance from fencepost_demo where id = 1',
      )
      return { balance: rows[0]!.balance }
    }
    case 'write':
      return write(lease!, order.balance)
    case 'close':
      await fencepost?.close()
      return {}
  }
}

/**
 * A careless program: it never asks `lease.isHeld`, and passes on the bare term, so that only the database stands
 * between a stale write and the data. The one difference of `--unfenced` is that nothing does.
 */
async function write(held: Lease, balance: number): Promise<DemoMessage> {
  const values = [balance, held.token.toString()]
  try {
    if (isFenced) {
      await fencedTransaction({ term: held.term }, pool, (client) => client.query(statement, values))
    } else {
      await pool.query(statement, values)
    }
    return { isAborted: held.signal.aborted }
  } catch (error) {
    if (!(error instanceof FencepostError)) throw error
    return { refusal: error.code, message: error.message, isAborted: held.signal.aborted }
  }
}

// Without the demo nobody would tell this process to end, and it would keep the lease alive for ever.
process.on('disconnect', () => process.exit())
process.on('message', (order: DemoOrder) => {
  obey(order).then(
    (message) => process.send!(message),
    (error: unknown) => process.send!({ isFault: true, message: String(error) }),
  )
})
