import { execFile } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { endedChildrenMs } from '../meter.ts'
import { scratch } from '../servers/scratch.ts'
import type { Maker } from './maker.ts'

const root = '/usr/lib/postgresql'

/** Debian's newest pgbench. */
function program(): string | undefined {
  const versions = existsSync(root) ? readdirSync(root).toSorted((a, b) => Number(b) - Number(a)) : []
  return versions.map((version) => join(root, version, 'bin/pgbench')).find((path) => existsSync(path))
}

/** The floor's two UPDATEs, prepared, sent by a client in C: what the floor's own client costs. As many connections as the floor has. */
export const pgbench: Maker = async ({ server, closing }) => {
  const file = program()
  if (file === undefined) {
    return [{ name: 'pgbench', absent: 'pgbench is not installed (Debian: apt-get install postgresql-15)' }]
  }
  const { path } = closing.use(await scratch())
  const script = join(path, 'two-updates.sql')
  const update = 'update floor set value = value + 1 where id = :client_id;\n'
  await writeFile(script, update + update)
  return [
    {
      name: 'pgbench',
      server,
      durability: 'durable',
      counts: [1, 8, 64],
      async run(workers, forMs) {
        const clients = Math.min(workers, 20)
        const before = endedChildrenMs()
        const { stdout } = await promisify(execFile)(
          file,
          [
            ...[
              '--no-vacuum',
              '--protocol=prepared',
              '--file',
              script,
              '--log',
              '--log-prefix',
              join(path, 'log'),
            ],
            ...['--client', String(clients), '--jobs', String(Math.min(clients, 2))],
            ...['--time', String(Math.max(1, Math.round(forMs / 1000))), server.url],
          ],
          { cwd: path },
        )
        const after = endedChildrenMs()
        const perSecond = Number(/^tps = ([\d.]+)/m.exec(stdout)?.[1])
        const latenciesMs = await readLog(path)
        // Its own measure leaves out the time that connecting takes; the others are connected, too, when they begin.
        return {
          operations: latenciesMs.length,
          elapsedMs: (latenciesMs.length / perSecond) * 1000,
          latenciesMs,
          clientCpuMs: before === undefined || after === undefined ? undefined : after - before,
        }
      },
    },
  ]
}

/** The third field of each line is how long a transaction took, in microseconds. One file per thread. */
async function readLog(folder: string): Promise<number[]> {
  const latenciesMs: number[] = []
  for (const name of await readdir(folder)) {
    if (!name.startsWith('log')) continue
    const file = join(folder, name)
    for (const line of (await readFile(file, 'utf8')).split('\n')) {
      if (line !== '') latenciesMs.push(Number(line.split(' ')[2]) / 1000)
    }
    await rm(file)
  }
  return latenciesMs
}
