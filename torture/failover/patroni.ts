import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { processOptions } from '../../src/database/server-account.ts'
import type { DebianFolder } from '../../test/support/debian-server.ts'
import { end, freePort } from '../../test/support/listening.ts'

/** Why Patroni cannot run here; undefined: it can. */
export function withoutPatroni(): string | undefined {
  const missing = ['/usr/bin/patroni', '/usr/bin/etcd', '/usr/sbin/haproxy'].filter(
    (path) => !existsSync(path),
  )
  return missing.length === 0
    ? undefined
    : `there is no ${missing.join(', ')}: apt-get install patroni python3-etcd etcd-server haproxy`
}

/** Seconds. Patroni's defaults are three times as long. */
const pace = { ttl: 10, loop_wait: 2, retry_timeout: 4 }

export interface PatroniNode {
  readonly name: string
  readonly port: number
  readonly api: string
}

interface Running extends PatroniNode {
  readonly agent: ChildProcess
}

/** Two PostgreSQL servers under Patroni, which agree by way of etcd who of them is the primary. All on loopback. */
export class PatroniCluster implements AsyncDisposable {
  readonly #folder: DebianFolder
  readonly #isSynchronous: boolean
  readonly #nodes: Running[] = []
  #etcd: { readonly child: ChildProcess; readonly host: string } | undefined

  private constructor(folder: DebianFolder, isSynchronous: boolean) {
    this.#folder = folder
    this.#isSynchronous = isSynchronous
  }

  static async start(folder: DebianFolder, isSynchronous: boolean): Promise<PatroniCluster> {
    const cluster = new PatroniCluster(folder, isSynchronous)
    try {
      await cluster.#startEtcd()
      const first = await cluster.#startNode('a')
      await until(async () => (await cluster.primary()) === first)
      await cluster.#startNode('b')
      await cluster.complete()
      return cluster
    } catch (error) {
      await cluster[Symbol.asyncDispose]()
      throw error
    }
  }

  get nodes(): readonly PatroniNode[] {
    return this.#nodes
  }

  /** The one that says so, as HAProxy asks for it; undefined: none at the moment. */
  async primary(): Promise<PatroniNode | undefined> {
    const said = await Promise.all(this.#nodes.map(({ api }) => statusOf(`${api}/primary`)))
    return this.#nodes.find((_, place) => said[place] === 200)
  }

  /** Waits for the standby to be one that Patroni would promote. */
  async complete(): Promise<void> {
    const wanted = this.#isSynchronous ? 'synchronous' : 'replica'
    await until(async () => {
      const said = await Promise.all(this.#nodes.map(({ api }) => statusOf(`${api}/${wanted}`)))
      return said.includes(200) && (await this.primary()) !== undefined
    })
  }

  /** In order: the primary stops and the standby has all of it. */
  async switchOver(from: PatroniNode): Promise<void> {
    const body = JSON.stringify({ leader: from.name })
    const response = await fetch(`${from.api}/switchover`, { method: 'POST', body })
    if (response.status !== 200) throw new Error(`no switchover: ${await response.text()}`)
  }

  /** As a machine dies: the agent and the server at once. */
  async kill(node: PatroniNode): Promise<void> {
    const { agent } = this.#nodes.find((one) => one.name === node.name)!
    process.kill(await this.#postmaster(node.name), 'SIGKILL')
    await end(agent, 'SIGKILL')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { name, agent } of this.#nodes) {
      // oxlint-disable-next-line no-await-in-loop -- An agent would start its server again.
      await end(agent, 'SIGKILL')
      // oxlint-disable-next-line no-await-in-loop -- As above.
      await this.#endServer(name)
    }
    if (this.#etcd !== undefined) await end(this.#etcd.child, 'SIGKILL')
  }

  async #endServer(name: string): Promise<void> {
    try {
      const pid = await this.#postmaster(name)
      process.kill(pid, 'SIGQUIT')
      await until(async () => !(await isRunning(pid)))
    } catch {
      // It has ended, or was never started.
    }
  }

  async #postmaster(name: string): Promise<number> {
    const text = await readFile(join(this.#folder.path, `data-${name}`, 'postmaster.pid'), 'utf8')
    return Number(text.split('\n', 1)[0])
  }

  async #startEtcd(): Promise<void> {
    const [clients, peers] = [await freePort(), await freePort()]
    const [url, peerUrl] = [`http://127.0.0.1:${clients}`, `http://127.0.0.1:${peers}`]
    const args = ['--name', 'etcd', '--data-dir', join(this.#folder.path, 'etcd'), '--unsafe-no-fsync']
    const listening = ['--listen-client-urls', url, '--advertise-client-urls', url]
    const alone = ['--listen-peer-urls', peerUrl, '--initial-advertise-peer-urls', peerUrl]
    const cluster = ['--initial-cluster', `etcd=${peerUrl}`]
    const child = this.#spawn('/usr/bin/etcd', [...args, ...listening, ...alone, ...cluster])
    this.#etcd = { child, host: `127.0.0.1:${clients}` }
    await until(async () => (await statusOf(`${url}/health`)) === 200)
  }

  async #startNode(name: string): Promise<Running> {
    const [port, apiPort] = [await freePort(), await freePort()]
    const file = join(this.#folder.path, `${name}.json`)
    await writeFile(file, JSON.stringify(this.#configuration(name, port, apiPort), null, 2))
    const agent = this.#spawn('/usr/bin/patroni', [file])
    const node = { name, port, api: `http://127.0.0.1:${apiPort}`, agent }
    this.#nodes.push(node)
    return node
  }

  /** JSON is YAML. */
  #configuration(name: string, port: number, apiPort: number): object {
    const trust = ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']
    const { path, binaries } = this.#folder
    return {
      scope: 'fencepost',
      name,
      restapi: { listen: `127.0.0.1:${apiPort}`, connect_address: `127.0.0.1:${apiPort}` },
      etcd3: { host: this.#etcd!.host },
      bootstrap: {
        dcs: {
          ...pace,
          synchronous_mode: this.#isSynchronous,
          postgresql: { parameters: { max_connections: 60, fsync: 'off' } },
        },
        initdb: ['no-sync', { encoding: 'UTF8' }, { locale: 'C' }],
        pg_hba: trust,
      },
      postgresql: {
        listen: `127.0.0.1:${port}`,
        connect_address: `127.0.0.1:${port}`,
        data_dir: join(path, `data-${name}`),
        bin_dir: binaries,
        pgpass: join(path, `pgpass-${name}`),
        pg_hba: trust,
        authentication: { superuser: { username: 'postgres' }, replication: { username: 'postgres' } },
        parameters: { unix_socket_directories: path },
      },
    }
  }

  #spawn(program: string, args: readonly string[]): ChildProcess {
    const options = processOptions(this.#folder.path, this.#folder.account)
    return spawn(program, args, { ...options, stdio: 'ignore' })
  }
}

async function statusOf(url: string): Promise<number | undefined> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(1000) })
    await response.body?.cancel()
    return response.status
  } catch {
    return undefined
  }
}

/** These programs tell nobody when they are ready, so they are asked. */
async function until(condition: () => Promise<boolean>): Promise<void> {
  const since = performance.now()
  while (!(await condition())) {
    if (performance.now() - since > 120_000) throw new Error('it does not come to pass within two minutes')
    // oxlint-disable-next-line no-await-in-loop -- Until it does.
    await sleep(100)
  }
}

async function isRunning(pid: number): Promise<boolean> {
  try {
    // A dead one that nobody has reaped yet has ended.
    return !/^State:\s+Z/m.test(await readFile(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}
