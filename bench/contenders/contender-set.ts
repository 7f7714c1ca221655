import { installPeers } from '../peers.ts'
import type { Contender, Effort } from '../rounds.ts'
import { advisoryLocks } from './advisory-locks.ts'
import { advisoryLockPackage } from './advisory-lock-package.ts'
import { byHand } from './by-hand.ts'
import { etcd } from './etcd.ts'
import { fencepost } from './fencepost.ts'
import { floor } from './floor.ts'
import type { Absent, Ground, Maker } from './maker.ts'
import { medusa } from './medusa.ts'
import { pgbench } from './pgbench.ts'
import { redis } from './redis.ts'

/** Each brings up what it needs. The packages of others are installed first. */
const needsPeers: readonly (readonly [Maker, readonly string[]])[] = [
  [advisoryLockPackage, ['npm advisory-lock']],
  [medusa, ['@medusajs/locking-postgres']],
  [redis, ['redlock', '@sesamecare-oss/redlock', 'redis-semaphore']],
  [etcd, ['etcd3']],
]

/** The floor first, then fencepost, then the others: all that this machine has, and by name what it has not. */
export async function contenders(
  ground: Ground,
  { isQuick }: Effort,
): Promise<{ readonly present: Contender[]; readonly absent: Absent[] }> {
  const all: (Contender | Absent)[] = [...(await floor(ground)), ...(await fencepost(ground))]
  if (!isQuick) {
    all.push(...(await byHand(ground)), ...(await pgbench(ground)), ...(await advisoryLocks(ground)))
    const why = await installPeers()
    for (const [make, names] of needsPeers) {
      all.push(...(why === undefined ? await make(ground) : names.map((name) => ({ name, absent: why }))))
    }
  }
  return {
    present: all.filter((each): each is Contender => !('absent' in each)),
    absent: all.filter((each): each is Absent => 'absent' in each),
  }
}
