// A process that waits for leases, as it is told over its parent's channel.
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type AcquireOptions,
  Fencepost,
  FencepostError,
  type Lease,
  type OpenOptions,
} from '../../../src/index.ts'

export type Order =
  | { readonly do: 'acquire'; readonly id: number; readonly name: string; readonly options?: AcquireOptions }
  | { readonly do: 'try'; readonly id: number; readonly name: string; readonly options?: AcquireOptions }
  | { readonly do: 'release'; readonly id: number; readonly of: number }
  | { readonly do: 'look'; readonly id: number; readonly of?: number }
  | { readonly do: 'block'; readonly id: number; readonly of?: number; readonly ms: number }
  /** Many callers ask at once; each holds for a while and gives back. */
  | {
      readonly do: 'crowd'
      readonly id: number
      readonly name: string
      readonly count: number
      readonly holdMs: number
      readonly options?: AcquireOptions
    }
  /** Somebody sets this process's wall clock. */
  | { readonly do: 'step'; readonly id: number; readonly ms: number }
  | { readonly do: 'close'; readonly id: number }

/** One term of a crowd: which caller had it, and from when to when it believed in it, by the machine's monotonic clock. */
export interface CrowdTerm {
  readonly caller: number
  readonly token: string
  readonly fromMs: number
  readonly untilMs: number
}

export interface Report {
  readonly id: number
  readonly did: 'start' | 'get' | 'fail' | 'lose' | 'release' | 'look' | 'block' | 'end' | 'step' | 'close'
  readonly token?: string
  readonly code?: string
  readonly reason?: string
  readonly isHeld?: boolean
  readonly isAborted?: boolean
  readonly state?: string
  readonly outcome?: string
  readonly expiresInMs?: number
  readonly terms?: readonly CrowdTerm[]
  readonly warnings?: readonly string[]
}

const warnings: string[] = []
const logger = { debug() {}, info() {}, warn: (message: string) => void warnings.push(message), error() {} }
const options = JSON.parse(process.argv[2]!) as OpenOptions
const fencepost = await Fencepost.open({ minTtl: '100ms', ...options, logger })
const leases = new Map<number, Lease>()
const monotonicMs = (): number => Number(process.hrtime.bigint()) / 1e6
const report = (what: Report): void => void process.send!(what)

function keep(id: number, lease: Lease): void {
  leases.set(id, lease)
  lease.on('lost', ({ reason }) => report({ id, did: 'lose', reason }))
  report({ id, did: 'get', token: lease.token.toString() })
}

async function crowd({
  id,
  name,
  count,
  holdMs,
  options: how,
}: Extract<Order, { do: 'crowd' }>): Promise<void> {
  const terms: CrowdTerm[] = []
  const caller = async (number: number): Promise<void> => {
    const lease = await fencepost.acquire(name, how)
    const term = { caller: number, token: lease.token.toString(), fromMs: monotonicMs(), untilMs: Infinity }
    terms.push(term)
    report({ id, did: 'get', token: term.token })
    const stop = (): void => {
      term.untilMs = Math.min(term.untilMs, monotonicMs())
    }
    lease.signal.addEventListener('abort', stop)
    await sleep(holdMs)
    if (!lease.isHeld) stop()
    stop()
    await lease.release()
  }
  await Promise.all(Array.from({ length: count }, (_, number) => caller(number)))
  report({ id, did: 'end', terms })
}

async function obey(order: Order): Promise<void> {
  const { id } = order
  const lease = 'of' in order ? leases.get(order.of) : undefined
  switch (order.do) {
    case 'acquire':
      return keep(id, await fencepost.acquire(order.name, order.options))
    case 'try': {
      const taken = await fencepost.tryAcquire(order.name, order.options)
      return taken === null ? report({ id, did: 'fail' }) : keep(id, taken)
    }
    case 'release':
      return report({ id, did: 'release', outcome: await lease!.handOver() })
    case 'block':
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, order.ms)
      return look('block')
    case 'look':
      return look('look')
    case 'crowd':
      return crowd(order)
    case 'step':
      ;(globalThis as unknown as { stepClock(ms: number): void }).stepClock(order.ms)
      return report({ id, did: 'step' })
    case 'close':
      await fencepost.close()
      return report({ id, did: 'close' })
  }
  function look(did: 'look' | 'block'): void {
    report({
      id,
      did,
      warnings,
      ...(lease === undefined
        ? {}
        : {
            isHeld: lease.isHeld,
            isAborted: lease.signal.aborted,
            state: lease.state,
            expiresInMs: lease.expiresInMs,
          }),
    })
  }
}

process.on('message', (order: Order) => {
  obey(order).catch((error: unknown) => {
    report({ id: order.id, did: 'fail', code: error instanceof FencepostError ? error.code : String(error) })
  })
})
report({ id: 0, did: 'start' })
