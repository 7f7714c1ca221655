import { type ChildProcess, spawn } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { processOptions } from '../../src/database/server-account.ts'
import type { DebianFolder } from '../../test/support/debian-server.ts'
import { end, freePort, untilItAnswers } from '../../test/support/listening.ts'
import { ask } from './pair.ts'
import type { PatroniNode } from './patroni.ts'

/** The address of whoever Patroni says is the primary. It closes what leads to another one. */
export class Haproxy implements AsyncDisposable {
  readonly url: string
  readonly #child: ChildProcess

  private constructor(port: number, child: ChildProcess) {
    this.url = `postgres://postgres@127.0.0.1:${port}/postgres`
    this.#child = child
  }

  static async start(folder: DebianFolder, nodes: readonly PatroniNode[]): Promise<Haproxy> {
    const port = await freePort()
    const file = join(folder.path, 'haproxy.cfg')
    await writeFile(file, configuration(port, nodes))
    const options = processOptions(folder.path, folder.account)
    const child = spawn('/usr/sbin/haproxy', ['-f', file, '-db'], { ...options, stdio: 'ignore' })
    const proxy = new Haproxy(port, child)
    try {
      await untilItAnswers(proxy.url, child)
      await proxy.#untilItHasLooked()
      return proxy
    } catch (error) {
      await proxy[Symbol.asyncDispose]()
      throw error
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await end(this.#child, 'SIGKILL')
  }

  /** At first it believes in all servers, and leads to one after the other. */
  async #untilItHasLooked(): Promise<void> {
    let inARow = 0
    while (inARow < 4) {
      // oxlint-disable-next-line no-await-in-loop -- One after the other.
      const [row] = await ask<{ standby: boolean }>(this, 'select pg_is_in_recovery() as standby')
      inARow = row!.standby ? 0 : inARow + 1
    }
  }
}

function configuration(port: number, nodes: readonly PatroniNode[]): string {
  const servers = nodes.map(({ name, port: at, api }) => {
    return `  server ${name} 127.0.0.1:${at} check port ${new URL(api).port}`
  })
  return `defaults
  mode tcp
  timeout connect 1s
  timeout client 30m
  timeout server 30m
listen primary
  bind 127.0.0.1:${port}
  option httpchk GET /primary
  http-check expect status 200
  default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
${servers.join('\n')}
`
}
