// A client that takes one lease, and whose clock stands still until its parent moves it.
import { systemClock } from '../../../src/clock.ts'
import { Fencepost, type Lease } from '../../../src/index.ts'
import { ManualClock, settled } from '../../support/manual-clock.ts'

export type Order =
  /** Its answer comes when the lease has been granted, which may be never. */
  | { readonly do: 'acquire'; readonly name: string; readonly ttl: number }
  /** Time passes, and what falls due in it is done. */
  | { readonly do: 'advance'; readonly ms: number }
  /** Time passes, and nothing is done. */
  | { readonly do: 'block'; readonly ms: number }
  /** Its answer comes after all that has been sent before has been answered. */
  | { readonly do: 'ask' }

export type Report =
  | { readonly did: 'start' | 'advance' | 'block' | 'ask' }
  | { readonly did: 'acquire'; readonly token: string }
  | { readonly did: 'renew'; readonly expiresInMs: number }

const clock = new ManualClock()
Object.assign(systemClock, {
  monotonicMs: () => clock.monotonicMs(),
  wallMs: () => clock.wallMs(),
  after: (delayMs: number, action: () => void) => clock.after(delayMs, action),
})
const connectionString = process.env['FENCEPOST_DATABASE_URL']!
const fencepost = await Fencepost.open({ connectionString, listen: false })

function report(what: Report): void {
  process.send!(what)
}

async function obey(order: Order): Promise<void> {
  switch (order.do) {
    case 'acquire': {
      const lease: Lease = await fencepost.acquire(order.name, { ttl: order.ttl })
      lease.on('renewed', ({ expiresInMs }) => report({ did: 'renew', expiresInMs }))
      return report({ did: 'acquire', token: lease.token.toString() })
    }
    case 'advance':
      await clock.advance(order.ms)
      break
    case 'block':
      clock.block(order.ms)
      break
    case 'ask':
      await fencepost.tryAcquire(`asked for at ${clock.monotonicMs()}`)
      await settled()
      break
  }
  report({ did: order.do })
}

process.on('message', (order: Order) => void obey(order))
report({ did: 'start' })
