// A process that takes many leases of one TTL, or stands in line for them, until it is killed. Says 'ready' when it holds all of them, or
// has asked for all of them. Asked for `cpu`, it answers with the CPU time that it has used, in milliseconds.
import { Fencepost } from '../../src/index.ts'

/** Names are `PREFIX-FROM` to below `PREFIX-TO`. `spread` gives each two their own TTL, and so a holder and its heartbeat. */
export type Task = 'hold' | 'hold-spread' | 'wait'

const [task, url = '', prefix = '', from = '', to = '', ttl = ''] = process.argv.slice(2)
const ttlMs = Number(ttl)
const names = Array.from(
  { length: Number(to) - Number(from) },
  (_, index) => `${prefix}-${Number(from) + index}`,
)
const fencepost = await Fencepost.open({ connectionString: url, ttl: ttlMs })
process.on('message', () => {
  const { user, system } = process.cpuUsage()
  process.send!((user + system) / 1000)
})
process.on('disconnect', () => process.exit())

switch (task as Task) {
  case 'hold':
    for (let index = 0; index < names.length; index += 10_000) await hold(names.slice(index, index + 10_000))
    break
  case 'hold-spread':
    for (let index = 0; index < names.length; index += 2) {
      await hold(names.slice(index, index + 2), ttlMs + Number(from) + index)
    }
    break
  case 'wait':
    for (const name of names) void fencepost.acquire(name)
    break
}
process.send!('ready')

async function hold(some: readonly string[], itsTtlMs = ttlMs): Promise<void> {
  const granted = await fencepost.acquireMany(some, { ttl: itsTtlMs })
  if (granted.size !== some.length) throw new Error(`${granted.size} of ${some.length} leases were granted`)
}
