import { connect } from 'node:net'
import { once } from 'node:events'
import { peer } from '../peers.ts'
import { type Contender, load } from '../rounds.ts'
import { LoopbackServer, freePort, isInstalled } from '../servers/loopback.ts'
import { scratch } from '../servers/scratch.ts'
import type { Ground, Maker } from './maker.ts'

interface RedisClient {
  quit(): Promise<unknown>
}

interface RedlockClass {
  new (clients: readonly RedisClient[]): {
    acquire(names: readonly string[], ttlMs: number): Promise<{ release(): Promise<unknown> }>
  }
}

interface Ioredis {
  Redis: new (options: { host: string; port: number }) => RedisClient
}

interface Semaphore {
  Mutex: new (
    client: RedisClient,
    name: string,
    options: { lockTimeout: number },
  ) => { acquire(): Promise<void>; release(): Promise<void> }
}

const ttlMs = 30_000
const modes = [
  { durability: 'not durable', label: '', settings: ['--appendonly', 'no'] },
  {
    durability: 'durable',
    label: ', fsync always',
    settings: ['--appendonly', 'yes', '--appendfsync', 'always'],
  },
] as const

/** The three packages on one Redis that keeps its keys in memory, and on one that syncs each command to disk before it answers. */
export const redis: Maker = async (ground) => {
  if (!isInstalled('redis-server')) {
    const absent = 'redis-server is not installed (Debian: apt-get install redis-server)'
    return ['redlock', '@sesamecare-oss/redlock', 'redis-semaphore'].map((name) => ({ name, absent }))
  }
  const contenders: Contender[] = []
  for (const { durability, label, settings } of modes) {
    const server = await startRedis(ground, settings)
    const client = new (peer('ioredis') as Ioredis).Redis({ host: '127.0.0.1', port: server.port })
    ground.closing.defer(() => client.quit().then(() => undefined))
    for (const [name, step] of steps(client)) {
      contenders.push({
        name: `${name}${label}`,
        server,
        durability,
        counts: [1, 8, 64],
        run: (workers, forMs) => load(workers, forMs, step),
      })
    }
  }
  return contenders
}

type Step = (worker: number) => Promise<unknown>

function* steps(client: RedisClient): Generator<readonly [string, Step]> {
  const { Mutex } = peer('redis-semaphore') as Semaphore
  const redlocks = {
    redlock: (peer('redlock') as { default: RedlockClass }).default,
    '@sesamecare-oss/redlock': (peer('@sesamecare-oss/redlock') as { Redlock: RedlockClass }).Redlock,
  }
  for (const [name, Redlock] of Object.entries(redlocks)) {
    const redlock = new Redlock([client])
    yield [
      name,
      async (worker) => {
        const lock = await redlock.acquire([`${name}-${worker}`], ttlMs)
        await lock.release()
      },
    ]
  }
  yield [
    'redis-semaphore',
    async (worker) => {
      const mutex = new Mutex(client, `bench-${worker}`, { lockTimeout: ttlMs })
      await mutex.acquire()
      await mutex.release()
    },
  ]
}

async function startRedis({ closing }: Ground, settings: readonly string[]): Promise<LoopbackServer> {
  const { path } = closing.use(await scratch())
  const port = await freePort()
  const command = [
    'redis-server',
    '--bind',
    '127.0.0.1',
    '--port',
    String(port),
    '--dir',
    path,
    '--save',
    '',
  ] as const
  return closing.use(
    await LoopbackServer.start([...command, ...settings], path, port, async () => {
      await using socket = connect({ host: '127.0.0.1', port })
      await once(socket, 'connect')
      socket.write('PING\r\n')
      const [answer] = (await once(socket, 'data')) as [Buffer]
      if (!answer.toString().startsWith('+PONG')) throw new Error(answer.toString())
    }),
  )
}
