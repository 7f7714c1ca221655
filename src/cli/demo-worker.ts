import { Pool } from 'pg'
import type { Lease } from '../fence/lease.ts'
import { refusalOf } from '../fence/refusal.ts'
import { Fencepost } from '../fencepost.ts'
import type { DemoClient } from './demo-clients/demo-client.ts'
import { openDemoClient } from './demo-clients/registry.ts'
import type { DemoClientName } from './demo-clients/names.ts'

/** What the demo tells one of its two processes to do. */
export type DemoOrder =
  | { readonly do: 'open'; readonly client: DemoClientName }
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
let client: DemoClient | undefined
let fencepost: Fencepost | undefined
let lease: Lease | undefined

async function obey(order: DemoOrder): Promise<DemoMessage> {
  switch (order.do) {
    case 'open':
      client = await openDemoClient(order.client, connectionString)
      return {}
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
      return write(client!, lease!, order.balance)
    case 'close':
      await client?.close()
      await fencepost?.close()
      return {}
  }
}

/**
 * A careless program: it never asks `lease.isHeld`, and passes on the bare term, so that only the database stands
 * between a stale write and the data. The one difference of `--unfenced` is that nothing does.
 */
async function write(by: DemoClient, held: Lease, balance: number): Promise<DemoMessage> {
  const { term, token } = held
  try {
    if (isFenced) await by.fenced({ term }, { balance, token })
    else await by.unfenced({ balance, token })
    return { isAborted: held.signal.aborted }
  } catch (error) {
    const refusal = refusalOf(error, { term })
    if (refusal === undefined) throw error
    return { refusal: refusal.code, message: refusal.message, isAborted: held.signal.aborted }
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
