import { peer } from '../peers.ts'
import { load } from '../rounds.ts'
import { LoopbackServer, freePort, isInstalled } from '../servers/loopback.ts'
import { scratch } from '../servers/scratch.ts'
import type { Maker } from './maker.ts'

interface Etcd3Module {
  Etcd3: new (options: { hosts: string }) => {
    lock(name: string): { ttl(seconds: number): { acquire(): Promise<{ release(): Promise<unknown> }> } }
    close(): void
  }
}

/** One member, with etcd's defaults: it syncs each change to disk before it answers. Debian's version has no way to leave that out. */
export const etcd: Maker = async ({ closing }) => {
  if (!isInstalled('etcd')) {
    return [{ name: 'etcd3', absent: 'etcd is not installed (Debian: apt-get install etcd-server)' }]
  }
  const { path } = closing.use(await scratch())
  const [port, peerPort] = [await freePort(), await freePort()]
  const [url, peerUrl] = [`http://127.0.0.1:${port}`, `http://127.0.0.1:${peerPort}`]
  const args = [
    ...['--data-dir', path, '--logger', 'zap', '--log-level', 'error'],
    ...['--listen-client-urls', url, '--advertise-client-urls', url],
    ...['--listen-peer-urls', peerUrl, '--initial-advertise-peer-urls', peerUrl],
    ...['--initial-cluster', `default=${peerUrl}`],
  ]
  const server = closing.use(
    await LoopbackServer.start(['etcd', ...args], path, port, async () => {
      const answer = await fetch(`${url}/health`, { signal: AbortSignal.timeout(1000) })
      const { health } = (await answer.json()) as { health: string }
      if (health !== 'true') throw new Error('etcd is not healthy yet')
    }),
  )
  const client = new (peer('etcd3') as Etcd3Module).Etcd3({ hosts: url })
  closing.defer(() => client.close())
  return [
    {
      name: 'etcd3',
      server,
      durability: 'durable',
      counts: [1, 8, 64],
      run: (workers, forMs) =>
        load(workers, forMs, async (worker) => {
          const lock = await client.lock(`bench-${worker}`).ttl(30).acquire()
          await lock.release()
        }),
    },
  ]
}
