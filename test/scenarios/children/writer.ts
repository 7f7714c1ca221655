// A process that holds a lease and writes under it, as it is told over its parent's channel.
import { Pool } from 'pg'
import { Fencepost, FencepostError, type Lease, fencedTransaction } from '../../../src/index.ts'

export type Order =
  | { readonly do: 'acquire'; readonly name: string; readonly ttl: number; readonly wait: number }
  | { readonly do: 'begin'; readonly text: string }
  | { readonly do: 'write'; readonly text: string; readonly isCareless?: boolean }
  | { readonly do: 'hang' }
  | { readonly do: 'look' }
  | { readonly do: 'block'; readonly ms: number }
  | { readonly do: 'release' }

export interface Report {
  readonly token?: string
  readonly code?: string
  readonly isHeld?: boolean
  readonly isAborted?: boolean
  readonly state?: string
  readonly outcome?: string
}

const connectionString = process.env['FENCEPOST_DATABASE_URL']!
const pool = new Pool({ connectionString, max: 2 })
pool.on('error', () => {})
const fencepost = await Fencepost.open({ connectionString, minTtl: '100ms' })
let lease: Lease | undefined

async function obey(order: Order): Promise<Report> {
  switch (order.do) {
    case 'acquire':
      lease = await fencepost.acquire(order.name, { ttl: order.ttl, wait: order.wait })
      return { token: lease.token.toString() }
    case 'write': {
      const insert = (client: {
        query(text: string, values: string[]): Promise<unknown>
      }): Promise<unknown> =>
        client.query('insert into written (token, text) values ($1, $2)', [
          lease!.token.toString(),
          order.text,
        ])
      // A careless program ignores what its process knows, so only the database can refuse it.
      await (order.isCareless === true
        ? fencedTransaction({ term: lease!.term }, pool, insert)
        : lease!.transaction(pool, insert))
      return {}
    }
    case 'begin': {
      // Tells that it is inside, and then waits for its parent: it is stopped there.
      await lease!.transaction(pool, async (client) => {
        process.send!({ state: 'inside' } satisfies Report)
        await new Promise((resolve) => process.once('message', resolve))
        await client.query('insert into written (token, text) values ($1, $2)', [
          lease!.token.toString(),
          order.text,
        ])
      })
      return {}
    }
    case 'hang':
      await lease!.transaction(pool, async (client) => {
        process.send!({ state: 'inside' } satisfies Report)
        await client.query('select pg_sleep(3600)')
      })
      return {}
    case 'look':
      return { isHeld: lease!.isHeld, isAborted: lease!.signal.aborted, state: lease!.state }
    case 'block':
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, order.ms)
      return { isHeld: lease!.isHeld, state: lease!.state }
    case 'release':
      return { outcome: await lease!.release() }
  }
}

async function report(order: Order): Promise<Report> {
  try {
    return await obey(order)
  } catch (error) {
    return {
      code: error instanceof FencepostError ? error.code : String(error),
      isHeld: lease?.isHeld ?? false,
      isAborted: lease?.signal.aborted ?? false,
    }
  }
}

let isBusy = false
async function take(order: Order): Promise<void> {
  // While "begin" waits inside its transaction the next message only wakes it.
  if (isBusy) return
  isBusy = true
  const answer = await report(order)
  isBusy = false
  process.send!(answer)
}
process.on('message', (order: Order) => void take(order))
process.send!({ state: 'ready' } satisfies Report)
