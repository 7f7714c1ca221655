import { peer } from '../peers.ts'
import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

interface Orm {
  readonly em: { fork(): unknown }
  close(): Promise<void>
}

interface MedusaUtils {
  readonly mikroOrmCreateConnection: (
    database: {
      clientUrl: string
      driverOptions?: object
      debug: boolean
      pool: { min: number; max: number }
    },
    entities: readonly unknown[],
    pathToMigrations: string,
  ) => Promise<Orm>
}

interface LockingProvider {
  default: { services: readonly (new (container: { manager: unknown }, options: object) => Locking)[] }
}

interface Locking {
  acquire(key: string, options: { ownerId: string; expire: number }): Promise<void>
  release(key: string, options: { ownerId: string }): Promise<boolean>
}

/** Its provider on the connection that the framework makes for it, without the framework's service around it, which would only cost more. */
export const medusa: Maker = async ({ server, closing }) => {
  const { mikroOrmCreateConnection } = peer('@medusajs/framework/utils') as MedusaUtils
  const [Provider] = (peer('@medusajs/locking-postgres') as LockingProvider).default.services
  // What its migration does.
  await server.db.query(
    `create table locking (id text not null, owner_id text null, expiration timestamptz null, constraint locking_pkey primary key (id))`,
  )
  const bySize = new Map<number, Locking>()
  const providerOf = async (workers: number): Promise<Locking> => {
    const max = Math.min(workers, 20)
    const known = bySize.get(max)
    if (known !== undefined) return known
    const orm = await mikroOrmCreateConnection(
      { clientUrl: server.url, debug: false, pool: { min: Math.min(2, max), max } },
      [],
      '',
    )
    closing.defer(() => orm.close())
    const provider = new Provider!({ manager: orm.em.fork() }, {})
    bySize.set(max, provider)
    return provider
  }
  return [
    {
      name: '@medusajs/locking-postgres',
      server,
      durability: 'durable',
      counts: [1, 8, 64],
      async run(workers, forMs) {
        const provider = await providerOf(workers)
        return load(workers, forMs, async (worker) => {
          const ownerId = `worker-${worker}`
          await provider.acquire(`bench-${worker}`, { ownerId, expire: 30 })
          await provider.release(`bench-${worker}`, { ownerId })
        })
      },
    },
  ]
}
